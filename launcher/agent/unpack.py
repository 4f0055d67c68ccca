"""The first source a host gets: unpack the agent's files, which follow on the stream, and become the agent.

Packed files are a compressed text: a line that lists folders and the sizes of files, `[["hostmesh"],
[["hostmesh/__init__.py", 5120]]]`, and then the files' contents one after the other.
"""

from __future__ import annotations

import json
import os
import sys
import zlib
from typing import Mapping


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
        unpack(packed, os.path.join(folder, "agent"))
    except OSError as error:
        import shutil

        shutil.rmtree(folder, ignore_errors=True)
        sys.exit(f"cannot write the agent to {folder}: {error.strerror}")
    sys.dont_write_bytecode = True
    sys.path.insert(0, os.path.join(folder, "agent"))
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


def unpack(packed: bytes, folder: str) -> None:
    listing, _, data = zlib.decompress(packed).partition(b"\n")
    folders, files = json.loads(listing)
    os.mkdir(folder)
    for name in folders:
        os.mkdir(f"{folder}/{name}")
    at = 0
    for name, size in files:
        # What was compiled for another Python is of no use here.
        if not name.endswith(".pyc") or str(sys.implementation.cache_tag) in name:
            write(f"{folder}/{name}", data[at : at + size])
        at += size


def write(path: str, data: bytes) -> None:
    """Takes half the system calls that open() does, which counts for a hundred files at every start."""
    file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    try:
        rest = memoryview(data)
        while rest:
            rest = rest[os.write(file, rest) :]
    finally:
        os.close(file)
