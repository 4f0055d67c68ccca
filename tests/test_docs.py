"""What the documentation shows works as it stands."""

from __future__ import annotations

import re

import pytest
from conftest import REPO, Launch, Script

BEFORE = """
import sys
import jax
import hostmesh

hostmesh.join()
mesh = hostmesh.make_mesh(data=-1)
loader = hostmesh.Loader("digits:train", mesh, 64, steps=12)
state = jax.device_put(jax.numpy.float32(0), jax.NamedSharding(mesh, jax.P()))

@jax.jit
def train_step(state, batch):
    return state + batch["label"].sum()
"""
AFTER = """
print("reached", loader.step, "from", found and found[1], "sum", float(state))
"""


@pytest.mark.slow
def test_the_pages_way_to_stop_and_go_on(launch: Launch, script: Script) -> None:
    page = (REPO / "docs" / "loading.md").read_text()
    shown = re.findall(r"```python\n(.*?)```", page, re.DOTALL)[-1]
    program = script(BEFORE + shown.replace("/shared/run1", "saved") + AFTER)
    for _ in range(2):  # saved only at a thousandth step or when stopped: it begins anew
        done = launch("--local", "2", program)
        assert done.returncode == 0, done.stdout + done.stderr
        assert done.stdout.count("reached 12 from None") == 2
    program = script(BEFORE + shown.replace("/shared/run1", "saved").replace("1000", "5") + AFTER)
    assert launch("--local", "2", program).returncode == 0
    again = launch("--local", "4", program)
    assert again.returncode == 0, again.stdout + again.stderr
    assert again.stdout.count("reached 12 from 10") == 4
    assert len({line.partition("sum ")[2] for line in (done.stdout + again.stdout).splitlines()}) == 1
