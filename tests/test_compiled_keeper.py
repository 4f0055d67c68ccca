"""The agent's part in carrying compiled programs: what it tells, finds, reads and stores, whatever it is sent."""

from __future__ import annotations

import os
import selectors
import socket
import time
from pathlib import Path
from typing import Any

import pytest

from hostmesh.launcher.agent.compiled.child import CompiledChild
from hostmesh.launcher.agent.compiled.keeper import Keeper
from hostmesh.launcher.agent.compiled.place import find_base
from hostmesh.launcher.protocol import wire
from hostmesh.worker.compiling.names import name_entry, name_folder
from hostmesh.worker.compiling.store import HEAD_SIZE, Store

FOLDER = name_folder("0.10.2", "0.10.2")
OTHER_MACHINE = "jax-0.10.2-0.10.2-000000000000"
A, B, C = (name_entry(key) for key in "abc")


class Host:
    def __init__(self, folder: Path) -> None:
        self.base, self.used = folder / "compiled", folder / "used"
        self.store = Store(str(self.base), FOLDER)
        self.keeper = Keeper(str(self.base), str(self.used))

    def ask(self, message: Any) -> Any:
        [answer] = self.keeper.answer(message)
        return answer

    def use(self, *names: str, folder: str = FOLDER) -> None:
        with self.used.open("a") as file:
            file.writelines(f"{folder}/{name}\n" for name in names)

    def files(self) -> list[str]:
        return sorted(str(path.relative_to(self.base)) for path in self.base.rglob("*") if path.is_file())


@pytest.fixture
def host(tmp_path: Path) -> Host:
    return Host(tmp_path / "a")


def carry(source: Host, target: Host, name: str, size: int = 100) -> list[bool]:
    """As the launcher does."""
    total, start, stored = source.store.size_of(name), 0, []
    while start < (total or 0):
        piece = source.ask(wire.ReadCompiled(FOLDER, name, start, size))
        stored.append(target.ask(wire.StoreCompiled(FOLDER, name, start, total or 0, piece.data)).ok)
        start += len(piece.data)
    return stored


def test_what_process_0_used_is_told_once_and_with_its_size(host: Host) -> None:
    host.store.put(A, b"program")
    assert host.keeper.answer(wire.ShareCompiled()) == []
    host.use(A, A, B)  # B has gone by now
    assert host.keeper.look() == [wire.CompiledUsed(FOLDER, {A: HEAD_SIZE + 7})]
    host.use(A)
    assert host.keeper.look() == []


def test_half_a_line_waits_for_its_other_half(host: Host) -> None:
    host.store.put(A, b"program")
    host.used.write_text(f"{FOLDER}/{A}"[:-5])
    assert host.keeper.answer(wire.ShareCompiled()) == []
    host.used.write_text(f"{FOLDER}/{A}\n")
    assert [each.sizes for each in host.keeper.look()] == [{A: HEAD_SIZE + 7}]


def test_nothing_is_told_unless_the_launcher_asks(host: Host) -> None:
    host.store.put(A, b"program")
    host.use(A)
    assert host.keeper.look() == []


def test_lines_that_are_no_names_are_not_told(host: Host) -> None:
    host.store.put(A, b"program")
    host.use("../../x", A + "/..", "", folder=FOLDER)
    host.use(A, folder="..")
    assert host.keeper.answer(wire.ShareCompiled()) == []


def test_what_a_host_lacks(host: Host) -> None:
    host.store.put(A, b"program")
    assert host.ask(wire.FindCompiled(FOLDER, [A, B, "../x"])).names == [B]


def test_programs_for_another_processor_are_not_wanted(host: Host) -> None:
    assert host.ask(wire.FindCompiled(OTHER_MACHINE, [A])).names == []
    assert not host.ask(wire.StoreCompiled(OTHER_MACHINE, A, 0, 100, b"x" * 100)).ok
    assert not host.base.exists()


def test_a_host_that_cannot_keep_programs_wants_none(tmp_path: Path) -> None:
    (tmp_path / "compiled").write_bytes(b"")
    assert Host(tmp_path).ask(wire.FindCompiled(FOLDER, [A])).names == []


@pytest.mark.parametrize("size", [10, 100, 1 << 20])
def test_a_program_is_carried_in_pieces(tmp_path: Path, size: int) -> None:
    source, target = Host(tmp_path / "a"), Host(tmp_path / "b")
    content = os.urandom(1000)
    source.store.put(A, content)
    assert all(carry(source, target, A, size))
    assert target.store.get(A) == content and target.files() == [f"{FOLDER}/{A}"]


def test_a_program_that_was_damaged_on_its_way_is_refused(tmp_path: Path) -> None:
    source, target = Host(tmp_path / "a"), Host(tmp_path / "b")
    source.store.put(A, b"program")
    path = Path(source.store.path_of(A))
    path.write_bytes(path.read_bytes()[:-1] + b"x")
    assert carry(source, target, A) == [False]
    assert target.files() == []


def test_pieces_that_do_not_fit_are_refused(tmp_path: Path) -> None:
    source, target = Host(tmp_path / "a"), Host(tmp_path / "b")
    source.store.put(A, bytes(1000))
    data = Path(source.store.path_of(A)).read_bytes()
    first = wire.StoreCompiled(FOLDER, A, 0, len(data), data[:500])
    assert not target.ask(first._replace(start=500)).ok  # the first is missing
    assert target.ask(first).ok
    assert not target.ask(first._replace(start=400)).ok
    assert not target.ask(first._replace(start=500, data=data[500:])).ok  # it was given up
    assert target.ask(first).ok
    assert not target.ask(first._replace(name=B, start=500)).ok
    assert target.ask(first._replace(start=500, data=data[500:])).ok
    assert target.files() == [f"{FOLDER}/{A}"]


def test_a_program_that_is_not_finished_leaves_nothing(tmp_path: Path) -> None:
    target = Host(tmp_path / "b")
    assert target.ask(wire.StoreCompiled(FOLDER, A, 0, 1000, b"x")).ok
    assert target.ask(wire.StoreCompiled(FOLDER, B, 0, 1000, b"x")).ok
    [file] = target.files()
    assert file.startswith(f"{FOLDER}/{B}.")
    assert not target.ask(wire.StoreCompiled(FOLDER, B, 1, 1000, b"")).ok


@pytest.mark.parametrize(
    ("folder", "name", "size"),
    [
        ("..", A, 1000),
        ("jax-/../../x", A, 1000),
        (FOLDER, "../" + A, 1000),
        (FOLDER, "/etc/passwd", 1000),
        (FOLDER, A, 1 << 40),
        (FOLDER, A, -1),
        (FOLDER, A, "many"),
        (FOLDER, None, 1000),
    ],
)
def test_nothing_is_written_under_names_that_are_none(tmp_path: Path, folder: str, name: Any, size: Any) -> None:
    target = Host(tmp_path / "b")
    assert not target.ask(wire.StoreCompiled(folder, name, 0, size, b"x" * 1000)).ok
    assert target.ask(wire.ReadCompiled(folder, name, 0, 1000)).data == b""
    assert [path for path in tmp_path.rglob("*") if path.is_file()] == []


def test_a_program_that_is_gone_has_no_pieces(host: Host) -> None:
    assert host.ask(wire.ReadCompiled(FOLDER, A, 0, 100)).data == b""


def test_where_programs_are_kept() -> None:
    assert find_base({"HOME": "/home/me"}) == "/home/me/.cache/hostmesh/compiled"
    assert find_base({"HOME": "/home/me", "XDG_CACHE_HOME": "/fast"}) == "/fast/hostmesh/compiled"
    assert find_base({"HOME": "/home/me", "XDG_CACHE_HOME": "fast"}) == "/home/me/.cache/hostmesh/compiled"
    assert find_base({}) == os.path.expanduser("~/.cache/hostmesh/compiled")


@pytest.mark.filterwarnings("ignore:os.fork:RuntimeWarning")  # other tests may have imported jax here; no agent does
def test_the_child_answers_the_agent_and_is_started_again(tmp_path: Path) -> None:
    host, heard = Host(tmp_path), []
    host.store.put(A, bytes(3 << 20))
    with selectors.DefaultSelector() as selector:
        child = CompiledChild(selector, heard.append, lambda: str(host.base), str(host.used))
        for _ in range(2):
            child.obey(wire.FindCompiled(FOLDER, [A, C]))
            child.obey(wire.ReadCompiled(FOLDER, A, 0, 2 << 20))
            serve(selector, lambda: len(heard) >= 2)
            assert [type(answer) for answer in heard] == [wire.CompiledLacking, wire.CompiledPiece]
            assert heard[0].names == [C] and len(heard[1].data) == 2 << 20
            heard.clear()
            end(child, selector)


def serve(selector: selectors.BaseSelector, is_done: Any) -> None:
    deadline = time.monotonic() + 20
    while not is_done() and time.monotonic() < deadline:
        for key, _ in selector.select(1):
            key.data()


def end(child: CompiledChild, selector: selectors.BaseSelector) -> None:
    """Its end is noticed: as when an attempt ends, and all below the agent is killed."""
    link = child._link
    assert link is not None
    link.socket.shutdown(socket.SHUT_WR)
    serve(selector, lambda: not selector.get_map())
    os.wait()
