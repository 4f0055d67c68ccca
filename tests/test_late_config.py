"""Each option of jax reads a variable that is set, or taken away, after a warm start as it would at its own import."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from conftest import clean_env

from hostmesh.worker.process.as_python.native_env import KNOWN_LIBRARIES, _count_threads

# Prints jax's options as they are after a script has changed its variables and imported jax; with "warm" jax had been
# imported before, as in a nursery.
OPTIONS = """
import json, os, sys
how, change = sys.argv[1], json.loads(sys.argv[2])
if how == "warm":
    from hostmesh.worker.process.as_python.late_config import LateConfig
    late = LateConfig()
    late.import_all(["jax"])
    late.hide()
for name, value in change.items():
    os.environ.pop(name, None) if value is None else os.environ.update({name: value})
import jax
holders = jax.config._value_holders
kinds = {name: [str(kind), [str(v) for v in details.get("enum_values", details.get("enum_class", ()))]]
         for name, (kind, _, details) in jax.config.meta.items()}
print(json.dumps([{name: repr(holder.value) for name, holder in holders.items()}, kinds]))
"""

# What a value like any other would make jax refuse, or mean something else.
SPECIAL = {
    "jax_default_device": "cpu",
    "jax_legacy_prng_key": "error",
    "jax_explicit_x64_dtypes": "error",
    "jax_numpy_dtype_promotion": "strict",
}


def read_options(how: str, change: dict[str, str | None], env: dict[str, str]) -> list[dict[str, Any]]:
    command = [sys.executable, "-c", OPTIONS, how, json.dumps(change)]
    done = subprocess.run(command, env=clean_env(env), capture_output=True, text=True)
    assert done.returncode == 0, done.stderr + done.stdout
    return json.loads(done.stdout.splitlines()[-1])


def other_value(name: str, now: str, kind: str, choices: list[str]) -> str:
    if name in SPECIAL:
        return SPECIAL[name]
    if kind == "<class 'bool'>":
        return "off" if now == "True" else "Yes"
    if kind == "enum_class":
        return choices[-1].rpartition(".")[2]
    if kind == "enum":
        return next(choice for choice in choices if repr(choice) != now)
    return {"<class 'int'>": "7", "<class 'float'>": "0.25"}.get(kind, "words")


@pytest.mark.newest
@pytest.mark.slow
def test_options_are_read_as_at_jaxs_own_import() -> None:
    defaults, kinds = read_options("plain", {}, {})
    values = {name.upper(): other_value(name, defaults[name], *kinds[name]) for name in defaults}
    there, _ = read_options("plain", {}, values)
    read = {name for name in defaults if there[name] != defaults[name]}
    assert len(read) > 80, "most options have a variable"
    assert read_options("warm", values, {})[0] == there
    assert read_options("warm", dict.fromkeys(values), values)[0] == defaults


@pytest.mark.parametrize(
    ("env", "wanted"),
    [
        ({"OMP_NUM_THREADS": "1"}, 1),
        ({"OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "2"}, 1),
        ({"OPENBLAS_NUM_THREADS": "0", "OMP_NUM_THREADS": "1,4"}, 1),
        ({"OMP_NUM_THREADS": "many"}, 3),
        ({"OPENBLAS_NUM_THREADS": "64"}, 3),
        ({}, 3),
    ],
)
def test_threads_are_counted_as_openblas_does(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, env: dict[str, str], wanted: int
) -> None:
    monkeypatch.setattr("os.sched_getaffinity", lambda _: {0, 1, 2})
    assert _count_threads(KNOWN_LIBRARIES[0], env) == wanted
