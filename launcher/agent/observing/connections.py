"""The TCP connections of a process, and which of them stand still: what was sent is not acknowledged."""

from __future__ import annotations

import os
import re
import socket
import struct
from itertools import islice
from typing import Dict, List, NamedTuple, Set

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


def list_connections(pid: int) -> List[Connection]:
    """Stalled ones first; empty where there are none, and where this user may not know."""
    inodes = _list_sockets(pid)
    found: Dict[str, Connection] = {}
    for name in ("tcp", "tcp6") if inodes else ():
        try:
            with open(f"/proc/{pid}/net/{name}", encoding="ascii", errors="replace") as file:
                for line in islice(file, MAX_LINES):
                    fields = line.split()
                    if len(fields) > INODE and fields[INODE] in inodes and not fields[REMOTE].endswith(":0000"):
                        found[fields[INODE]] = _parse(fields)
        except (OSError, ValueError, struct.error):
            continue  # a kernel without IPv6, or a process that is gone
    return sorted(found.values(), key=lambda each: not each.is_stalled)[:MAX_CONNECTIONS]


def _list_sockets(pid: int) -> Set[str]:
    found = set()
    try:
        for name in os.listdir(f"/proc/{pid}/fd"):
            try:
                match = SOCKET.match(os.readlink(f"/proc/{pid}/fd/{name}"))
            except OSError:
                continue  # closed in between
            if match:
                found.add(match[1])
    except OSError:
        pass
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
