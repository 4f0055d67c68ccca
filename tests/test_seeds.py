"""The code blocks of five documents on data loading with JAX, each run in two processes of four devices.

One start runs all blocks of a script in `seeds/`; each of them is a test that reads its result.
"""

from __future__ import annotations

import ast
import functools
import importlib.util
import json
import subprocess
from pathlib import Path

import pytest
from conftest import HANGS, LAUNCH, REPO, clean_env

FOLDER = REPO / "tests" / "seeds"
# The package that each script needs, and the extra that installs it.
SCRIPTS = {
    "ai_stack_grain": ("grain", ""),
    "ai_stack_hugging_face": ("datasets", "hugging-face"),
    "ai_stack_tfds": ("tensorflow_datasets", "tensorflow"),
    "ai_stack_torch": ("torch", "torch"),
    "datarax_guide": ("datarax", "datarax"),
    "grain_guide": ("grain", ""),
    "jax_guide": ("jax", ""),
    "jax_guide_tf_data": ("tensorflow", "tensorflow"),
}
# The others are slow to import, and their systems have quick tests elsewhere (test_sources_*, test_streams_*).
QUICK = ("jax_guide", "grain_guide")


def list_blocks(script: str) -> list[str]:
    tree = ast.parse((FOLDER / f"{script}.py").read_text())
    functions = [node for node in tree.body if isinstance(node, ast.FunctionDef)]
    return [function.name for function in functions if any(ast.unparse(d) == "block" for d in function.decorator_list)]


def cases() -> list[object]:
    found = []
    for script in SCRIPTS:
        marks = [pytest.mark.xdist_group(f"seeds {script}"), *([] if script in QUICK else [pytest.mark.slow])]
        found += [pytest.param(script, block, id=f"{script}-{block}", marks=marks) for block in list_blocks(script)]
    return found


@functools.cache
def run_script(script: str, folder: Path) -> subprocess.CompletedProcess[str]:
    command = [*LAUNCH, "--show", "all", "--local", "2", "--devices", "4", str(FOLDER / f"{script}.py")]
    env = clean_env({"TF_CPP_MIN_LOG_LEVEL": "3", "HF_HUB_OFFLINE": "1"})
    return subprocess.run(
        command, cwd=folder, env=env, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=HANGS
    )


@pytest.fixture(scope="session")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("seeds")


@pytest.mark.parametrize(("script", "block"), cases())
def test_a_block_works_in_two_processes_of_four_devices(script: str, block: str, folder: Path) -> None:
    package, extra = SCRIPTS[script]
    if importlib.util.find_spec(package) is None:
        pytest.skip(f"hostmesh[{extra}]")
    done = run_script(script, folder)
    marker = f"] block {block} "
    results = [json.loads(line.partition(marker)[2]) for line in done.stdout.splitlines() if marker in line]
    assert len(results) == 2, f"{len(results)} processes came to this block:\n{done.stdout}\n{done.stderr}"
    assert results == ["", ""], "\n".join(results)
