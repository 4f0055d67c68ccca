"""A disk that never answers, for tests: a FUSE mount whose file system nobody serves."""

from __future__ import annotations

import contextlib
import ctypes
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

MNT_DETACH = 2


@contextlib.contextmanager
def hung_disk(folder: Path) -> Iterator[Path]:
    """Whoever looks into `folder` waits, and dies of SIGKILL alone, until the block is left."""
    libc = ctypes.CDLL(None, use_errno=True)
    folder.mkdir(parents=True, exist_ok=True)
    try:
        server = os.open("/dev/fuse", os.O_RDWR | os.O_CLOEXEC)
    except OSError:
        pytest.skip("/dev/fuse cannot be opened here")
    options = f"fd={server},rootmode=40000,user_id={os.getuid()},group_id={os.getgid()},allow_other"
    if libc.mount(b"hung", os.fsencode(folder), b"fuse", 0, options.encode()):
        os.close(server)
        pytest.skip(f"nothing can be mounted here: {os.strerror(ctypes.get_errno())}")
    try:
        yield folder
    finally:
        libc.umount2(os.fsencode(folder), MNT_DETACH)
        os.close(server)  # whoever still waits gets an error
