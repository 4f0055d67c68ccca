"""Files that somebody is writing at this moment, such as the log that `launch … | tee train.log` makes; Linux only."""

from __future__ import annotations

import os
import re

PROC = b"/proc"


def find_written(top: bytes) -> set[bytes]:
    """Files below `top` that a process has open for writing only; a database, for instance, is also read."""
    prefix = os.path.join(top, b"")
    return {path for pid in _list(PROC) if pid.isdigit() for path in _find_in(os.path.join(PROC, pid), prefix)}


def _find_in(process: bytes, prefix: bytes) -> set[bytes]:
    written = set()
    for number in _list(os.path.join(process, b"fd")):
        try:
            path = os.readlink(os.path.join(process, b"fd", number))
            if path.startswith(prefix) and _is_written(os.path.join(process, b"fdinfo", number)):
                written.add(path)
        except OSError:
            continue  # closed, or its process ended, meanwhile
    return written


def _is_written(info: bytes) -> bool:
    with open(info, "rb") as file:
        flags = re.search(rb"^flags:\s*([0-7]+)", file.read(), re.MULTILINE)
    return flags is not None and int(flags[1], 8) & os.O_ACCMODE == os.O_WRONLY


def _list(folder: bytes) -> list[bytes]:
    """Empty for a process that is gone or belongs to somebody else, and where there is no /proc."""
    try:
        return os.listdir(folder)
    except OSError:
        return []
