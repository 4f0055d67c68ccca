"""The last word of a loader, in a file that its agent reads once the process has ended: no kill can take it back.

Stdlib only, Python 3.9 or newer: agents have this module too.
"""

from __future__ import annotations

import json
import mmap
import os
import zlib
from collections.abc import Mapping
from typing import Any

from hostmesh.worker.identity import FACTS_SOCKET, PROCESS_ID

# The file has two halves, which are written in turn, so that a process that is killed in the middle of one leaves the
# other: `1a2b3c4d {"nth": 7, …}` and a line's end, where the first eight digits are the CRC of what is in the braces.
HALF = 1024


class LastWord:
    """Writing is a copy in memory: no system call, and nobody to wait for."""

    def __init__(self, loader: int) -> None:
        """Raises OSError where there is no room for it."""
        folder = os.path.dirname(os.environ[FACTS_SOCKET])
        path = os.path.join(folder, f"last-word-{os.environ[PROCESS_ID]}-{loader}")
        with open(path, "w+b", buffering=0) as file:
            file.write(bytes(2 * HALF))  # a page that only the first store would ask for may not be there
            self._memory = mmap.mmap(file.fileno(), 2 * HALF)
        self._nth, self._owner = 0, os.getpid()

    def write(self, detail: Mapping[str, Any]) -> bool:
        """False if it does not fit, or if a child of the process says it."""
        self._nth += 1
        data = json.dumps({"nth": self._nth, **detail}).encode()
        line = b"%08x %s\n" % (zlib.crc32(data), data)
        if len(line) > HALF or os.getpid() != self._owner:
            return False
        at = HALF * (self._nth % 2)
        self._memory[at : at + len(line)] = line
        return True


def open_last_word(loader: int) -> LastWord | None:
    try:
        return LastWord(loader)
    except OSError:
        return None


def read_last_word(data: bytes) -> dict[str, Any]:
    """The later one of two words, of which the process may have written one only in part; nothing if it wrote none."""
    words = []
    for half in (data[:HALF], data[HALF:]):
        checksum, _, text = half.partition(b"\n")[0].partition(b" ")
        if text and b"%08x" % zlib.crc32(text) == checksum:
            words.append(json.loads(text))
    last: dict[str, Any] = max(words, key=lambda word: word["nth"], default={})
    last.pop("nth", None)
    return last
