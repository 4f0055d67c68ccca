"""What processes tell each other: everyone hears the same, a difference is named on all, and every wait ends."""

from __future__ import annotations

import json
import subprocess
from typing import Any

import pytest
from conftest import LAUNCH, Launch, Script, clean_env

from hostmesh.worker.errors import DataError
from hostmesh.worker.process.coordination import exchange, name_processes, require_same, share_failure

pytestmark = pytest.mark.xdist_group("agree")  # one worker has the one run

# One run of three processes holds all meetings; each process prints what it learnt as one line of JSON.
MEETINGS = """
import json, time
import jax
from jax._src import distributed
from hostmesh.worker.process.coordination import exchange, require_same, share_failure
from hostmesh.worker.errors import DataError

jax.distributed.initialize()
me = jax.process_index()
client = distributed.global_state.client
found = {}

def note(name, act):
    began = time.monotonic()
    try:
        act()
        found[name] = None
    except Exception as error:
        found[name] = f"{type(error).__name__}: {error}"
    found[f"{name}, seconds"] = time.monotonic() - began

def open_source(torn):
    with share_failure("open the source"):
        if torn and me == 2:
            raise DataError("record 7 is torn")

found["values"] = exchange("say who they are", {"me": me, "pair": (me, "ä/ %")})
found["again"] = [exchange("count", me + 10 * k) for k in range(50)]
found["keys left"] = len(client.key_value_dir_get("hostmesh/"))
settings = {"batch_size": 128 if me == 2 else 256, "seed": 1, "order": [2, me], **({"tail": "pad"} if me == 1 else {})}
note("same", lambda: require_same("build the loader", {"seed": 1, "names": ["a"]}))
note("different", lambda: require_same("build the loader", settings))
note("nobody fails", lambda: open_source(torn=False))
note("one fails", lambda: open_source(torn=True))
if me == 1:
    # Comes only when the others have given up.
    client.blocking_key_value_get("gave up", 20_000)
    note("late", lambda: exchange("arrive", me, timeout=20))
else:
    note("late", lambda: exchange("arrive", me, timeout=0.3))
    client.key_value_set("gave up", "", allow_overwrite=True)
found["after"] = exchange("arrive", me)
print(json.dumps(found))
jax.distributed.shutdown()
"""


@pytest.fixture(scope="module")
def learnt(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    """By process id."""
    folder = tmp_path_factory.mktemp("meetings")
    (folder / "meetings.py").write_text(MEETINGS)
    run = subprocess.run(
        [*LAUNCH, "--show", "all", "--local", "3", "meetings.py"],
        cwd=folder,
        env=clean_env(),
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert run.returncode == 0, run.stdout + run.stderr
    lines = sorted(line for line in run.stdout.splitlines() if "{" in line)
    return [json.loads(line.partition("] ")[2]) for line in lines]


def test_everyone_hears_every_value_by_process_id(learnt: list[dict[str, Any]]) -> None:
    everyone = [{"me": me, "pair": [me, "ä/ %"]} for me in range(3)]
    assert [found["values"] for found in learnt] == [everyone] * 3


def test_repeated_exchanges_pair_up_and_leave_no_more_than_the_last(learnt: list[dict[str, Any]]) -> None:
    assert all(found["again"] == [[10 * k, 10 * k + 1, 10 * k + 2] for k in range(50)] for found in learnt)
    # Two kinds of exchange so far: of each at most the last one's three values and outcome, and one being deleted.
    assert all(found["keys left"] <= 12 for found in learnt)


def test_what_is_the_same_passes(learnt: list[dict[str, Any]]) -> None:
    assert [found["same"] for found in learnt] == [None] * 3


def test_a_difference_is_named_on_every_process_majority_first(learnt: list[dict[str, Any]]) -> None:
    wanted = (
        "DisagreementError: wanted the same on all processes to build the loader; found "
        "batch_size: processes 0, 1 have 256, process 2 has 128; "
        "order: process 0 has [2, 0], process 1 has [2, 1], process 2 has [2, 2]; "
        'tail: processes 0, 2 have none, process 1 has "pad"'
    )
    assert [found["different"] for found in learnt] == [wanted] * 3


def test_when_one_fails_all_fail_and_the_others_name_it(learnt: list[dict[str, Any]]) -> None:
    heard = "PeerFailedError: process 2 failed to open the source: DataError: record 7 is torn"
    assert [found["nobody fails"] for found in learnt] == [None] * 3
    assert [found["one fails"] for found in learnt] == [heard, heard, "DataError: record 7 is torn"]


def test_a_wait_ends_and_names_who_is_missing(learnt: list[dict[str, Any]]) -> None:
    gave_up = "DisagreementError: waited 0.3 s for process 1 to arrive"
    assert [found["late"] for found in learnt] == [gave_up, f"{gave_up}; this process came too late", gave_up]
    assert learnt[1]["late, seconds"] < 5, "the latecomer waited although the others had left"
    assert [found["after"] for found in learnt] == [[0, 1, 2]] * 3


def test_a_failing_process_waits_for_nobody(launch: Launch, script: Script) -> None:
    """The others never come to the meeting; the launcher ends them once the failure is known."""
    text = """
import jax, signal
from hostmesh.worker.process.coordination import share_failure
jax.distributed.initialize()
with share_failure("open the source"):
    if jax.process_index() == 1:
        raise ValueError("no such file")
    signal.pause()
"""
    run = launch("--local", "2", script(text), timeout=240)
    assert run.returncode == 1
    assert "process 1 on localhost exited with 1" in run.stderr and "ValueError: no such file" in run.stderr


def test_alone_nobody_is_asked() -> None:
    assert exchange("be alone", {"pair": (1, 2)}) == [{"pair": [1, 2]}]
    require_same("be alone", {"seed": 1})
    with pytest.raises(DataError, match="torn"), share_failure("be alone"):
        raise DataError("torn")


@pytest.mark.parametrize(
    ("ids", "name"),
    [
        ([4], "process 4"),
        ([3, 1], "processes 1, 3"),
        ([0, 1, 2], "processes 0, 1, 2"),
        ([0, 2, 3, 4, 5, 63], "processes 0, 2 to 5, 63"),
    ],
)
def test_processes_are_named_shortly(ids: list[int], name: str) -> None:
    assert name_processes(ids) == name
