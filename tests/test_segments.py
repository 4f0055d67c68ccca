"""Promise 2 for shared memory: what killed processes made in /dev/shm goes with them, and nothing of anybody else's."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from conftest import LiveRun, Script, Start, await_true

from hostmesh.launcher.agent.leftovers.shared_memory import NOTES, SharedMemory, list_held, remove_noted

SHM = Path("/dev/shm")
pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="a matter of Linux")

# A child makes segments that nobody has mapped any more, as a data loader's does that hands them on by name; the worker
# holds one that no resource tracker knows, one that everybody may read, and one of the test's own.
HOLDING = """
import json, mmap, multiprocessing, os, sys, time
from multiprocessing import shared_memory

def make(names):
    for _ in range(5):
        segment = shared_memory.SharedMemory(create=True, size=1 << 16)
        segment.close()
        names.put(segment.name)
    time.sleep(1000)

def hold(name, mode):
    fd = os.open("/dev/shm/" + name, os.O_RDWR | os.O_CREAT, mode)
    os.ftruncate(fd, 4096)
    kept.append(mmap.mmap(fd, 4096))
    os.close(fd)

if __name__ == "__main__":
    os.umask(0o022)
    kept, prefix = [], sys.argv[1]
    context = multiprocessing.get_context("spawn")
    names = context.Queue()
    context.Process(target=make, args=(names,), daemon=True).start()
    made = [names.get() for _ in range(5)]
    for name, mode in (("raw", 0o600), ("public", 0o644), ("shared", 0o600), ("older", 0o600)):
        hold(prefix + name, mode)
    with open("made.partial", "w") as file: json.dump(made, file)
    os.rename("made.partial", "made")
    time.sleep(1000)
"""

Make = Callable[[str], Path]


@pytest.fixture
def prefix() -> Iterator[str]:
    """Of names that no other test uses."""
    chosen = f"hostmesh-test-{os.getpid()}-{os.urandom(4).hex()}-"
    yield chosen
    for path in SHM.glob(f"{chosen}*"):
        path.unlink()


@pytest.fixture
def make(prefix: str) -> Make:
    def make(name: str) -> Path:
        path = SHM / (prefix + name)
        path.touch(0o600)
        return path

    return make


def kill(run: LiveRun, what: str) -> None:
    if what != "Ctrl-C":
        os.kill(run.pid_of(what), signal.SIGKILL)
        return
    for count in (1, 2):
        run.launcher.send_signal(signal.SIGINT)
        run.await_event("interrupted", count)


@pytest.mark.parametrize("what", ["launcher", "agent", "guardian", "worker", "Ctrl-C"])
@pytest.mark.quick("agent", "worker")
def test_shared_memory_goes_with_the_processes_that_made_it(
    start: Start, script: Script, make: Make, prefix: str, what: str
) -> None:
    older = make("older")
    run = start("--local", "1", script(HOLDING), prefix)
    await_true((run.folder / "made").exists, 60, "a worker with its segments")
    made = [SHM / name for name in json.loads((run.folder / "made").read_text())]
    raw, public, shared = (SHM / (prefix + name) for name in ("raw", "public", "shared"))
    assert all(path.exists() for path in (*made, raw, public, shared))
    notes = Path(tempfile.gettempdir()) / f"hostmesh-{run.id}.0" / NOTES
    await_true(lambda: notes.exists() and prefix + "raw" in notes.read_text(), 30, "a look at what is held")
    with shared.open("rb"):
        kill(run, what)
        await_true(lambda: not any(path.exists() for path in (*made, raw)), 30, "no segment left")
        run.wait()
        await_true(lambda: not notes.parent.exists(), 30, "the agent's folder gone")
        assert older.exists() and public.exists() and shared.exists()


def test_what_a_run_leaves_on_purpose_stays(start: Start, script: Script, prefix: str) -> None:
    """It ended in order, and as under plain Python nobody cleans up after it."""
    text = f"import os, time\nos.open('/dev/shm/{prefix}kept', os.O_RDWR | os.O_CREAT, 0o600)\ntime.sleep(2.5)\n"
    run = start("--local", "1", script(text))
    assert run.wait() == 0
    assert (SHM / f"{prefix}kept").exists()


def test_only_what_is_new_and_held_is_noted(make: Make, tmp_path: Path) -> None:
    before = make("before")
    segments = SharedMemory(str(tmp_path))
    after, unheld = make("after"), make("unheld")
    stdin, stdout = before.open("rb"), after.open("rb+")
    with subprocess.Popen(["sleep", "1000"], stdin=stdin, stdout=stdout) as process:
        assert {before.stat().st_ino, after.stat().st_ino} <= list_held(process.pid)
        segments.note_held({process.pid})
        process.kill()
    noted = [json.loads(line) for line in (tmp_path / NOTES).read_text().splitlines()]
    assert noted == [[after.stat().st_ino, after.name]]
    remove_noted(str(tmp_path))
    assert after.exists(), "this process has it open"
    stdout.close()
    remove_noted(str(tmp_path))
    assert not after.exists() and before.exists() and unheld.exists()
    stdin.close()


def test_only_what_is_still_the_same_private_and_unused_is_removed(make: Make, tmp_path: Path) -> None:
    plain, public, replaced, in_use, link = map(make, ("plain", "public", "replaced", "in-use", "link"))
    outside = tmp_path / "outside"
    outside.touch(0o600)
    link.unlink()
    link.symlink_to(outside)
    public.chmod(0o644)
    noted = [(path.lstat().st_ino, path.name) for path in (plain, public, replaced, in_use, link)]
    noted += [(outside.stat().st_ino, str(outside)), (outside.stat().st_ino, f"../..{outside}")]
    make("new").rename(replaced)
    (tmp_path / NOTES).write_text("".join(json.dumps(each) + "\n" for each in noted) + "{}\nhalf a li")
    with in_use.open("rb"):
        remove_noted(str(tmp_path))
    assert not plain.exists()
    assert all(os.path.lexists(path) for path in (public, replaced, in_use, link, outside))
