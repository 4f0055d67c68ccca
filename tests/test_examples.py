"""The examples: short, alike but for their data, and each learns the digits, the same in two processes as in one."""

from __future__ import annotations

import importlib.util
import re
import signal
from pathlib import Path

import pytest
from conftest import REPO, Launch, Start, await_true

EXAMPLES = sorted((REPO / "examples").glob("*.py"))
EPOCHS = 10

# The package each needs, and the extra that installs it; Grain comes with hostmesh itself.
NEEDS = {
    "digits_datarax": ("datarax", "datarax"),
    "digits_grain": ("grain", ""),
    "digits_hugging_face": ("datasets", "hugging-face"),
    "digits_pytorch": ("torch", "torch"),
    "digits_tf_data": ("tensorflow", "tensorflow"),
    "digits_tfds": ("tensorflow_datasets", "tensorflow"),
}


def run_example(launch: Launch, name: str, *topology: str) -> str:
    """What it says of its accuracy, once, after a line for each epoch."""
    done = launch(*topology, str(REPO / "examples" / f"{name}.py"), timeout=240)
    assert done.returncode == 0, done.stdout + done.stderr
    assert len(re.findall(r"^\[0 .*epoch \d+: loss \d\.\d{4}$", done.stdout, re.MULTILINE)) == EPOCHS, done.stdout
    (line,) = re.findall(r"test accuracy .*", done.stdout)
    return str(line)


def check_accuracy(line: str) -> None:
    found = re.fullmatch(r"test accuracy (0\.\d\d|1\.00) \((\d+) of 360\)", line)
    assert found and 0.9 * 360 <= int(found[2]) <= 360, line


# The libraries take seconds to import in each process, TensorFlow most of all; what they give to two processes and to
# one is compared batch by batch in the tests of sources and streams.
@pytest.mark.timeout(600)
@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=() if name == "digits_grain" else pytest.mark.slow) for name in NEEDS]
)
@pytest.mark.slow
def test_digits_are_learnt_the_same_in_two_processes_as_in_one(launch: Launch, name: str) -> None:
    package, extra = NEEDS[name]
    if importlib.util.find_spec(package) is None:
        pytest.skip(f"hostmesh[{extra}]")
    line = run_example(launch, name, "--local", "2")
    check_accuracy(line)
    assert run_example(launch, name, "--local", "1", "--devices", "2") == line


@pytest.mark.timeout(900)
@pytest.mark.slow
def test_the_byte_transformer_learns_and_goes_on_exactly_where_it_was_stopped(launch: Launch, start: Start) -> None:
    program = str(REPO / "examples" / "byte_transformer.py")
    done = launch("--local", "4", program, "whole", timeout=400)
    assert done.returncode == 0, done.stdout + done.stderr
    whole = losses(done.stdout)
    assert list(whole) == list(range(10, 121, 10))
    assert float(whole[120]) < 0.85 * float(whole[10])

    run = start("--local", "4", program, "stopped")
    await_true(lambda: losses(run.stderr), 120, "the first losses")
    run.launcher.send_signal(signal.SIGTERM)
    assert run.wait() == 75, run.stderr
    before = losses(run.log(0).decode())
    assert 120 not in before
    again = launch("--local", "4", program, "stopped", timeout=400)
    assert again.returncode == 0, again.stdout + again.stderr
    after = losses(again.stdout)
    assert after and min(after) > max(before)
    assert {**before, **after} == whole


def losses(output: str) -> dict[int, str]:
    return {int(step): loss for step, loss in re.findall(r"step (\d+): loss (\d\.\d{4})$", output, re.MULTILINE)}


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.name)
def test_an_example_is_short(path: Path) -> None:
    """The transformer's also stops and goes on."""
    assert len(path.read_text().splitlines()) < (80 if path.stem == "byte_transformer" else 60)


def test_only_the_data_differs_between_the_examples() -> None:
    models = {path.stem: cut_model(path.read_text()) for path in EXAMPLES if path.stem.startswith("digits_")}
    assert set(models) == set(NEEDS)
    assert len(set(models.values())) == 1


def cut_model(text: str) -> str:
    """From the first function of the model to the parameters on the devices."""
    last = "params = jax.device_put("
    return text[text.index("def predict(") : text.index("\n", text.index(last))]
