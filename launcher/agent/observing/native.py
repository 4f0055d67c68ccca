"""Which library's native code a thread waits in, from the return addresses on its stack.

Python's own stacks end where native code begins: a thread that waits in a jitted function and one that waits for a lock
look alike there. This reads the memory of the process, which an agent may, as its ancestor and the same user.
"""

from __future__ import annotations

import os
import re
import struct
import time
from bisect import bisect_right
from typing import List, Optional, Tuple

from hostmesh.launcher.agent.observing.syscalls import find_numbers

# The system's own, through which everybody waits.
SYSTEM = re.compile(r"^(libc|libpthread|ld-linux\S*|librt|libm|libstdc\+\+|libgcc_s|libdl)[-.]")
JAX = re.compile(r"jax|xla|pjrt|libtpu|nccl", re.IGNORECASE)
# Of a core: a process that uses less, and is inside jax, waits for others or for its devices.
IDLE = 0.2
STACK_READ = 16 << 10
# System calls in which only others than jax wait, which does so for a futex: what looks like a return address into it
# is left over on the stack.
NOT_JAX = find_numbers(*("read", "pread", "readv", "nanosleep", "clock_nanosleep", "wait4", "waitid", "flock", "fsync"))
# A process that has begun to work loads few libraries more.
READ_CODE_EVERY = 20.0


class NativeStack:
    """Of the main thread of a process."""

    def __init__(self, pid: int) -> None:
        self._pid = pid
        self._starts: List[int] = []
        self._code: List[Tuple[int, str]] = []  # where each range ends, and whose it is
        self._read_at = float("-inf")

    def find_library(self) -> Optional[str]:
        """Its file name, `libjax_common.so`; None for a thread that runs, and where this user may not know."""
        try:
            call, data = self._read_stack()
            if data and time.monotonic() - self._read_at > READ_CODE_EVERY:
                self._read_code()
        except (OSError, ValueError, OverflowError):
            return None
        for (word,) in struct.iter_unpack("=Q", data[: len(data) // 8 * 8]):
            position = bisect_right(self._starts, word) - 1
            if position >= 0 and word < self._code[position][0]:
                name = self._code[position][1]
                if call not in NOT_JAX or not JAX.search(name):
                    return name
        return None

    def waits_in_jax(self) -> bool:
        return bool(JAX.search(self.find_library() or ""))

    def _read_stack(self) -> Tuple[int, bytes]:
        """The system call that the thread is in, and its stack; no stack of one that runs. From /proc/PID/syscall, `202
        0x55… … 0x7ffe… 0x7f5b…`: the call, its arguments, the stack pointer, the next instruction."""
        with open(f"/proc/{self._pid}/syscall", "rb", buffering=0) as file:
            fields = file.read().split()
        if len(fields) < 3:
            return -1, b""  # b"running"
        with open(f"/proc/{self._pid}/mem", "rb", buffering=0) as file:
            file.seek(int(fields[-2], 16))
            return int(fields[0]), file.read(STACK_READ)

    def _read_code(self) -> None:
        """Where code is mapped, without the system's libraries; from `7f5b…-7f5b… r-xp 0002a000 fe:00 12 /lib/x.so`."""
        self._read_at = time.monotonic()
        found = []
        with open(f"/proc/{self._pid}/maps", encoding="utf-8", errors="replace") as file:
            for line in file:
                fields = line.split(None, 5)
                name = os.path.basename(fields[5].strip()) if len(fields) > 5 else ""
                if "x" in fields[1] and name and not name.startswith("[") and not SYSTEM.match(name):
                    start, _, end = fields[0].partition("-")
                    found.append((int(start, 16), (int(end, 16), name)))
        found.sort()
        self._starts, self._code = [start for start, _ in found], [code for _, code in found]
