"""A host's workdir becomes the launcher's tree, whatever is in it, and nothing else on the host changes."""

from __future__ import annotations

import fcntl
import json
import os
import random
import shutil
import stat
import subprocess
import sys
import tempfile
import time
import zlib
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from apart import call_apart, drop_rights, fail_apart
from conftest import busyness, clean_env

from hostmesh.launcher.agent.sync import compare, incoming
from hostmesh.launcher.agent.sync.incoming import Incoming, SyncError
from hostmesh.launcher.protocol import wire
from hostmesh.launcher.sync.tree import Tree, read_tree

ODD_NAMES = [b"a'; echo foo", b"two  words", b"line\nbreak", b"\xff\xfe not UTF-8", "é☃".encode(), b'"', b"-rf", b"~"]


@pytest.fixture
def source(tmp_path: Path) -> Path:
    (tmp_path / "source").mkdir()
    return tmp_path / "source"


@pytest.fixture
def workdir(tmp_path: Path) -> Path:
    return tmp_path / "host" / "workdir"


def write(root: Path, *paths: str, text: str = "x") -> None:
    for path in paths:
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        (root / path).write_text(text)


def over_the_wire(message: Any) -> Any:
    (heard,) = wire.Decoder().feed(wire.encode(message))
    return heard


def begin(tree: Tree, workdir: Path) -> tuple[Incoming, list[int]]:
    order = over_the_wire(wire.Sync(str(workdir), tree.encode()))
    incoming = Incoming(order.workdir, order.data)
    try:
        wanted = over_the_wire(wire.FilesNeeded(incoming.compare())).numbers
    except SyncError:
        incoming.close()
        raise
    incoming.expect(wanted)
    return incoming, wanted


def send(tree: Tree, incoming: Incoming, wanted: list[int]) -> bool:
    complete = not wanted
    for number in wanted:
        for piece in tree.pieces(number):
            complete = incoming.store(*over_the_wire(piece))
    return complete


def finish(incoming: Incoming) -> tuple[int, int]:
    """As the agent does, whose child places while it goes on."""
    try:
        return incoming.apply()
    finally:
        incoming.close()


def bring(tree: Tree, workdir: Path) -> tuple[list[str], int, int]:
    """Sync; which files travelled, how many were written and deleted."""
    incoming, wanted = begin(tree, workdir)
    assert send(tree, incoming, wanted)
    written, deleted = finish(incoming)
    return [tree.entries[number].path for number in wanted], written, deleted


def see(root: Path) -> dict[str, tuple[str, int, bytes]]:
    """Everything below a folder but what sync keeps there: kind, mode, content."""
    seen = {}
    for path in root.rglob("*"):
        name = str(path.relative_to(root))
        if name.split("/")[0] == ".hostmesh" or (path.is_dir() and not path.is_symlink()):
            continue
        if path.is_symlink():
            seen[name] = ("link", 0, os.fsencode(os.readlink(path)))
        else:
            seen[name] = ("file", stat.S_IMODE(path.stat().st_mode), path.read_bytes())
    return seen


def folders(root: Path) -> set[str]:
    found = {str(path.relative_to(root)) for path in root.rglob("*") if path.is_dir() and not path.is_symlink()}
    return {name for name in found if not name.startswith(".hostmesh")}


def staged(workdir: Path) -> list[str]:
    return os.listdir(workdir / ".hostmesh" / "staging")


def is_locked(workdir: Path) -> bool:
    with (workdir / ".hostmesh" / "lock").open("r+") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
    return False


# What arrives.


def test_a_first_sync_makes_the_workdir_equal(source: Path, workdir: Path) -> None:
    write(source, "train.py", "package/deep/er/module.py", "empty", text="")
    write(source, "run.sh", text="#!/bin/sh\n")
    (source / "run.sh").chmod(0o755)
    (source / "read_only").write_bytes(random.Random(0).randbytes(3 << 20))
    (source / "read_only").chmod(0o400)
    (source / "package" / "link").symlink_to("../train.py")
    assert bring(read_tree(source), workdir)[1:] == (6, 0)
    assert see(workdir) == see(source)
    assert staged(workdir) == []
    assert not is_locked(workdir)


def test_only_what_changed_travels(source: Path, workdir: Path) -> None:
    write(source, "a.py", "b.py", "c.py", "d.py")
    bring(read_tree(source), workdir)
    write(source, "b.py", text="y")
    write(source, "new.py")
    (source / "a.py").rename(source / "moved.py")
    os.utime(source / "c.py", (1, 1))
    (source / "d.py").chmod(0o700)
    assert bring(read_tree(source), workdir) == (["b.py", "moved.py", "new.py"], 3, 1)
    assert see(workdir) == see(source)
    assert bring(read_tree(source), workdir) == ([], 0, 0)


@pytest.fixture
def examined(monkeypatch: pytest.MonkeyPatch) -> list[bytes]:
    """The names of the files that a look had to read."""
    names: list[bytes] = []
    examine = compare.examine
    monkeypatch.setattr(compare, "examine", lambda name, *rest: (names.append(name), examine(name, *rest))[1])
    return names


def test_an_unchanged_file_is_not_read_again(source: Path, workdir: Path, examined: list[bytes]) -> None:
    write(source, "a.py", "b.py")
    bring(read_tree(source), workdir)
    (workdir / "b.py").write_text("z")
    assert bring(read_tree(source), workdir)[0] == ["b.py"]
    assert examined == [b"b.py"]


def test_a_file_the_host_changed_a_moment_ago_is_read_again(
    source: Path, workdir: Path, examined: list[bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    """It may change once more within the same tick of the file system's clock."""
    write(source, "a.py")
    write(workdir, "a.py")
    for _ in range(2):
        bring(read_tree(source), workdir)
    assert examined == [b"a.py"] * 2
    now = time.time_ns()
    monkeypatch.setattr(time, "time_ns", lambda: now + 10**10)
    for _ in range(2):
        bring(read_tree(source), workdir)
    assert examined == [b"a.py"] * 3


@pytest.mark.parametrize("change", ["content", "mode", "link", "gone"])
def test_what_the_host_changed_is_put_right(source: Path, workdir: Path, change: str) -> None:
    """At once, and without a change of size: no clock need have ticked since the sync."""
    write(source, "a.py", "b.py")
    tree = read_tree(source)
    bring(tree, workdir)
    file = workdir / "a.py"
    if change == "content":
        file.write_text("y")
    elif change == "mode":
        file.chmod(0o777)
    else:
        file.unlink()
        if change == "link":
            file.symlink_to("b.py")
    bring(tree, workdir)
    assert see(workdir) == see(source)


def test_what_the_host_has_already_does_not_travel(source: Path, workdir: Path) -> None:
    write(source, "a.py", "b.py")
    write(workdir, "a.py")
    write(workdir, "b.py", text="older")
    assert bring(read_tree(source), workdir)[0] == ["b.py"]
    (source / "a.py").unlink()
    (source / "b.py").unlink()
    assert bring(read_tree(source), workdir) == ([], 0, 1)
    assert list(see(workdir)) == ["a.py"], "which no sync wrote"


def test_changed_code_is_what_runs(source: Path, workdir: Path) -> None:
    """Python trusts cached code while a module's size and second stay the same."""
    for value in range(5):
        write(source, "module.py", text=f"print({value})\n")
        bring(read_tree(source), workdir)
        command = [sys.executable, "-c", "import sys; sys.path[0] = '.'; import module"]
        done = subprocess.run(command, cwd=workdir, env=clean_env(), capture_output=True, text=True, timeout=240)
        assert done.stdout == f"{value}\n", done.stderr
    assert list((workdir / "__pycache__").iterdir())


@pytest.mark.parametrize("name", ODD_NAMES)
def test_odd_names_arrive(source: Path, workdir: Path, name: bytes) -> None:
    folder = os.path.join(os.fsencode(source), name)
    os.mkdir(folder)
    Path(os.fsdecode(folder), os.fsdecode(name)).write_text("x")
    os.symlink(name, os.path.join(folder, b"link"))
    bring(read_tree(source), workdir)
    assert see(workdir) == see(source)
    shutil.rmtree(folder)
    assert bring(read_tree(source), workdir) == ([], 0, 2)
    assert folders(workdir) == set()


def test_a_home_folder_is_found_and_workdir_may_be_a_link(
    source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(source, "a.py")
    (tmp_path / "real").mkdir()
    (tmp_path / "home").symlink_to("real")
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    incoming, wanted = begin(tree := read_tree(source), Path("~/job"))
    send(tree, incoming, wanted)
    finish(incoming)
    assert see(tmp_path / "real" / "job") == see(source)


# What goes.


def test_only_what_a_sync_wrote_is_deleted(source: Path, workdir: Path) -> None:
    write(source, "keep.py", "gone/deep/a.py", "gone/b.py", "shared/c.py", "changed.py")
    bring(read_tree(source), workdir)
    write(workdir, "results/loss.csv", "shared/checkpoint")
    write(workdir, "changed.py", text="by the host")
    (workdir / "own").mkdir()
    for path in ("gone", "shared"):
        shutil.rmtree(source / path)
    (source / "changed.py").unlink()
    assert bring(read_tree(source), workdir) == ([], 0, 4)
    assert set(see(workdir)) == {"keep.py", "results/loss.csv", "shared/checkpoint"}
    assert folders(workdir) == {"results", "shared", "own"}


def test_a_folder_that_took_a_files_place_is_not_deleted(source: Path, workdir: Path) -> None:
    write(source, "a", "b.py")
    bring(read_tree(source), workdir)
    (workdir / "a").unlink()
    write(workdir, "a/result")
    (source / "a").unlink()
    assert bring(read_tree(source), workdir) == ([], 0, 0)
    assert set(see(workdir)) == {"a/result", "b.py"}


def test_nothing_is_deleted_when_the_manifest_is_lost(source: Path, workdir: Path) -> None:
    write(source, "a.py", "b.py")
    bring(read_tree(source), workdir)
    (workdir / ".hostmesh" / "manifest.json").write_text("{half")
    (source / "a.py").unlink()
    assert bring(read_tree(source), workdir) == ([], 0, 0)
    assert set(see(workdir)) == {"a.py", "b.py"}


def make(root: Path, kind: str) -> None:
    if kind == "file":
        write(root, "thing")
    elif kind == "folder":
        write(root, "thing/deep/a.py", "thing/b.py")
    else:
        (root / "thing").symlink_to("other")


def remove(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink()


@pytest.mark.parametrize("before", ["file", "folder", "link"])
@pytest.mark.parametrize("after", ["file", "folder", "link"])
def test_files_folders_and_links_take_each_others_place(source: Path, workdir: Path, before: str, after: str) -> None:
    write(source, "other/c.py")
    make(source, before)
    bring(read_tree(source), workdir)
    remove(source / "thing")
    make(source, after)
    bring(read_tree(source), workdir)
    assert see(workdir) == see(source)
    assert folders(workdir) == folders(source)


# What is in the way.


@pytest.mark.parametrize("content", ["thing/result", "thing/deep/result", None])
def test_a_folder_of_the_hosts_own_is_not_replaced(source: Path, workdir: Path, content: str | None) -> None:
    write(source, "thing", "new.py")
    (workdir / "thing").mkdir(parents=True)
    if content:
        write(workdir, content)
    with pytest.raises(SyncError, match=r"thing.* in .*workdir is .* where the code has a file; move it away"):
        bring(read_tree(source), workdir)
    assert set(see(workdir)) == ({content} if content else set())
    assert not is_locked(workdir)


def test_a_folder_of_ours_that_holds_a_result_is_not_replaced(source: Path, workdir: Path) -> None:
    write(source, "thing/a.py")
    bring(read_tree(source), workdir)
    write(workdir, "thing/result")
    remove(source / "thing")
    write(source, "thing")
    with pytest.raises(SyncError, match="thing/result in .* is a file that no sync wrote"):
        bring(read_tree(source), workdir)
    assert set(see(workdir)) == {"thing/a.py", "thing/result"}


@pytest.mark.parametrize("kind", ["file", "link to a folder", "link to nothing"])
def test_what_stands_where_the_tree_has_a_folder_is_named(
    source: Path, workdir: Path, tmp_path: Path, kind: str
) -> None:
    write(source, "top/package/a.py")
    write(tmp_path, "outside/a.py", text="mine")
    (workdir / "top").mkdir(parents=True)
    if kind == "file":
        write(workdir, "top/package")
    else:
        (workdir / "top" / "package").symlink_to(tmp_path / ("outside" if kind == "link to a folder" else "nothing"))
    with pytest.raises(SyncError, match="top/package in .* is a file or a link where the code has a folder; move it"):
        begin(read_tree(source), workdir)
    assert see(tmp_path / "outside") == {"a.py": ("file", 0o644, b"mine")}
    assert not (tmp_path / "nothing").exists()


# Nothing outside is touched.


def outside_of(tmp_path: Path) -> Path:
    write(tmp_path, "outside/a.py", "outside/sub/b.py", text="mine")
    (tmp_path / "outside" / "a.py").chmod(0o640)
    return tmp_path / "outside"


def test_links_are_never_written_through(source: Path, workdir: Path, tmp_path: Path) -> None:
    outside = outside_of(tmp_path)
    before = see(outside)
    write(source, "a.py", "sub/b.py")
    (source / "a.py").chmod(0o755)
    bring(read_tree(source), workdir)
    (workdir / "a.py").unlink()
    (workdir / "a.py").symlink_to(outside / "a.py")
    bring(read_tree(source), workdir)
    assert see(outside) == before
    assert see(workdir) == see(source)


def test_links_are_never_deleted_through(source: Path, workdir: Path, tmp_path: Path) -> None:
    outside = outside_of(tmp_path)
    before = see(outside)
    write(source, "keep.py", "sub/b.py", "more/a.py")
    bring(read_tree(source), workdir)
    for name, target in (("sub", outside / "sub"), ("more", outside)):
        shutil.rmtree(workdir / name)
        (workdir / name).symlink_to(target)
        shutil.rmtree(source / name)
    assert bring(read_tree(source), workdir) == ([], 0, 0)
    assert see(outside) == before
    assert (workdir / "sub").is_symlink()


@pytest.mark.parametrize("moment", ["look", "finish"])
def test_a_link_that_appears_during_a_sync_is_not_followed(
    source: Path, workdir: Path, tmp_path: Path, moment: str
) -> None:
    outside = outside_of(tmp_path)
    before = see(outside)
    write(source, "sub/b.py", "sub/deep/c.py", text="ours")
    tree = read_tree(source)
    incoming, wanted = begin(tree, workdir)
    if moment == "look":
        (workdir / "sub").symlink_to(outside)
    send(tree, incoming, wanted)
    if moment == "finish":
        (workdir / "sub").symlink_to(outside / "sub")
    with pytest.raises(SyncError, match="sub in .* is a file or a link where the code has a folder"):
        finish(incoming)
    assert see(outside) == before
    assert staged(workdir) == []
    assert not is_locked(workdir)


def test_a_link_in_place_of_the_mode_to_set_is_not_followed(source: Path, workdir: Path, tmp_path: Path) -> None:
    outside = outside_of(tmp_path)
    write(source, "a.py", text="mine")
    bring(read_tree(source), workdir)
    (source / "a.py").chmod(0o777)
    incoming, wanted = begin(read_tree(source), workdir)
    assert wanted == []
    (workdir / "a.py").unlink()
    (workdir / "a.py").symlink_to(outside / "a.py")
    with pytest.raises(SyncError, match=r"cannot set the mode of .*a\.py"):
        finish(incoming)
    assert see(outside)["a.py"][1] == 0o640


@pytest.mark.parametrize("name", [".hostmesh", ".hostmesh/staging", ".hostmesh/lock", ".hostmesh/manifest.json"])
def test_what_sync_keeps_is_not_a_link(source: Path, workdir: Path, tmp_path: Path, name: str) -> None:
    outside = outside_of(tmp_path)
    before = see(outside)
    write(source, "a.py")
    bring(read_tree(source), workdir)
    remove(workdir / name)
    (workdir / name).symlink_to(outside / ("a.py" if "." in name[1:] or "lock" in name else ""))
    with pytest.raises(SyncError, match=r"cannot use .*workdir/\.hostmesh: "):
        bring(read_tree(source), workdir)
    assert see(outside) == before


def hostile(*fields: Any) -> bytes:
    return zlib.compress(json.dumps([fields]).encode())


LEADING_OUT = ["/etc/x", "../x", "a/../../x", "..", ".", "a/./b", "a//b", "a/", "", "a\0b", "\ud800", 7]


@pytest.mark.parametrize("path", [*LEADING_OUT, ".hostmesh/lock", "a/.hostmesh"])
def test_a_path_that_leads_out_is_refused(workdir: Path, path: Any) -> None:
    with pytest.raises(SyncError, match="no place below a folder"):
        Incoming(str(workdir), hostile(path, "file", 0o644, 1, "00", None))
    assert not workdir.exists()


@pytest.mark.parametrize("target", ["/etc/passwd", "..", "../../x", "a/../../../x", "", "a\0b", None, 7, "\udfff"])
def test_a_link_that_leads_out_is_refused(workdir: Path, target: Any) -> None:
    with pytest.raises(SyncError, match="no place below a folder"):
        Incoming(str(workdir), hostile("sub/link" if target != ".." else "link", "link", 0o777, 1, "00", target))


@pytest.mark.parametrize(
    "fields",
    [
        ("a", "device", 0o644, 1, "00", None),
        ("a", "file", 0o4755, 1, "00", None),
        ("a", "file", -1, 1, "00", None),
        ("a", "file", 0o644, -1, "00", None),
        ("a", "file", 0o644, "1", "00", None),
        ("a", "file", True, 1, "00", None),
        ("a", "file", 0o644, 1, None, None),
        ("a", "file", 0o644, 1, "00", "target"),
    ],
)
def test_an_entry_of_the_wrong_shape_is_refused(workdir: Path, fields: tuple[Any, ...]) -> None:
    with pytest.raises(SyncError, match="no place below a folder"):
        Incoming(str(workdir), hostile(*fields))


@pytest.mark.parametrize(
    "data", [b"", b"nonsense", zlib.compress(b"{"), zlib.compress(b"[1]"), zlib.compress(b"[[1]]")]
)
def test_a_list_that_is_none_is_refused(workdir: Path, data: bytes) -> None:
    with pytest.raises(SyncError, match="the list of files cannot be read"):
        Incoming(str(workdir), data)


@pytest.mark.parametrize(
    ("paths", "why"), [(["a", "a"], "a path twice"), (["a/b", "a"], "a as a file and as a folder")]
)
def test_paths_that_overlap_are_refused(workdir: Path, paths: list[str], why: str) -> None:
    listed = [(path, "file", 0o644, 1, "00", None) for path in paths]
    with pytest.raises(SyncError, match=why):
        Incoming(str(workdir), zlib.compress(json.dumps(listed).encode()))


def test_a_manifest_that_somebody_wrote_cannot_delete_outside(source: Path, workdir: Path, tmp_path: Path) -> None:
    outside = outside_of(tmp_path)
    before = see(outside)
    write(source, "a.py")
    bring(read_tree(source), workdir)
    record = ["00", 0o644, 4, 0, 0, 0, True]
    paths = ["../../outside/a.py", str(outside / "a.py"), ".hostmesh/lock", "a.py/../../../outside/a.py"]
    (workdir / ".hostmesh" / "manifest.json").write_text(json.dumps({path: record for path in paths}))
    assert bring(read_tree(source), workdir)[2] == 0
    assert see(outside) == before


# What goes wrong on the way.


@pytest.mark.parametrize("content", [b"other", b"longer!", b"no", b""])
def test_a_file_that_arrives_with_other_content_is_refused(source: Path, workdir: Path, content: bytes) -> None:
    write(source, "a.py", "b.py", text="four")
    bring(read_tree(source), workdir)
    before = see(workdir)
    write(source, "a.py", "b.py", text="five!")
    tree = read_tree(source)
    incoming, wanted = begin(tree, workdir)
    send(tree, incoming, wanted[:1])
    with pytest.raises(SyncError, match=r"^b\.py arrived with other content than was listed; start again$"):
        incoming.store(1, True, zlib.compress(content))
    assert see(workdir) == before
    assert staged(workdir) == []
    assert not is_locked(workdir)


def test_a_file_that_is_left_out_counts_as_not_listed(source: Path, workdir: Path) -> None:
    """What an earlier sync wrote under its name goes; what is the host's own stays."""
    write(source, "a.py", "log", "other.log", text="old")
    (source / "other.log").unlink()
    bring(read_tree(source), workdir)
    write(workdir, "other.log", text="the host's")
    write(source, "a.py", "log", "new.log", "other.log", text="new")
    tree = read_tree(source)
    incoming, wanted = begin(tree, workdir)
    numbers = {tree.entries[number].path: number for number in wanted}
    incoming.store(numbers["log"], False, zlib.compress(b"n"))
    for name in ("log", "new.log", "other.log"):
        assert not incoming.skip(numbers[name])
    with pytest.raises(SyncError, match="not asked for"):
        incoming.skip(numbers["log"])
    assert send(tree, incoming, [numbers["a.py"]])
    assert finish(incoming) == (1, 1)
    assert {name: content for name, (_, _, content) in see(workdir).items()} == {
        "a.py": b"new",
        "other.log": b"the host's",
    }
    assert staged(workdir) == []


def test_pieces_nobody_asked_for_and_damaged_ones_are_refused(source: Path, workdir: Path) -> None:
    write(source, "a.py", "b.py")
    tree = read_tree(source)
    for number, data, why in [(7, b"", "not asked for"), (-1, b"", "not asked for"), (0, b"no zlib", "damaged")]:
        incoming, _ = begin(tree, workdir)
        with pytest.raises(SyncError, match=why):
            incoming.store(number, True, data)
    incoming, wanted = begin(tree, workdir)
    send(tree, incoming, wanted[:1])
    with pytest.raises(SyncError, match="not asked for"):
        send(tree, incoming, wanted[:1])
    assert see(workdir) == {}


def test_a_sync_cannot_end_early(source: Path, workdir: Path) -> None:
    write(source, "a.py", "b.py")
    incoming, _ = begin(read_tree(source), workdir)
    with pytest.raises(SyncError, match="before all files had arrived"):
        finish(incoming)
    assert see(workdir) == {}
    assert not is_locked(workdir)


def test_pieces_of_several_files_may_be_mixed(source: Path, workdir: Path) -> None:
    for name in ("a", "b"):
        (source / name).write_bytes(random.Random(name).randbytes(5 << 19))
    tree = read_tree(source)
    incoming, wanted = begin(tree, workdir)
    for pieces in zip(*(tree.pieces(number) for number in wanted), strict=True):
        complete = [incoming.store(*piece) for piece in pieces]
    assert complete == [False, True]
    finish(incoming)
    assert see(workdir) == see(source)


def test_a_sync_that_is_given_up_leaves_the_old_tree_whole(source: Path, workdir: Path) -> None:
    write(source, "a.py", "b.py", "old.py")
    bring(read_tree(source), workdir)
    before = see(workdir)
    write(source, "a.py", "b.py", text="newer")
    (source / "old.py").unlink()
    tree = read_tree(source)
    incoming, wanted = begin(tree, workdir)
    send(tree, incoming, wanted[:1])
    assert is_locked(workdir)
    incoming.close()
    incoming.close()
    assert see(workdir) == before
    assert staged(workdir) == []
    assert not is_locked(workdir)


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    folder = tmp_path / "small"
    folder.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", str(folder)]
    if shutil.which("mount") is None or subprocess.run(mount, capture_output=True, timeout=240).returncode:
        pytest.skip("no small file system can be mounted here")
    yield folder
    subprocess.run(["umount", str(folder)], check=True, timeout=240)


def test_a_full_disk_is_told_and_the_old_tree_stays(source: Path, small_disk: Path) -> None:
    workdir = small_disk / "job"
    write(source, "a.py", "b.py")
    bring(read_tree(source), workdir)
    before = see(workdir)
    (source / "big").write_bytes(random.Random(0).randbytes(2 << 20))
    write(source, "a.py", text="newer")
    with pytest.raises(SyncError, match=r"cannot write .*job/big: No space left on device \([0-9,]+ bytes are free\)"):
        bring(read_tree(source), workdir)
    assert see(workdir) == before
    assert staged(workdir) == []
    (source / "big").unlink()
    bring(read_tree(source), workdir)
    assert see(workdir) == see(source)


def test_a_full_disk_is_told_when_there_is_no_room_for_anything(source: Path, small_disk: Path) -> None:
    write(source, "a.py", text="x" * 5000)
    with (small_disk / "filler").open("wb", buffering=0) as file, pytest.raises(OSError):
        while True:
            file.write(bytes(4096))
    with pytest.raises(SyncError, match=r"No space left on device \(0 bytes are free\); make room there"):
        bring(read_tree(source), small_disk / "job")


def bring_as_nobody(tree: Tree, workdir: Path) -> None:
    drop_rights()
    bring(tree, workdir)


def test_a_folder_one_may_not_write_to_is_told() -> None:
    with tempfile.TemporaryDirectory() as folder:
        top = Path(folder)
        top.chmod(0o755)
        write(top, "source/a.py", "source/sub/b.py")
        tree = read_tree(top / "source")
        (top / "open").mkdir()
        (top / "open").chmod(0o777)
        (top / "open" / "sub").mkdir(0o755)
        if os.geteuid() != 0:
            (top / "open" / "sub").chmod(0o555)
            top.chmod(0o555)
        closed = fail_apart(bring_as_nobody, tree, top / "closed")
        below = fail_apart(bring_as_nobody, tree, top / "open")
        top.chmod(0o755)
    assert closed == f"cannot use {top}/closed: Permission denied; choose a workdir where this user may write"
    assert below.startswith(f"cannot write {top}/open/sub/b.py: Permission denied; ")


def test_a_workdir_that_is_a_file_is_told(source: Path, tmp_path: Path) -> None:
    write(tmp_path, "file")
    with pytest.raises(SyncError, match="cannot use .*file: Not a directory"):
        Incoming(str(tmp_path / "file"), read_tree(source).encode())


# Several at once, and killed.

HOST = """
import os, sys
from hostmesh.launcher.protocol import wire
from hostmesh.launcher.agent.sync.incoming import Incoming, SyncError

def messages():
    decoder = wire.Decoder()
    while data := os.read(0, 65536):
        yield from decoder.feed(data)

def say(message):
    os.write(1, wire.encode(message))

def compare_in_a_child(incoming):
    told, tell = os.pipe()
    if os.fork() == 0:
        os.write(tell, " ".join(map(str, incoming.compare())).encode())
        os._exit(0)
    os.close(tell)
    numbers = [int(word) for word in os.fdopen(told).read().split()]
    os.wait()
    return numbers

try:
    for message in messages():
        if isinstance(message, wire.Sync):
            incoming = Incoming(message.workdir, message.data)
            wanted = compare_in_a_child(incoming)
            incoming.expect(wanted)
            say(wire.FilesNeeded(wanted))
            complete = not wanted
        else:
            complete = incoming.store(*message)
        if complete:
            counts = incoming.apply()
            incoming.close()
            say(wire.Synced(*counts))
            break
except SyncError as error:
    say(wire.Refused(str(error)))
"""


class HostProcess:
    """A host of its own, with nothing but the standard library: the agent's part of a sync in another process."""

    def __init__(self, python: str = sys.executable) -> None:
        self.process = subprocess.Popen(
            [python, "-c", HOST], env=clean_env(), stdin=subprocess.PIPE, stdout=subprocess.PIPE, bufsize=0
        )
        self.decoder = wire.Decoder()
        self.heard: list[Any] = []

    def say(self, message: Any) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(wire.encode(message))

    def hear(self) -> Any:
        assert self.process.stdout is not None
        while not self.heard:
            data = self.process.stdout.read(65536)
            assert data, "the host is gone"
            self.heard += self.decoder.feed(data)
        return self.heard.pop(0)

    def bring(self, tree: Tree, workdir: Path) -> Any:
        self.say(wire.Sync(str(workdir), tree.encode()))
        return self.go_on(tree)

    def go_on(self, tree: Tree) -> Any:
        answer = self.hear()
        for number in getattr(answer, "numbers", []):
            for piece in tree.pieces(number):
                self.say(piece)
        return self.hear() if isinstance(answer, wire.FilesNeeded) else answer

    def close(self) -> None:
        self.process.kill()
        self.process.wait(10)
        for end in (self.process.stdin, self.process.stdout):
            assert end is not None
            end.close()


@pytest.fixture
def host() -> Iterator[Callable[..., HostProcess]]:
    hosts: list[HostProcess] = []

    def start(*args: str) -> HostProcess:
        hosts.append(HostProcess(*args))
        return hosts[-1]

    yield start
    for process in hosts:
        process.close()


def test_two_syncs_into_one_workdir_take_turns(
    source: Path, workdir: Path, tmp_path: Path, host: Callable[..., HostProcess]
) -> None:
    write(source, *(f"a{number}.py" for number in range(50)), "both.py")
    write(tmp_path, *(f"other/b{number}.py" for number in range(50)), "other/both.py", text="other")
    first, second = read_tree(source), read_tree(tmp_path / "other")
    one, two = host(), host()
    one.say(wire.Sync(str(workdir), first.encode()))
    wanted = one.hear()
    two.say(wire.Sync(str(workdir), second.encode()))
    assert len(wanted.numbers) == 51
    one.heard.append(wanted)
    assert one.go_on(first) == wire.Synced(51, 0)
    assert two.go_on(second) == wire.Synced(51, 50)
    assert see(workdir) == see(tmp_path / "other")


def test_hosts_that_share_a_workdir_send_the_code_once(
    source: Path, workdir: Path, host: Callable[..., HostProcess]
) -> None:
    write(source, "a.py", "b.py")
    tree = read_tree(source)
    hosts = [host() for _ in range(3)]
    for process in hosts:
        process.say(wire.Sync(str(workdir), tree.encode()))
    # All at once: whichever has the lock waits for its files, and the others for it.
    with ThreadPoolExecutor() as pool:
        assert sorted(pool.map(lambda process: process.go_on(tree), hosts)) == [(0, 0), (0, 0), (2, 0)]


def test_waiting_for_another_sync_has_an_end_and_disturbs_nothing(
    source: Path, workdir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(source, "a.py", "b.py")
    tree = read_tree(source)
    busy, wanted = begin(tree, workdir)
    send(tree, busy, wanted[:1])
    monkeypatch.setattr(incoming, "LOCK_TIMEOUT", 0.1)
    with pytest.raises(
        SyncError, match="another run, or another host that shares .*, has been syncing into it for 0.1"
    ):
        begin(tree, workdir)
    assert is_locked(workdir)
    send(tree, busy, wanted[1:])
    assert finish(busy) == (2, 0)
    assert see(workdir) == see(source)


def sync_beside_a_child_that_lives_on(tree: Tree, workdir: Path) -> bool:
    """Whether the lock is still held when the sync has ended."""
    incoming, wanted = begin(tree, workdir)
    wait, go = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.close(go)
        os.read(wait, 1)
        os._exit(0)
    os.close(wait)
    send(tree, incoming, wanted)
    finish(incoming)
    locked = is_locked(workdir)
    os.close(go)
    os.waitpid(pid, 0)
    return locked


def test_a_child_that_lives_on_does_not_keep_the_lock(source: Path, workdir: Path) -> None:
    write(source, "a.py")
    assert call_apart(sync_beside_a_child_that_lives_on, read_tree(source), workdir) is False


def test_a_killed_sync_leaves_the_old_tree_and_is_cleared_away(
    source: Path, workdir: Path, host: Callable[..., HostProcess]
) -> None:
    write(source, "a.py", "b.py")
    bring(read_tree(source), workdir)
    before = see(workdir)
    write(source, "a.py", "b.py", text="newer")
    tree = read_tree(source)
    killed = host()
    killed.say(wire.Sync(str(workdir), tree.encode()))
    killed.hear()
    killed.say(next(tree.pieces(0)))
    while not (workdir / ".hostmesh" / "staging" / "0").exists():
        assert killed.process.poll() is None
        time.sleep(0.005)
    killed.close()
    assert see(workdir) == before
    assert set(staged(workdir)) == {"0", "found.json"}
    assert bring(tree, workdir)[0] == ["a.py", "b.py"]
    assert see(workdir) == see(source)
    assert staged(workdir) == []


def sync_and_die_before(name: bytes, tree: Tree, workdir: Path) -> None:
    """As the agent has its child place the files."""
    incoming, wanted = begin(tree, workdir)
    send(tree, incoming, wanted)
    pid = os.fork()
    if pid == 0:
        rename = os.rename
        os.rename = lambda a, b, **folders: os._exit(0) if b == name else rename(a, b, **folders)
        incoming.apply()
    os.waitpid(pid, 0)
    incoming.close()


def test_what_a_sync_wrote_before_it_was_killed_is_deleted_later(source: Path, workdir: Path) -> None:
    """Killed between two files put in place: the disk as it was then, under a sync that knows nothing of it."""
    write(source, "a.py", "b.py")
    call_apart(sync_and_die_before, b"b.py", read_tree(source), workdir)
    assert set(see(workdir)) == {"a.py"}
    (source / "a.py").unlink()
    bring(read_tree(source), workdir)
    assert see(workdir) == see(source)


def find_python_3_9() -> str | None:
    found = shutil.which("python3.9")
    works = found and subprocess.run([found, "-c", ""], capture_output=True, timeout=240).returncode == 0
    return found if works else None


def test_the_hosts_end_runs_on_python_3_9(source: Path, workdir: Path, host: Callable[..., HostProcess]) -> None:
    python = find_python_3_9()
    if python is None:
        pytest.skip("python3.9 is not installed")
    write(source, "a.py", "sub/b.py")
    (source / "sub" / "link").symlink_to("b.py")
    assert host(python).bring(read_tree(source), workdir) == wire.Synced(3, 0)
    (source / "a.py").unlink()
    assert host(python).bring(read_tree(source), workdir) == wire.Synced(0, 1)
    assert see(workdir) == see(source)


def test_names_do_not_depend_on_the_hosts_locale(source: Path, workdir: Path) -> None:
    write(source, "é☃/né.py")
    tree = read_tree(source)
    env = clean_env({"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"})
    code = "import sys; assert sys.getfilesystemencoding() == 'ascii', sys.getfilesystemencoding()\n" + HOST
    orders = wire.encode(wire.Sync(str(workdir), tree.encode())) + b"".join(map(wire.encode, tree.pieces(0)))
    done = subprocess.run([sys.executable, "-c", code], env=env, input=orders, capture_output=True, timeout=240)
    assert wire.Decoder().feed(done.stdout)[-1] == wire.Synced(1, 0), done.stderr
    assert see(workdir) == see(source)


# In the long run.


def edit(root: Path, choose: random.Random) -> None:
    """One random change: a new file, folder or link, other content, another mode, a new name, an end."""
    names = ["a", "b", "c d", "é", "e\nf"]
    place = root.joinpath(*(choose.choice(names) for _ in range(choose.randrange(1, 4))))
    there = [path for path in sorted(root.rglob("*")) if not path.is_dir() or path.is_symlink()]
    act = choose.choice(["write", "write", "link", "mode", "rename", "remove", "swap"])
    if act in ("write", "link"):
        clear_way(root, place)
        if act == "write":
            place.write_bytes(choose.randbytes(choose.choice([0, 1, 1, 50, 2000])))
        else:
            place.symlink_to(choose.choice(names))
    elif there:
        chosen = choose.choice(there)
        if act == "mode" and not chosen.is_symlink():
            chosen.chmod(choose.choice([0o600, 0o644, 0o755, 0o444]))
        elif act == "rename" and not place.is_relative_to(chosen) and place != chosen:
            content = chosen.rename(root.parent / "aside")
            clear_way(root, place)
            content.rename(place)
        elif act == "remove":
            chosen.unlink()
        elif act == "swap":
            chosen.unlink()
            write(chosen, "in", "its/place")


def clear_way(root: Path, place: Path) -> None:
    for above in [*reversed(place.relative_to(root).parents), place.relative_to(root)]:
        path = root / above
        if path != root and (path.is_symlink() or path.is_file() or (path == place and path.exists())):
            remove(path)
    place.parent.mkdir(parents=True, exist_ok=True)


@pytest.mark.parametrize("seed", range(20))
def test_the_workdir_follows_every_change(source: Path, workdir: Path, seed: int) -> None:
    choose = random.Random(seed)
    for _ in range(12):
        for _ in range(choose.randrange(1, 12)):
            edit(source, choose)
        tree = read_tree(source)
        assert tree.skipped == ()
        bring(tree, workdir)
        assert see(workdir) == see(source)
        assert folders(workdir) <= folders(source)
        assert bring(tree, workdir) == ([], 0, 0)


def test_a_second_sync_of_two_thousand_files_is_fast(source: Path, workdir: Path) -> None:
    """In processor time, which a busy machine stretches less; what is wanted is under a second."""
    write(source, *(f"package_{number % 40}/module_{number}.py" for number in range(2000)), text="x = 1\n" * 300)
    tree = read_tree(source)
    bring(tree, workdir)
    began = time.process_time()
    assert bring(tree, workdir) == ([], 0, 0)
    assert time.process_time() - began < 0.5 * busyness()
