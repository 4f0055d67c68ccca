"""The first source a host gets: write the agent's files, which follow on the stream, and become the agent.

Packed files are compressed. Unpacked they are a line with folders and files, `[["hostmesh"], [["hostmesh/__init__.py",
5120]]]`, and then the files one after the other.
"""

from __future__ import annotations

import json
import os
import sys
import zlib
from typing import Mapping


def become_agent() -> None:
    """What comes first on the stream are 16 hexadecimal digits and that many bytes."""
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
    except OSError as error:  # it could not even begin; else its guardian cleans up
        sys.stderr.write(f"cannot start the agent: {error}\n")
        sys.stderr.flush()
        try:
            import shutil

            shutil.rmtree(folder, ignore_errors=True)
        finally:
            os._exit(1)


def hold(folder: str) -> None:
    """As long as the agent or its guardian lives, which share the descriptor; see agent/stale.py."""
    import fcntl

    lock = os.open(os.path.join(folder, "lock"), os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    try:
        fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except OSError:
        pass  # a file system without locks: nobody can take the folder for a stale one there either


def take(count: int) -> bytes:
    """Not a byte more: what follows is for the agent."""
    data = b""
    while len(data) < count:
        more = os.read(0, count - len(data))
        if not more:
            sys.exit("the stream ended before the agent had arrived")
        data += more
    return data


def find_folder(environ: Mapping[str, str]) -> str:
    """Where an agent has its files."""
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
        # What was compiled for another Python would only be in the way.
        if not name.endswith(".pyc") or str(sys.implementation.cache_tag) in name:
            write(f"{folder}/{name}", data[at : at + size])
        at += size


def write(path: str, data: bytes) -> None:
    """Half the system calls that open() makes, for a hundred files at every start."""
    file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    try:
        rest = memoryview(data)
        while rest:
            rest = rest[os.write(file, rest) :]
    finally:
        os.close(file)
