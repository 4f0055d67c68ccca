"""Processes of one run that never joined are not taken for one program that succeeded."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest
from conftest import Launch, Script

TOOLS = """
import os, subprocess, sys, jax, numpy, hostmesh, hostmesh.worker.errors
tools = {
    "mesh": lambda: hostmesh.make_mesh(data=-1),
    "loader": lambda: hostmesh.Loader({"x": numpy.arange(8)}, jax.sharding.SingleDeviceSharding(jax.devices()[0]), 4),
    "checkpoint": lambda: hostmesh.Checkpoint(f"saved-{os.getpid()}", data_spec={}),
}
for name, make in tools.items():
    try:
        make()
        print("RESULT", sys.argv[-1], name, "made")
    except hostmesh.worker.errors.WorkerError as error:
        print("RESULT", sys.argv[-1], name, error)
if sys.argv[-1] == "alone":
    subprocess.run([sys.executable, __file__, "child"], check=True)
"""


@pytest.mark.slow
def test_what_needs_all_devices_wants_a_join_first(launch: Launch, script: Script) -> None:
    done = launch("--local", "2", script(TOOLS), "alone")
    assert done.returncode == 0, done.stdout + done.stderr
    for name in ("mesh", "loader", "checkpoint"):
        assert done.stdout.count(f"RESULT child {name} made") == 2
        told = [line for line in done.stdout.splitlines() if f"RESULT alone {name}" in line]
        assert len(told) == 2 and all("of 2 alone" in line and "hostmesh.join()" in line for line in told), told


def test_what_one_process_makes_alone_is_fine(launch: Launch, script: Script) -> None:
    done = launch("--local", "1", script(TOOLS), "x")
    assert done.stdout.count("made") == 3, done.stdout
    assert "separately" not in done.stderr


@pytest.mark.slow
def test_the_closing_line_says_who_never_joined(launch: Launch, script: Script, tmp_path: Path) -> None:
    done = launch("--local", "2", script("import jax\njax.devices()\n"))
    assert done.returncode == 0
    assert "launch: all 2 processes succeeded in " in done.stderr
    assert "2 processes never joined and ran separately" in done.stderr
    [result] = tmp_path.glob("runs/*/result.json")
    assert "never joined" in json.loads(result.read_text())["remarks"][0]
    for text in ("print(1)", "import jax\nprint(jax.__version__)\n"):
        assert "separately" not in launch("--local", "2", script(text)).stderr


@pytest.mark.slow
def test_a_command_that_is_python_is_counted_as_well(launch: Launch, script: Script) -> None:
    done = launch("--local", "2", "--", sys.executable, script("import jax\njax.devices()\n"))
    assert "2 processes never joined and ran separately" in done.stderr, done.stderr
