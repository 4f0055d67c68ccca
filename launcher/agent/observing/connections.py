"""The TCP connections of a process, and which of them stand still: what was sent is not acknowledged."""

from __future__ import annotations

import os
import re
import socket
import struct
from itertools import islice
from typing import Dict, List, NamedTuple

from hostmesh.launcher.agent.files import list_open

# In a line of /proc/PID/net/tcp, split at blanks: `0: 0100007F:1F90 0100007F:C350 01 00000A00:00000000 01:000000C8
# 00000003 0 0 4711 …`.
LOCAL, REMOTE, QUEUES, TIMER, RETRIES, INODE = 1, 2, 4, 5, 6, 9
RETRANSMITTING = "01"  # as the first half of the timer
# Sent again so often without an answer, the first time after 0.2 s or more, then after ever longer ones.
STALLED_AFTER = 3
MAPPED = "::ffff:"  # an IPv4 address, in a socket for both
MAX_LINES = 20_000
MAX_CONNECTIONS = 500
SOCKET = re.compile(r"socket:\[(\d+)\]")


class Connection(NamedTuple):
    """Both ends as `address:port`."""

    local: str
    remote: str
    is_stalled: bool


class Connections:
    """Of all processes of a host at one time: those of one network namespace share its tables, which may be long and
    are read once."""

    def __init__(self) -> None:
        self._tables: Dict[str, Dict[str, List[str]]] = {}  # the fields of each line by its inode

    def list(self, pid: int) -> List[Connection]:
        """Stalled ones first; empty where there are none, and where this user may not know."""
        table = self._table_of(pid)
        sockets = [match[1] for _, what in list_open(pid) if (match := SOCKET.match(what))]
        found = [_parse(table[inode]) for inode in sockets if inode in table]
        return sorted(found, key=lambda each: not each.is_stalled)[:MAX_CONNECTIONS]

    def _table_of(self, pid: int) -> Dict[str, List[str]]:
        try:
            namespace = os.readlink(f"/proc/{pid}/ns/net")
        except OSError:
            return {}
        if namespace not in self._tables:
            self._tables[namespace] = _read_table(pid)
        return self._tables[namespace]


def _read_table(pid: int) -> Dict[str, List[str]]:
    found = {}
    for name in ("tcp", "tcp6"):
        try:
            with open(f"/proc/{pid}/net/{name}", encoding="ascii", errors="replace") as file:
                for line in islice(file, 1, MAX_LINES):  # below the titles
                    fields = line.split()
                    if len(fields) > INODE and not fields[REMOTE].endswith(":0000"):  # which only listens
                        found[fields[INODE]] = fields
        except OSError:
            continue  # a kernel without IPv6, or a process that is gone
    return found


def _parse(fields: List[str]) -> Connection:
    unsent = int(fields[QUEUES].partition(":")[0], 16)
    is_trying = fields[TIMER].startswith(RETRANSMITTING) and int(fields[RETRIES], 16) >= STALLED_AFTER
    return Connection(_parse_end(fields[LOCAL]), _parse_end(fields[REMOTE]), bool(unsent) and is_trying)


def _parse_end(text: str) -> str:
    """Of `0100007F:1F90`, where every four bytes are a number in the byte order of the machine."""
    address, _, port = text.partition(":")
    words = [int(address[start : start + 8], 16) for start in range(0, len(address), 8)]
    family = socket.AF_INET if len(words) == 1 else socket.AF_INET6
    name = socket.inet_ntop(family, struct.pack(f"={len(words)}I", *words))
    if name.startswith(MAPPED) and "." in name:
        name = name[len(MAPPED) :]
    return f"{name}:{int(port, 16)}"
