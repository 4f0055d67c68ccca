"""Compiled programs on a host's disk: written whole or not at all, checked when read, bounded, safe to share."""

from __future__ import annotations

import errno
import os
import threading
import time
from pathlib import Path

import pytest
from facts_socket import FactsSocket

from hostmesh.worker.compiling import store as stores
from hostmesh.worker.compiling.kept import KeptPrograms
from hostmesh.worker.compiling.names import describe_machine, is_for_this_machine, name_entry, name_folder
from hostmesh.worker.compiling.store import HEAD_SIZE, Store, make_room
from hostmesh.worker.identity import FACTS_SOCKET, PROCESS_ID

FOLDER = name_folder("0.10.2", "0.10.2")
NAME = name_entry("jit_step-0123")


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(str(tmp_path / "compiled"), FOLDER)


def files(store: Store) -> list[str]:
    return sorted(path.name for path in Path(store.base).rglob("*") if path.is_file())


def test_what_is_put_is_got(store: Store) -> None:
    assert store.get(NAME) is None and store.size_of(NAME) is None
    store.put(NAME, b"program")
    assert store.get(NAME) == b"program" and store.size_of(NAME) == HEAD_SIZE + 7
    assert files(store) == [NAME]


def test_nobody_else_can_look_into_the_folder(store: Store) -> None:
    store.put(NAME, b"program")
    assert [os.stat(path).st_mode & 0o777 for path in (store.base, os.path.join(store.base, FOLDER))] == [0o700] * 2


def test_a_folder_that_others_can_write_to_is_not_used(store: Store) -> None:
    store.put(NAME, b"program")
    os.chmod(store.base, 0o777)
    with pytest.raises(PermissionError, match="others can write there"):
        Store(store.base, FOLDER).get(NAME)
    with pytest.raises(PermissionError, match="others can write there"):
        Store(store.base, FOLDER).put(NAME, b"program")


@pytest.mark.parametrize(
    "damage",
    [
        lambda data: data[:-1],
        lambda data: data + b"x",
        lambda data: data[:-1] + bytes([data[-1] ^ 1]),
        lambda data: b"",
        lambda data: data[HEAD_SIZE:],
    ],
    ids=["cut off", "too long", "a bit", "empty", "without its head"],
)
def test_a_corrupt_entry_is_a_miss_and_is_removed(store: Store, damage: object) -> None:
    store.put(NAME, b"program")
    path = Path(store.path_of(NAME))
    path.write_bytes(damage(path.read_bytes()))  # type: ignore[operator]
    assert store.get(NAME) is None
    assert files(store) == []


def test_no_entry_passes_for_another(store: Store) -> None:
    store.put(NAME, b"program")
    other = name_entry("jit_other-0123")
    os.rename(store.path_of(NAME), store.path_of(other))
    assert store.get(other) is None


@pytest.mark.parametrize("name", ["../" + NAME, "/" + NAME, ".", "", NAME + "/x", NAME.upper(), NAME + "\n"])
def test_no_name_leads_out_of_the_folder(store: Store, name: str) -> None:
    with pytest.raises(ValueError, match="not the name of an entry"):
        store.path_of(name)
    with pytest.raises(ValueError, match="not the name of an entry"):
        Store(store.base, "jax-1/../..").path_of(NAME)


def test_several_writers_and_readers_see_whole_entries_only(store: Store) -> None:
    contents = [bytes([number]) * 200_000 for number in range(4)]
    ends, got = time.monotonic() + 0.5, set()

    def write(content: bytes) -> None:
        own = Store(store.base, FOLDER)
        while time.monotonic() < ends:
            own.put(NAME, content)

    writers = [threading.Thread(target=write, args=(content,)) for content in contents]
    for writer in writers:
        writer.start()
    while time.monotonic() < ends:
        got.add(store.get(NAME))
    for writer in writers:
        writer.join()
    assert got - {None} and got <= {None, *contents}
    assert store.get(NAME) in contents and files(store) == [NAME]  # no reader took one for corrupt at the end


def test_a_full_store_loses_what_was_used_longest_ago(tmp_path: Path) -> None:
    base, names = str(tmp_path), [name_entry(str(number)) for number in range(6)]
    old = Store(base, "jax-0.9.0-0.9.0-0123")
    new = Store(base, FOLDER)
    for age, (store, name) in enumerate(zip((old, new, new, new, new, new), names, strict=True)):
        store.put(name, bytes(1000))
        os.utime(store.path_of(name), (0, 1000 + age))
    assert new.get(names[1]) is not None  # which is a use
    make_room(base, 5 * (1000 + HEAD_SIZE))
    left = {name for name in names if new.size_of(name) or old.size_of(name)}
    assert left == {names[1], *names[3:]}


def test_what_is_written_stays_within_the_bound(tmp_path: Path) -> None:
    store = Store(str(tmp_path), FOLDER, max_bytes=100_000)
    for number in range(100):
        store.put(name_entry(str(number)), bytes(5_000))
    assert sum(path.stat().st_size for path in tmp_path.rglob("*") if path.is_file()) <= 100_000 * 17 // 16
    assert store.get(name_entry("99")) is not None


def test_what_nobody_finished_is_removed(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    for seconds in (0.0, stores.ABANDONED + 1):
        part = store.begin(NAME)
        Path(part).write_bytes(b"half")
        os.utime(part, (0, time.time() - seconds))
    make_room(store.base, 1)
    assert len(files(store)) == 1 and files(store)[0].endswith(".part")


def test_the_processor_is_part_of_the_folders_name(tmp_path: Path) -> None:
    text = "processor\t: 0\nvendor_id\t: X\nflags\t\t: sse avx\ncpu MHz\t: 2000\n\nprocessor\t: 1\n"
    found = []
    for changed in (text, text.replace("2000", "3000"), text.replace("avx", "avx avx512f")):
        (tmp_path / "cpuinfo").write_text(changed)
        found.append(describe_machine(str(tmp_path / "cpuinfo")))
    assert found[0] == found[1] != found[2]
    assert is_for_this_machine(FOLDER) and not is_for_this_machine(FOLDER[:-1] + "x")
    assert describe_machine(str(tmp_path / "missing")) not in found


# What jax is given.


def test_an_entry_that_could_not_be_loaded_is_written_again(tmp_path: Path) -> None:
    first, second = (KeptPrograms(str(tmp_path), "1", "1", None) for _ in range(2))
    first.put("key", b"not loadable")
    assert not first.wants("key")  # somebody has it
    assert second.get("key") == b"not loadable" and second.wants("key")  # it was compiled all the same
    second.put("key", b"good")
    assert first.get("key") == b"good" and not second.wants("key")


def test_what_is_left_alone_is_neither_got_nor_wanted(tmp_path: Path) -> None:
    kept = KeptPrograms(str(tmp_path), "1", "1", None)
    kept.put("key", b"program")
    kept.leave_alone("key")
    assert kept.get("key") is None and not kept.wants("key") and not kept.wants("key")


def test_used_programs_are_noted_once(tmp_path: Path) -> None:
    kept = KeptPrograms(str(tmp_path / "base"), "1", "1", str(tmp_path / "used"))
    kept.put("a", b"program")
    kept.get("a")
    KeptPrograms(str(tmp_path / "base"), "1", "1", None).put("b", b"program")
    assert kept.get("b") and not kept.get("c")
    expected = [f"{name_folder('1', '1')}/{name_entry(key)}" for key in "ab"]
    assert (tmp_path / "used").read_text().splitlines() == expected


def test_a_folder_that_cannot_be_written_is_told_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    agent = FactsSocket(str(tmp_path / "facts"))
    monkeypatch.setenv(FACTS_SOCKET, agent.address)
    monkeypatch.setenv(PROCESS_ID, "0")
    (tmp_path / "file").write_bytes(b"")
    kept = KeptPrograms(str(tmp_path / "file" / "base"), "1", "1", None)
    assert kept.get("a") is None and kept.wants("a")
    for key in "ab":
        kept.put(key, b"program")
    assert kept.get("a") is None and not kept.wants("a")
    [(name, detail)] = agent.facts()
    assert name == "compile cache" and "Not a directory" in detail["problem"]
    agent.socket.close()


def test_on_a_full_disk_programs_are_still_got(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    kept = KeptPrograms(str(tmp_path), "1", "1", None)
    kept.put("a", b"program")

    def fail(*_: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(stores.os, "replace", fail)
    kept.put("b", b"program")
    assert kept.get("a") == b"program" and not kept.wants("b")
    assert [path.name for path in tmp_path.rglob("*") if path.is_file()] == [name_entry("a")]
