"""What an agent finds out about its host: here, on made-up hosts, and on hosts where something hangs."""

from __future__ import annotations

import importlib.metadata
import json
import os
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from conftest import await_true, busyness, is_alive

from hostmesh.launcher.agent.inspect import host as inspecting
from hostmesh.launcher.agent.inspect.code_hash import hash_python_files, read_code, read_synced
from hostmesh.launcher.agent.inspect.devices import count_devices, find_holders, find_tpu_lock
from hostmesh.launcher.agent.inspect.host import inspect, list_proxies, resolve_all, run_together
from hostmesh.launcher.agent.startup.duties import INSPECT_TIMEOUT
from hostmesh.launcher.agent.sync.incoming import Incoming
from hostmesh.launcher.check import TIMEOUT
from hostmesh.launcher.preflight.report import HostReports, judge
from hostmesh.launcher.protocol import wire
from hostmesh.launcher.sync.tree import read_tree

NOBODY = 65534


def look(tmp_path: Path, python: str = sys.executable, thorough: bool = False, **more: Any) -> dict[str, Any]:
    settings = {"workdir": None, "env": {}, "folder": str(tmp_path / "hostmesh-x"), **more}
    return inspect(python, settings.pop("workdir"), settings.pop("env"), thorough, **settings)


@pytest.fixture
def program(tmp_path: Path) -> Callable[..., str]:
    """Write an executable shell script, to stand for the workers' Python."""

    def write(text: str, name: str = "python") -> str:
        path = tmp_path / name
        path.write_text(f"#!/bin/sh\n{text}\n")
        path.chmod(0o755)
        return str(path)

    return write


@pytest.fixture
def root(tmp_path: Path) -> Callable[..., str]:
    """A made-up / with these empty files."""

    def make(*files: str) -> str:
        for name in ("proc", *files):
            path = tmp_path / "root" / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.mkdir(exist_ok=True) if name == "proc" else path.touch()
        return str(tmp_path / "root")

    return make


def add_process(root: str, pid: int, *held: str, command: bytes = b"python\0train.py\0--big\0--secret=x\0") -> Path:
    folder = Path(root) / "proc" / str(pid)
    (folder / "fd").mkdir(parents=True)
    (folder / "cmdline").write_bytes(command)
    for number, target in enumerate(held):
        (folder / "fd" / str(number)).symlink_to(target)
    return folder


# This machine.


def test_this_machine_is_described_in_plain_data(tmp_path: Path) -> None:
    found = look(tmp_path, thorough=True, workdir=str(tmp_path), names=["localhost"])
    assert json.loads(json.dumps(found)) == found
    assert not [name for name, fact in found.items() if isinstance(fact, dict) and "problem" in fact]
    assert found["python"]["version"] == sys.version.split()[0]
    for package in ("jax", "jaxlib", "numpy"):
        assert found["python"]["packages"][package] == importlib.metadata.version(package)
    assert abs(found["time"] - time.time()) < 60
    assert found["temp"]["path"] == str(tmp_path) and found["temp"]["free"] > 0
    assert found["machine"]["memory"] > found["machine"]["memory_free"] > 0
    assert found["shared_memory"]["size"] > 0 and found["system"]["open_files"] > 0
    assert {"127.0.0.1", "::1"} & set(found["names"]["localhost"])


def test_before_a_run_less_is_looked_at_and_python_starts_once(tmp_path: Path, program: Callable[..., str]) -> None:
    python = program(f'echo started >>{tmp_path}/starts; exec {sys.executable} "$@"')
    found = look(tmp_path, python, workdir=str(tmp_path))
    assert found["python"]["packages"]["jax"] and "workdir" in found
    assert not {"code", "shared_memory", "system"} & set(found)
    assert (tmp_path / "starts").read_text() == "started\n"


# The workers' Python.


def test_python_is_found_as_the_workers_would_find_it(
    tmp_path: Path, program: Callable[..., str], monkeypatch: pytest.MonkeyPatch
) -> None:
    path = program(f'exec {sys.executable} "$@"', "some-python")
    assert look(tmp_path, "some-python", env={"PATH": str(tmp_path)})["python"]["path"] == path
    monkeypatch.setenv("HOME", str(tmp_path))
    assert look(tmp_path, "~/some-python")["python"]["path"] == path


def test_a_missing_python_is_named(tmp_path: Path) -> None:
    assert look(tmp_path, "/no/python")["python"] == {"problem": "found no executable /no/python"}


def test_a_python_without_jax_has_no_versions(tmp_path: Path, program: Callable[..., str]) -> None:
    python = program(f'unset PYTHONPATH; exec {sys.executable} -S "$@"')
    packages = look(tmp_path, python)["python"]["packages"]
    assert packages["jax"] is packages["jaxlib"] is packages["numpy"] is None


def test_packages_on_pythonpath_count_and_those_in_the_current_folder_do_not(
    tmp_path: Path, program: Callable[..., str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for place in ("here", "path"):
        info = tmp_path / place / f"jax-1.2.{len(place)}{place[0] == 'p':d}.dist-info"
        info.mkdir(parents=True)
        (info / "METADATA").write_text(f"Name: jax\nVersion: {info.name[4:-10]}\n")
    python = program(f'exec {sys.executable} -S "$@"')
    monkeypatch.chdir(tmp_path / "here")
    assert look(tmp_path, python, env={"PYTHONPATH": ""})["python"]["packages"]["jax"] is None
    env = {"PYTHONPATH": str(tmp_path / "path")}
    assert look(tmp_path, python, env=env)["python"]["packages"]["jax"] == "1.2.41"


def test_what_python_prints_at_its_start_does_no_harm(tmp_path: Path, program: Callable[..., str]) -> None:
    python = program(f'echo "Welcome to the cluster"; exec {sys.executable} "$@"')
    assert look(tmp_path, python)["python"]["version"] == sys.version.split()[0]


def test_a_python_that_is_none_is_quoted(tmp_path: Path, program: Callable[..., str]) -> None:
    fact = look(tmp_path, program("echo cannot find libc >&2; exit 3"))["python"]
    assert (
        fact["problem"].endswith("is no Python that works: it exited with 3") and fact["said"] == "cannot find libc\n"
    )
    finding = next(each for each in judge(HostReports(["a"], {0: {"python": fact}})) if each.check == "python")
    assert finding.message.endswith("it exited with 3: cannot find libc")


def test_a_python_that_hangs_is_given_up_and_killed(
    tmp_path: Path, program: Callable[..., str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(inspecting, "PYTHON_LIMIT", 0.5)
    python = program(f"sleep 1000 & echo $! $$ >{tmp_path}/pids; wait")
    began = time.monotonic()
    found = look(tmp_path, python)
    assert time.monotonic() - began < 30 * busyness()
    assert found["python"]["problem"].endswith("is there, but has not answered within 0.5 s")
    assert found["python"]["cause"] == "slow" and found["machine"]["cpus"] > 0
    pids = [int(pid) for pid in (tmp_path / "pids").read_text().split()]
    await_true(lambda: not any(map(is_alive, pids)), 5, "the script and its child are gone")


def test_all_but_python_ends_in_ten_seconds_whatever_hangs() -> None:
    assert inspecting.NAMES_LIMIT < inspecting.LIMIT < 10
    assert inspecting.LIMIT + inspecting.PYTHON_LIMIT < INSPECT_TIMEOUT < TIMEOUT


def test_a_python_that_is_slow_to_answer_is_waited_for(
    tmp_path: Path, program: Callable[..., str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(inspecting, "LIMIT", 0.2)
    found = look(tmp_path, program(f'sleep 1; exec {sys.executable} "$@"'))
    assert found["python"]["version"] == sys.version.split()[0]


def test_an_environment_that_is_too_large_is_told_by_names_and_sizes(tmp_path: Path) -> None:
    found = look(tmp_path, env={"BIG": "s3cret" * 40_000, "SMALL": "x"})
    assert found["python"]["cause"] == "environment" and "s3cret" not in found["python"]["problem"]
    assert "too large for Linux; the largest are BIG with 240,005 bytes" in found["python"]["problem"]


def test_a_folder_is_tried_and_left_as_it_was(public: Path) -> None:
    (public / "file").touch()
    fine = {"is_there": True, "unwritable": None}
    assert inspecting.try_folder(str(public)) == fine and sorted(public.iterdir()) == [public / "file"]
    assert inspecting.try_folder(str(public / "a/b")) == {**fine, "is_there": False}
    below_a_file = {"is_there": False, "unwritable": "Not a directory"}
    assert inspecting.try_folder(str(public / "file")) == inspecting.try_folder(f"{public}/file/a") == below_a_file
    with another_user(public):
        for place, is_there in (("", True), ("a/b", False)):
            refused = inspecting.try_folder(str(public / place))
            assert refused == {"is_there": is_there, "unwritable": "Permission denied"}


def test_a_step_that_never_ends_costs_only_its_own_fact() -> None:
    for_ever = threading.Event()
    found = run_together({"stuck": for_ever.wait, "broken": lambda: 1 // 0, "quick": lambda: 7}, 0.2)
    for_ever.set()
    assert found["quick"] == 7
    assert found["stuck"] == {"problem": "no answer within 0.2 s"}
    assert "division" in found["broken"]["problem"]


def test_a_file_that_blocks_hides_nothing_else(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(inspecting, "LIMIT", 2.0)
    os.mkfifo(tmp_path / "blocks.py")
    found = look(tmp_path, thorough=True, workdir=str(tmp_path))
    os.close(os.open(tmp_path / "blocks.py", os.O_RDWR))
    assert found["code"] == {"problem": "no answer within 2 s"}
    assert found["workdir"]["free"] > 0 and found["python"]["version"]


# Devices.

AMD = ["dev/kfd", "dev/dri/renderD128", "dev/dri/renderD129", "dev/dri/card0"]


@pytest.mark.parametrize(
    ("files", "env", "wanted"),
    [
        ([], {}, (0, 0, 0)),
        (["dev/accel0", "dev/accel1", "dev/accel"], {}, (2, 0, 0)),
        (["dev/vfio/0", "dev/vfio/11", "dev/vfio/vfio"], {}, (2, 0, 0)),
        (["dev/nvidia0", "dev/nvidia7", "dev/nvidiactl", "dev/nvidia-uvm"], {}, (0, 2, 0)),
        (["dev/nvidia0", "dev/nvidia1"], {"CUDA_VISIBLE_DEVICES": "1"}, (0, 1, 0)),
        (["dev/nvidia0", "dev/nvidia1"], {"CUDA_VISIBLE_DEVICES": ""}, (0, 0, 0)),
        (["dev/nvidia0", "dev/nvidia1"], {"CUDA_VISIBLE_DEVICES": "-1"}, (0, 0, 0)),
        (["dev/nvidia0", "dev/nvidia1"], {"CUDA_VISIBLE_DEVICES": "0, 5,1"}, (0, 1, 0)),
        (["dev/nvidia0", "dev/nvidia1"], {"CUDA_VISIBLE_DEVICES": "GPU-1f2e,MIG-77"}, (0, 2, 0)),
        ([], {"CUDA_VISIBLE_DEVICES": "GPU-1f2e"}, (0, 0, 0)),
        (["dev/dri/renderD128"], {}, (0, 0, 0)),
        (AMD, {}, (0, 0, 2)),
        (AMD, {"HIP_VISIBLE_DEVICES": "1"}, (0, 0, 1)),
        (AMD, {"HIP_VISIBLE_DEVICES": "-1"}, (0, 0, 0)),
        (AMD, {"HIP_VISIBLE_DEVICES": ""}, (0, 0, 2)),
        (AMD, {"HIP_VISIBLE_DEVICES": "", "CUDA_VISIBLE_DEVICES": "0"}, (0, 0, 1)),
        (AMD, {"HIP_VISIBLE_DEVICES": "0,1", "CUDA_VISIBLE_DEVICES": "0"}, (0, 0, 2)),
        (AMD, {"ROCR_VISIBLE_DEVICES": "1"}, (0, 0, 1)),
        (AMD, {"ROCR_VISIBLE_DEVICES": ""}, (0, 0, 0)),
        (AMD, {"ROCR_VISIBLE_DEVICES": "1", "HIP_VISIBLE_DEVICES": "0,1"}, (0, 0, 1)),
    ],
)
def test_devices_are_counted_by_their_files(
    root: Callable[..., str], files: list[str], env: dict[str, str], wanted: tuple[int, int, int]
) -> None:
    assert tuple(count_devices(root(*files), env).values()) == wanted


def test_who_holds_a_device_is_named_with_few_words(root: Callable[..., str]) -> None:
    place = root("dev/accel0", "dev/accel1")
    add_process(place, 4121, "/dev/accel0", "/dev/null", "/dev/accel1")
    add_process(place, 12, "/dev/null", "/dev/accel9")
    found = find_holders(place)
    owner = found["processes"][0].pop("user")
    assert owner
    assert found == {
        "processes": [{"pid": 4121, "command": "python train.py --big", "files": ["/dev/accel0", "/dev/accel1"]}],
        "unseen": 0,
    }


def test_without_devices_no_process_is_looked_at(root: Callable[..., str]) -> None:
    place = root()
    add_process(place, 7, "/dev/accel0")
    assert find_holders(place) == {"processes": [], "unseen": 0}


@contextmanager
def another_user(place: Path) -> Iterator[None]:
    if os.geteuid() != 0:
        pytest.skip("needs root, to become another user")
    place.chmod(0o755)
    os.seteuid(NOBODY)
    try:
        yield
    finally:
        os.seteuid(0)


@pytest.fixture
def public() -> Iterator[Path]:
    """A folder that other users may enter; pytest's own is closed to them."""
    with tempfile.TemporaryDirectory() as folder:
        yield Path(folder)


def test_processes_that_cannot_be_looked_at_are_counted_and_threads_of_the_kernel_are_not(public: Path) -> None:
    (public / "dev").mkdir()
    (public / "dev/nvidia0").touch()
    for pid, command in ((5, b"python\0"), (6, b"")):
        (add_process(str(public), pid, "/dev/nvidia0", command=command) / "fd").chmod(0o700)
    with another_user(public):
        assert find_holders(str(public)) == {"processes": [], "unseen": 1}


def make_lock(place: Path, protected: str = "0") -> Path:
    for folder in ("tmp", "proc/sys/fs"):
        (place / folder).mkdir(parents=True)
    (place / "tmp").chmod(0o1777)
    (place / "proc/sys/fs/protected_regular").write_text(protected)
    lock = place / "tmp/libtpu_lockfile"
    lock.touch(0o644)
    return lock


def test_a_lock_of_ones_own_can_be_opened(public: Path) -> None:
    assert find_tpu_lock(str(public)) is None
    make_lock(public, "2")
    found = find_tpu_lock(str(public))
    assert found is not None and found.pop("owner")
    assert found == {"path": "/tmp/libtpu_lockfile", "can_be_opened": True}


def test_a_lock_that_another_user_left_cannot_be_opened(public: Path) -> None:
    make_lock(public)
    with another_user(public):
        found = find_tpu_lock(str(public))
    assert found is not None and found["owner"] == "root" and not found["can_be_opened"]


@pytest.mark.parametrize(("protected", "can_be_opened"), [("0", True), ("1", False), ("2", False)])
def test_root_too_is_kept_from_locks_of_others_where_the_kernel_protects_them(
    public: Path, protected: str, can_be_opened: bool
) -> None:
    if os.geteuid() != 0:
        pytest.skip("needs root, to own files as somebody else")
    os.chown(make_lock(public, protected), NOBODY, -1)
    found = find_tpu_lock(str(public))
    assert found is not None and found["can_be_opened"] is can_be_opened


# The network.


@pytest.mark.parametrize(
    ("value", "wanted"),
    [
        ("http://proxy:3128", "http://proxy:3128"),
        ("http://me:secret@proxy:3128/", "http://proxy:3128/"),
        ("http://me:se/cr@t@proxy:3128", "http://proxy:3128"),
        ("http://me:a://b@proxy", "http://proxy"),
        ("me:secret@proxy:3128", "proxy:3128"),
        ("", ""),
    ],
)
def test_a_proxy_is_reported_without_its_password(value: str, wanted: str) -> None:
    assert list_proxies({"https_proxy": value}) == {"https_proxy": wanted}


def test_proxies_are_those_the_workers_would_see(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("http_proxy", "HTTP_PROXY", "no_proxy"):
        monkeypatch.setenv(name, "of-the-host")
    found = look(tmp_path, env={"no_proxy": "10.0.0.9", "OTHER": "x"})["proxies"]
    assert found["http_proxy"] == found["HTTP_PROXY"] == "of-the-host" and found["no_proxy"] == "10.0.0.9"
    assert "OTHER" not in found


def test_every_name_is_answered_known_or_not() -> None:
    names = [f"{'long' * 16}-{number}" for number in range(40)]  # no name server is asked for these
    found = resolve_all(["localhost", *names])
    assert found.pop("localhost")
    assert found == dict.fromkeys(names, [])


# Code.


def test_equal_code_has_equal_hashes_and_other_files_do_not_count(tmp_path: Path) -> None:
    def make(name: str, *files: tuple[str, str]) -> str:
        for path, text in files:
            (tmp_path / name / path).parent.mkdir(parents=True, exist_ok=True)
            (tmp_path / name / path).write_text(text)
        return str(tmp_path / name)

    code = ("train.py", "x = 1\n"), ("model/layers.py", "y = 2\n")
    one = make("one", *code)
    two = make(
        "two", *code[::-1], ("log.txt", "z"), ("venv/pyvenv.cfg", ""), ("venv/lib/a.py", "b"), (".git/c.py", "d")
    )
    assert hash_python_files(one) == hash_python_files(two) is not None
    assert hash_python_files(make("three", code[0], ("model/layers.py", "y = 3\n"))) != hash_python_files(one)
    assert hash_python_files(make("four", code[0], ("model/other.py", "y = 2\n"))) != hash_python_files(one)
    assert hash_python_files(make("five", ("notes.txt", "none"))) is None
    assert hash_python_files(str(tmp_path / "missing")) is None


def sync(source: Path, workdir: Path) -> str:
    tree = read_tree(source)
    incoming = Incoming(str(workdir), tree.encode())
    wanted = incoming.compare()
    incoming.expect(wanted)
    decoder = wire.Decoder()
    for index in wanted:
        for piece in tree.pieces(index):
            (arrived,) = decoder.feed(wire.encode(piece))
            incoming.store(*arrived)
    incoming.apply()
    incoming.close()
    return tree.digest


def test_a_synced_workdir_has_the_hash_of_the_launchers_tree(tmp_path: Path) -> None:
    source, workdir = tmp_path / "source", tmp_path / "workdir"
    (source / "model").mkdir(parents=True)
    (source / "model/a'; echo foo.py").write_text("x = 1\n")
    (source / "run.sh").write_text("echo\n")
    (source / "run.sh").chmod(0o755)
    (source / "link").symlink_to("run.sh")
    digest = sync(source, workdir)
    assert read_synced(str(workdir)) == (digest, [])
    (workdir / "made-by-a-job.txt").touch()
    assert sync(source, workdir) == digest and read_synced(str(workdir)) == (digest, [])


def test_what_changed_on_the_host_since_the_sync_is_named(tmp_path: Path) -> None:
    source, workdir = tmp_path / "source", tmp_path / "workdir"
    source.mkdir()
    for name in ("a.py", "b.py", "c.py", "d.py"):
        (source / name).write_text("x = 1\n")
    sync(source, workdir)
    (workdir / "a.py").write_text("x = 2\n")
    (workdir / "b.py").unlink()
    (workdir / "c.py").chmod(0o600)
    assert read_code(str(workdir))["changed"] == ["a.py", "b.py", "c.py"]


def test_a_workdir_without_a_sync_or_with_a_broken_record_of_it_has_no_such_hash(tmp_path: Path) -> None:
    assert read_synced(str(tmp_path)) == (None, [])
    (tmp_path / ".hostmesh").mkdir()
    for text in ("{", "[]", '{"a": [1]}'):
        (tmp_path / ".hostmesh/manifest.json").write_text(text)
        assert read_synced(str(tmp_path)) == (None, [])


def test_a_workdir_that_is_yet_to_come_has_the_disk_of_the_folder_above(tmp_path: Path) -> None:
    found = look(tmp_path, thorough=True, workdir=str(tmp_path / "not/yet/there"))
    assert found["workdir"]["free"] == pytest.approx(found["temp"]["free"], rel=0.1)
    assert found["code"] == {"digest": None, "synced": None, "changed": []}
