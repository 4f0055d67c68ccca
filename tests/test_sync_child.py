"""Whatever the disk under a workdir does, its agent goes on; and what matters overtakes the files on their way."""

from __future__ import annotations

import fcntl
import os
import queue
import random
import selectors
import shutil
import signal
import socket
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from conftest import await_true, busyness, is_alive
from test_agent import Talk, oldest_pythons, talk  # noqa: F401  (a fixture)

from hostmesh.launcher import bundle
from hostmesh.launcher.agent.flow import FILES, Window
from hostmesh.launcher.agent.startup.duties import Duties
from hostmesh.launcher.protocol import wire
from hostmesh.launcher.supervisor.link.channel import Channel, Heard
from hostmesh.launcher.sync.tree import Tree, read_tree

Talking = Callable[..., Talk]
STALLED = 1.5


@pytest.fixture
def short_timeouts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Agents that give a disk less time, so that tests need not wait for a minute."""
    read = bundle.read_sources

    def read_changed(sources: Any) -> dict[str, bytes]:
        files = read(sources)
        name = "hostmesh/launcher/agent/sync/child.py"
        if name in files:
            assert b"STALLED = 60.0" in files[name]
            files = {
                path: data for path, data in files.items() if "agent/sync/__pycache__/child" not in path or path == name
            }
            files[name] = files[name].replace(b"STALLED = 60.0", b"STALLED = %g" % STALLED)
        return files

    monkeypatch.setattr(bundle, "read_sources", read_changed)


@pytest.fixture
def tree(tmp_path: Path) -> Tree:
    (tmp_path / "source").mkdir()
    (tmp_path / "source" / "train.py").write_text("x = 1\n")
    return read_tree(tmp_path / "source")


def big_tree(tmp_path: Path, size: int) -> Tree:
    (tmp_path / "big").mkdir()
    (tmp_path / "big" / "data").write_bytes(random.Random(0).randbytes(size))
    return read_tree(tmp_path / "big")


def children_of(pid: int) -> list[int]:
    return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def memory_of(pid: int) -> int:
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def hear_beats_until(agent: Talk, kind: type) -> tuple[int, Any]:
    beats, deadline = 0, time.monotonic() + 30
    while True:
        event = agent.inbox.get(timeout=max(0.01, deadline - time.monotonic())).event
        if isinstance(event, kind):
            return beats, event
        beats += isinstance(event, wire.Beat)


@pytest.fixture
def frozen(tmp_path: Path) -> Iterator[Callable[[bool], Path]]:
    """A file system of its own that can be frozen: whoever writes to it waits, and no signal ends that."""
    folder, image = tmp_path / "disk", tmp_path / "image"
    folder.mkdir()
    if not all(map(shutil.which, ("mkfs.ext4", "mount", "fsfreeze", "umount"))) or os.geteuid() != 0:
        pytest.skip("no file system can be frozen here")
    image.write_bytes(b"")
    os.truncate(image, 8 << 20)
    subprocess.run(["mkfs.ext4", "-q", "-F", str(image)], check=True, timeout=30, capture_output=True)
    if subprocess.run(["mount", "-o", "loop", str(image), str(folder)], capture_output=True, timeout=240).returncode:
        pytest.skip("no file system can be mounted here")
    is_frozen = False

    def freeze(wanted: bool) -> Path:
        nonlocal is_frozen
        if wanted != is_frozen:
            subprocess.run(["fsfreeze", "-f" if wanted else "-u", str(folder)], check=True, timeout=240)
            is_frozen = wanted
        return folder

    try:
        yield freeze
    finally:
        freeze(False)
        subprocess.run(["umount", "-l", str(folder)], check=True, timeout=240)


@pytest.mark.slow
def test_a_disk_that_does_not_answer_is_named_and_the_agent_goes_on(
    short_timeouts: None,
    talk: Talking,  # noqa: F811
    tree: Tree,
    frozen: Callable[[bool], Path],
) -> None:
    workdir = frozen(True) / "work"
    agent = talk()
    pid = agent.hear(wire.Hello).pid
    agent.channel.send(wire.Sync(str(workdir), tree.encode()))
    await_true(lambda: children_of(pid), 10, "the sync has begun")
    (child,) = children_of(pid)
    beats, refused = hear_beats_until(agent, wire.Refused)
    assert f"the disk under {workdir} has not answered for {STALLED:g} s" in refused.problem and beats >= 1
    began = time.monotonic()
    agent.channel.send(wire.Stop(stacks=False))
    assert agent.hear(wire.Bye).survivors == [child], "which waits for its disk"
    agent.channel.close()
    assert not is_alive(pid) and is_alive(child) and time.monotonic() - began < 20 * busyness()
    frozen(False)
    await_true(lambda: not is_alive(child), 10, "the disk answered, and the child is gone")


def test_a_disk_that_stops_answering_half_way_is_named(
    short_timeouts: None,
    talk: Talking,  # noqa: F811
    tmp_path: Path,
) -> None:
    """The child is stopped, which any machine allows; its agent takes no more than it can hold, and hears a stop."""
    tree = big_tree(tmp_path, 32 << 20)
    agent = talk()
    pid = agent.hear(wire.Hello).pid
    agent.channel.send(wire.Sync(str(tmp_path / "work"), tree.encode()))
    wanted = agent.hear(wire.FilesNeeded).numbers
    (child,) = children_of(pid)
    os.kill(child, signal.SIGSTOP)
    before = memory_of(pid)
    agent.channel.send_pieces(piece for number in wanted for piece in tree.pieces(number))
    beats, refused = hear_beats_until(agent, wire.Refused)
    assert "has not answered" in refused.problem and beats >= 1
    assert memory_of(pid) - before < 3 * FILES.most
    await_true(lambda: not is_alive(child), 10, "the child is gone")
    agent.channel.send(wire.Stop(stacks=False))
    assert agent.hear(wire.Bye).survivors == []


def test_a_stop_ends_a_sync_that_waits_for_its_files(talk: Talking, tmp_path: Path) -> None:  # noqa: F811
    tree = big_tree(tmp_path, 32 << 20)
    agent = talk()
    pid = agent.hear(wire.Hello).pid
    agent.channel.send(wire.Sync(str(tmp_path / "work"), tree.encode()))
    wanted = agent.hear(wire.FilesNeeded).numbers
    (child,) = children_of(pid)
    os.kill(child, signal.SIGSTOP)
    agent.channel.send_pieces(piece for number in wanted for piece in tree.pieces(number))
    agent.channel.send(wire.Stop(stacks=False))
    assert agent.hear(wire.Bye).survivors == []
    assert not is_alive(child)


def test_a_file_beyond_the_window_arrives(talk: Talking, tmp_path: Path) -> None:  # noqa: F811
    tree, agent = big_tree(tmp_path, FILES.most + (4 << 20)), talk()
    agent.channel.send(wire.Sync(str(tmp_path / "work"), tree.encode()))
    wanted = agent.hear(wire.FilesNeeded).numbers
    agent.channel.send_pieces(piece for number in wanted for piece in tree.pieces(number))
    while not isinstance(event := agent.inbox.get(timeout=240).event, wire.Synced):
        if isinstance(event, wire.BytesStored):
            agent.channel.note_taken(event.size)
    assert event == wire.Synced(1, 0)
    assert (tmp_path / "work" / "data").read_bytes() == (tmp_path / "big" / "data").read_bytes()


def test_a_sync_child_that_dies_is_told(talk: Talking, tree: Tree, tmp_path: Path) -> None:  # noqa: F811
    agent = talk()
    pid = agent.hear(wire.Hello).pid
    agent.channel.send(wire.Sync(str(tmp_path / "work"), tree.encode()))
    agent.hear(wire.FilesNeeded)
    for child in children_of(pid):
        os.kill(child, signal.SIGKILL)
    assert agent.hear(wire.Refused).problem == "sync: the process that does it died"


def test_a_sync_that_ended_in_the_same_turn_of_the_loop_is_not_served(tmp_path: Path) -> None:
    """The selector had its socket ready, and what was handled before it was a refusal."""
    said: list[Any] = []
    with selectors.DefaultSelector() as selector:
        duties = Duties(str(tmp_path), selector, said.append, lambda *_: None)
        ours, theirs = socket.socketpair()
        duties.sync = SimpleNamespace(socket=ours, close=ours.close)
        selector.register(ours, selectors.EVENT_READ, duties._serve_sync)
        theirs.close()
        ((key, _),) = selector.select(10)
        duties._refuse("the host is unfit")
        key.data()
    assert [type(event) for event in said] == [wire.Refused]


def test_a_sync_works_on_the_oldest_python_hosts_may_have(talk: Talking, tree: Tree, tmp_path: Path) -> None:  # noqa: F811
    python = next((path for path in map(Path, oldest_pythons()) if path.exists()), None)
    if python is None:
        pytest.skip("no Python 3.9 or 3.10 here")
    agent = talk(python=str(python))
    agent.channel.send(wire.Sync(str(tmp_path / "work"), tree.encode()))
    wanted = agent.hear(wire.FilesNeeded).numbers
    agent.channel.send_pieces(piece for number in wanted for piece in tree.pieces(number))
    assert agent.hear(wire.Synced) == wire.Synced(1, 0)
    (held,) = (tmp_path / "work" / ".hostmesh" / "users").iterdir()
    with held.open() as file, pytest.raises(BlockingIOError):
        fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)


# The launcher's end.


class FakeStream:
    """Takes what is written; a test hears of every message."""

    is_open = True

    def __init__(self) -> None:
        self.written: queue.SimpleQueue[Any] = queue.SimpleQueue()
        self.decoder = wire.Decoder()
        self.is_closed = threading.Event()

    def read(self) -> bytes:
        self.is_closed.wait()
        return b""

    read_errors = read

    def write(self, data: bytes) -> None:
        for message in self.decoder.feed(data):
            self.written.put(message)

    def close(self, timeout: float = 0.0) -> None:
        self.is_closed.set()


@pytest.fixture
def link() -> Iterator[tuple[Channel, FakeStream]]:
    stream = FakeStream()
    made = Channel(0, stream, b"", 1000.0, queue.SimpleQueue())
    yield made, stream
    made.close()


def pieces(count: int) -> Iterator[wire.FileChunk]:
    return (wire.FileChunk(number, True, bytes(1 << 20)) for number in range(count))


def test_orders_overtake_files_that_wait(link: tuple[Channel, FakeStream]) -> None:
    sender, stream = link
    sender._window = Window(FILES, clock=lambda: 0.0)  # of a quick link, however busy this machine is
    sender.send_pieces(pieces(100))
    for number in range(FILES.first >> 20):
        assert stream.written.get(timeout=10).number == number
    sender.send(wire.Stop(stacks=True))
    assert stream.written.get(timeout=10) == wire.Stop(stacks=True)
    sender.note_taken(1 << 20)
    assert [stream.written.get(timeout=10).number for _ in range(2)] == [1, 2], "and the window has grown"
    sender.send(wire.Signal(2))
    assert stream.written.get(timeout=10) == wire.Signal(2)


def test_a_beat_keeps_the_lease_while_files_wait(link: tuple[Channel, FakeStream]) -> None:
    stream = FakeStream()
    sender = Channel(0, stream, b"", 0.1, queue.SimpleQueue())
    sender.send_pieces(pieces(100))
    while not isinstance(stream.written.get(timeout=10), wire.Beat):
        pass
    sender.close()


def test_a_reported_event_is_heard_like_the_hosts_own() -> None:
    inbox: queue.SimpleQueue[Any] = queue.SimpleQueue()
    stream = FakeStream()
    sender = Channel(3, stream, b"", 1000.0, inbox)
    sender.report("event")
    assert inbox.get(timeout=10) == Heard(3, "event")
    sender.close()
