"""The first source a host gets: take the agent's modules, which follow on the stream, and become the agent.

Packed files are a compressed text: a line that lists folders, the sizes of files, and how many of these are wanted
first, `[["hostmesh"], [["hostmesh/__init__.py", 5120]], 1]`, and then the files' contents one after the other.
"""

from __future__ import annotations

import json
import marshal
import os
import sys
import zlib
from importlib._bootstrap_external import MAGIC_NUMBER
from importlib.machinery import ModuleSpec
from typing import Any, List, Mapping, NamedTuple, Optional, Tuple


def become_agent() -> None:
    """The stream begins with a length in 16 hexadecimal digits, and so many bytes of packed files."""
    packed = take(int(take(16), 16))
    folder = find_folder(os.environ)
    try:
        os.mkdir(folder, 0o700)
    except OSError as error:
        sys.exit(f"cannot make the folder {folder}: {error.strerror}")
    try:
        hold(folder)
    except OSError as error:
        import shutil

        shutil.rmtree(folder, ignore_errors=True)
        sys.exit(f"cannot write to {folder}: {error.strerror}")
    sys.meta_path.insert(0, PackedModules(packed))
    from hostmesh.launcher.agent.main import main

    try:
        main(folder)
    except OSError as error:  # there is no guardian yet that would clean up
        sys.stderr.write(f"cannot start the agent: {error}\n")
        sys.stderr.flush()
        try:
            import shutil

            shutil.rmtree(folder, ignore_errors=True)
        finally:
            os._exit(1)


def hold(folder: str) -> None:
    """Lock the folder for as long as the agent or its guardian lives, which share the descriptor; see
    agent/leftovers/stale_folders.py."""
    import fcntl

    lock = os.open(os.path.join(folder, "lock"), os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    try:
        fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except OSError:
        pass  # on a file system without locks nobody can find out either that a folder is stale


def take(count: int) -> bytes:
    """Read exactly `count` bytes of the stream, since what follows is for the agent."""
    data = b""
    while len(data) < count:
        more = os.read(0, count - len(data))
        if not more:
            sys.exit("the stream ended before the agent had arrived")
        data += more
    return data


def find_folder(environ: Mapping[str, str]) -> str:
    """The path of an agent's folder."""
    base = environ.get("TMPDIR") or "/tmp"
    if len(base) > 60:
        base = "/tmp"  # a socket's path has room for 107 bytes
    return os.path.join(base, "hostmesh-" + environ["HOSTMESH_AGENT"])


class PackedModules:
    """Imports packed modules from memory: a hundred files to write and to find would be a sixth of an agent's start."""

    def __init__(self, packed: bytes) -> None:
        self.files = dict(read_packed(packed).files)

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> Any:
        path = name.replace(".", "/")
        for file, is_package in ((f"{path}.py", False), (f"{path}/__init__.py", True)):
            if file in self.files:
                return ModuleSpec(name, self, origin=file, is_package=is_package)  # type: ignore[arg-type]
        return None

    def create_module(self, spec: Any) -> None:
        return None  # Python makes it

    def exec_module(self, module: Any) -> None:
        file = module.__spec__.origin
        exec(self._compiled(file) or compile(self.files[file], file, "exec"), module.__dict__)

    def _compiled(self, file: str) -> Optional[Any]:
        """What was compiled for another Python is of no use here."""
        above, _, name = file.rpartition("/")
        data = self.files.get(f"{above}/__pycache__/{name[:-3]}.{sys.implementation.cache_tag}.pyc", b"")
        return marshal.loads(data[16:]) if data.startswith(MAGIC_NUMBER) else None


class Packed(NamedTuple):
    """The folders, and each file's name and contents; so many of the files are wanted first."""

    folders: List[str]
    files: List[Tuple[str, bytes]]
    first: int


def unpack_first(packed: bytes, folder: str) -> List[Tuple[str, bytes]]:
    """Make all folders in `folder`, and write the files that are wanted first; returns the others."""
    folders, files, first = read_packed(packed)
    for name in folders:
        os.mkdir(f"{folder}/{name}")
    write_files(folder, files[:first])
    return files[first:]


def write_files(folder: str, files: List[Tuple[str, bytes]]) -> None:
    for name, data in files:
        # What was compiled for another Python is of no use here.
        if not name.endswith(".pyc") or str(sys.implementation.cache_tag) in name:
            write(f"{folder}/{name}", data)


def read_packed(packed: bytes) -> Packed:
    listing, _, contents = zlib.decompress(packed).partition(b"\n")
    folders, sizes, first = json.loads(listing)
    files, at = [], 0
    for name, size in sizes:
        files.append((name, contents[at : at + size]))
        at += size
    return Packed(folders, files, first)


def write(path: str, data: bytes) -> None:
    """Takes half the system calls that open() does, which counts for a hundred files at every start."""
    file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    try:
        rest = memoryview(data)
        while rest:
            rest = rest[os.write(file, rest) :]
    finally:
        os.close(file)
