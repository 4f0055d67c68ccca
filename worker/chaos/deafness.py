"""Makes this process deaf: what others send to its connections is dropped, as by a firewall; it takes no rights."""

from __future__ import annotations

import ctypes
import math
import os
import socket
import struct
import threading
import time
from contextlib import suppress

SO_ATTACH_FILTER, SO_DETACH_FILTER = 26, 27
# The program of a socket filter that keeps nothing of any packet: `return 0`.
DROP_ALL = ctypes.create_string_buffer(struct.pack("=HBBI", 0x06, 0, 0, 0), 8)
LOOK_EVERY = 0.2


def deafen(seconds: float | None) -> None:
    """What this process sends still leaves it, as far as that goes without an answer. Connections that it makes later
    are deaf a moment after they are made."""
    until = math.inf if seconds is None else time.monotonic() + seconds
    _attach()
    threading.Thread(target=_stay_deaf, args=(until,), name="hostmesh deafness", daemon=True).start()


def _stay_deaf(until: float) -> None:
    while time.monotonic() < until:
        time.sleep(min(LOOK_EVERY, max(0.0, until - time.monotonic())))
        _attach()
    _set_all(SO_DETACH_FILTER, 0)


def _attach() -> None:
    _set_all(SO_ATTACH_FILTER, struct.pack("@HP", 1, ctypes.addressof(DROP_ALL)))


def _set_all(option: int, value: int | bytes) -> None:
    for name in os.listdir("/proc/self/fd"):
        with suppress(OSError):  # of what is no socket, or is gone
            end = socket.socket(fileno=int(name))
            try:
                if end.family in (socket.AF_INET, socket.AF_INET6):
                    end.setsockopt(socket.SOL_SOCKET, option, value)
            finally:
                end.detach()  # it belongs to somebody else, and stays open
