"""A checkpoint folder belongs to one program at a time, told by name, until that one ends: however it ends."""

from __future__ import annotations

import getpass
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import jax.numpy as jnp
import pytest
from conftest import LiveRun, Script, Start, await_true, clean_env, kill_all, processes_of

from hostmesh.worker.checkpoint import Checkpoint
from hostmesh.worker.errors import CheckpointError
from hostmesh.worker.identity import Identity
from hostmesh.worker.saving import ownership
from hostmesh.worker.saving.ownership import own

# Opens a folder and says so; then on every line it reads it says whether it lost it.
OWNER = """
import sys
from pathlib import Path
from hostmesh.worker.saving import ownership
from hostmesh.worker.errors import CheckpointError
if "elsewhere" in sys.argv:
    ownership.machine_id = lambda: "another host"
sys.stdin.readline()
try:
    held = ownership.own(Path(sys.argv[1]), lambda: None)
except CheckpointError as error:
    print(error, flush=True)
    sys.exit(1)
print("owns", flush=True)
for line in sys.stdin:
    print(held.why_lost(), flush=True)
"""

StartOwner = Callable[..., "subprocess.Popen[str]"]


@pytest.fixture
def start_owner(tmp_path: Path) -> Iterator[StartOwner]:
    """Another program that owns a folder, or is refused."""
    owners: list[subprocess.Popen[str]] = []

    def begin(*args: str, wait: bool = True) -> subprocess.Popen[str]:
        command = [sys.executable, "-c", OWNER, str(tmp_path), *args]
        owner = subprocess.Popen(
            command, env=clean_env(), text=True, bufsize=1, stdin=subprocess.PIPE, stdout=subprocess.PIPE
        )
        owners.append(owner)
        if wait:
            assert ask(owner) == "owns"
        return owner

    yield begin
    for owner in owners:
        with owner:
            owner.kill()


def ask(owner: subprocess.Popen[str]) -> str:
    assert owner.stdin is not None and owner.stdout is not None
    owner.stdin.write("\n")
    return owner.stdout.readline().strip()


def take(folder: Path) -> None:
    own(folder, lambda: None).release()


def test_of_many_that_start_together_one_owns_and_is_named_to_the_others(
    start_owner: StartOwner, tmp_path: Path
) -> None:
    owners = [start_owner(wait=False) for _ in range(6)]
    for owner in owners:
        assert owner.stdin is not None
        owner.stdin.write("\n")
    said = [owner.stdout.readline().strip() for owner in owners if owner.stdout is not None]
    (winner,) = [owner for owner, line in zip(owners, said, strict=True) if line == "owns"]
    name = f"{tmp_path} is in use by -c of {getpass.getuser()} on {os.uname().nodename} (pid {winner.pid}) since 20"
    assert sum(line.startswith(name) for line in said) == 5, said
    assert ask(winner) == "None"


def test_an_owner_that_was_killed_is_followed_at_once(
    start_owner: StartOwner, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ownership, "STALE_AFTER", 1000)
    owner = start_owner()
    owner.kill()
    owner.wait()
    assert os.listdir(tmp_path) == [".owner-1"]
    take(tmp_path)
    assert os.listdir(tmp_path) == []


def test_an_owner_that_is_suspended_here_is_not_dead(start_owner: StartOwner, tmp_path: Path) -> None:
    owner = start_owner()
    os.kill(owner.pid, signal.SIGSTOP)
    with pytest.raises(CheckpointError, match=f"pid {owner.pid}"):
        take(tmp_path)


@pytest.mark.slow
def test_an_owner_elsewhere_that_gives_no_sign_of_life_is_replaced_and_hears_of_it(
    start_owner: StartOwner, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """First it lives, and is not replaced however patient the other is."""
    owner = start_owner("elsewhere")
    with pytest.raises(CheckpointError, match=f"pid {owner.pid}"):
        take(tmp_path)
    os.kill(owner.pid, signal.SIGSTOP)
    monkeypatch.setattr(ownership, "STALE_AFTER", 5)
    mine = own(tmp_path, lambda: None)
    assert "waiting up to 5 s for a sign of life from" in (said := capsys.readouterr().err)
    assert "taken over from" in said and f"pid {owner.pid}" in said
    os.kill(owner.pid, signal.SIGCONT)
    lost = ask(owner)
    assert "gave no sign of life for a while" in lost and f"taken over by {mine.owner}" in lost
    assert owner.stdin is not None
    owner.stdin.close()
    assert owner.wait() == 0
    assert os.listdir(tmp_path) == [".owner-2"], "it gave back what it no longer had"
    mine.release()
    assert os.listdir(tmp_path) == []


def test_a_filesystem_that_was_away_says_nothing_about_the_owner(
    start_owner: StartOwner, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One look that takes long is not a long time without a sign of life."""
    start_owner("elsewhere")
    now = iter(range(0, 10**6, 30))
    monkeypatch.setattr(ownership.time, "monotonic", lambda: float(next(now)))
    with pytest.raises(CheckpointError, match="in use by"):
        take(tmp_path)


def test_the_next_attempt_of_a_run_takes_over_at_once_but_not_the_same_one(
    start_owner: StartOwner, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ownership, "STALE_AFTER", 1000)

    def be(attempt: int) -> None:
        for name, value in Identity("1117-abc", attempt, "gpu-a", 0, 1, 0, "").to_env().items():
            monkeypatch.setenv(name, value)

    be(1)
    monkeypatch.setattr(ownership, "machine_id", lambda: "a host that was lost")
    first = own(tmp_path, lambda: None)
    ownership._held.clear()  # as another process would see it
    monkeypatch.setattr(ownership, "machine_id", lambda: "another host")
    with pytest.raises(CheckpointError, match=r"in use by run 1117-abc of .* on gpu-a"):
        take(tmp_path)
    be(2)
    second = own(tmp_path, lambda: None)
    assert first.why_lost() is not None and second.why_lost() is None
    second.release()
    first.release()
    assert os.listdir(tmp_path) == []


def test_an_owner_that_died_before_it_wrote_its_name_is_replaced(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ownership, "STALE_AFTER", 0.3)
    (tmp_path / ".owner-7").touch()
    take(tmp_path)
    assert os.listdir(tmp_path) == []


def test_one_whose_name_cannot_be_read_yet_is_waited_for(tmp_path: Path) -> None:
    (tmp_path / ".owner-7").touch()
    leaving = threading.Timer(0.3, (tmp_path / ".owner-7").unlink)
    leaving.start()
    take(tmp_path)
    leaving.join()


def test_a_forked_child_gives_nothing_back(tmp_path: Path) -> None:
    code = f"""
import os, sys
from pathlib import Path
from hostmesh.worker.saving.ownership import own
held = own(Path({str(tmp_path)!r}), lambda: None)
if (pid := os.fork()) == 0:
    sys.exit()
os.waitpid(pid, 0)
assert held.why_lost() is None, held.why_lost()
"""
    subprocess.run([sys.executable, "-c", code], env=clean_env(), check=True)
    assert os.listdir(tmp_path) == []


# Real runs of two processes: saves a step after another until the file `finish` is there.
SAVE = """
import os, sys, time
from pathlib import Path
import jax, numpy as np
from jax.sharding import NamedSharding, PartitionSpec as P
import hostmesh
from hostmesh.worker.saving import ownership
from hostmesh.worker.process.coordination import exchange
from hostmesh.worker.process.facts import send_fact

ownership.STALE_AFTER = 1000  # nothing here is to wait so long
hostmesh.join()
sharding = NamedSharding(hostmesh.make_mesh(data=-1), P("data"))

def make(step):
    values = np.full((256, 1024), step, np.float32)
    return {"w": jax.make_array_from_callback(values.shape, sharding, lambda index: values[index])}

began = time.monotonic()
kept = hostmesh.Checkpoint("kept", data_spec={}, keep=2, read_only="read" in sys.argv)
send_fact("opened", must_arrive=True, seconds=time.monotonic() - began)
found = kept.restore(make(0))
step = found[1] if found else 0
if found:
    assert all((np.asarray(part.data) == step).all() for part in found[0]["w"].addressable_shards)
if "read" not in sys.argv:
    while not exchange("look for the end", Path("finish").exists())[0] or step < 3:
        step += 1
        kept.save(step, make(step), step)
        time.sleep(0.02)
kept.close()
"""


def has_saved(run: LiveRun, count: int) -> bool:
    """Without waiting for a run that may have been refused."""
    return run.has_seen("saved", count)


def assert_refused(run: LiveRun, owner: LiveRun) -> None:
    assert run.wait(timeout=100) == 1, run.stderr
    name = f"is in use by run {owner.id} of {getpass.getuser()} on localhost (pid "
    assert name in run.stderr and "wanted one owner at a time" in run.stderr
    assert "Traceback" not in run.stderr and not run.has_seen("saved", 1)


def assert_whole(folder: Path, most: int = 2) -> None:
    """Nothing but complete steps, the newest of which is what was saved."""
    assert len(os.listdir(folder)) <= most and all(name.isdecimal() for name in os.listdir(folder))
    reading = Checkpoint(folder, data_spec={}, read_only=True)
    found: Any = reading.restore({"w": jnp.zeros((256, 1024))})
    assert (found[0]["w"] == found[1]).all() and found[1] == max(map(int, os.listdir(folder)))
    reading.close()


@pytest.mark.slow
def test_of_two_runs_one_trains_to_its_end_and_the_other_is_told_which(
    start: Start, script: Script, tmp_path: Path
) -> None:
    """Started together, and one while the other saves; a third may read meanwhile."""
    name = script(SAVE)
    runs = [start("--local", "2", name), start("--local", "2", name)]
    await_true(lambda: any(has_saved(run, 3) for run in runs), 100, "one of them saves")
    winner, refused = runs if has_saved(runs[0], 1) else reversed(runs)
    assert_refused(refused, winner)
    assert_refused(start("--local", "2", name), winner)
    reader = start("--local", "2", name, "read")
    assert reader.wait(timeout=100) == 0, reader.stderr
    seen = sum(event["event"] == "saved" for event in winner.seen)
    await_true(lambda: has_saved(winner, seen + 2), 100, "it goes on saving")
    (tmp_path / "finish").touch()
    assert winner.wait(timeout=100) == 0, winner.stderr
    assert_whole(tmp_path / "kept")


def test_a_run_whose_processes_were_all_killed_is_followed_within_seconds(
    start: Start, script: Script, tmp_path: Path
) -> None:
    name = script(SAVE)
    killed = start("--local", "2", name)
    killed.await_event("saved", count=3, timeout=100)
    killed.launcher.kill()
    kill_all(processes_of(killed.id))
    await_true(lambda: not processes_of(killed.id), 20, "everything is gone")
    assert [entry for entry in os.listdir(tmp_path / "kept") if entry.startswith(".owner")] == [".owner-1"]
    (tmp_path / "finish").touch()
    after = start("--local", "2", name)
    assert after.wait(timeout=100) == 0, after.stderr
    assert_whole(tmp_path / "kept", most=3)  # it may have been killed before it removed the oldest
