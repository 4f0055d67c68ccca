"""Which library's native code a thread waits in, from the return addresses on its stack.

Python's own stacks end where native code begins: a thread that waits in a jitted function and one that waits for a lock
look alike there. This reads the memory of the process, which an agent may, as its ancestor and the same user.
"""

from __future__ import annotations

import os
import re
import struct
from typing import List, Optional, Tuple

# The system's own, through which everybody waits.
SYSTEM = re.compile(r"^(libc|libpthread|ld-linux\S*|librt|libm|libstdc\+\+|libgcc_s|libdl)[-.]")
STACK_READ = 16 << 10


def find_library(pid: int, thread: int) -> Optional[str]:
    """Its file name, `libjax_common.so`; None for a thread that runs, and where this user may not know."""
    try:
        with open(f"/proc/{pid}/task/{thread}/syscall", "rb", buffering=0) as file:
            fields = file.read().split()
        if len(fields) < 3:
            return None  # b"running"
        stack_pointer = int(fields[-2], 16)
        with open(f"/proc/{pid}/mem", "rb", buffering=0) as file:
            file.seek(stack_pointer)
            data = file.read(STACK_READ)
        code = _read_code_ranges(pid)
    except (OSError, ValueError, OverflowError):
        return None
    for (word,) in struct.iter_unpack("=Q", data[: len(data) // 8 * 8]):
        for start, end, name in code:
            if start <= word < end:
                return name
    return None


def _read_code_ranges(pid: int) -> List[Tuple[int, int, str]]:
    """Where code is mapped, without the system's libraries: `7f5b…-7f5b… r-xp 0002a000 fe:00 1234 /usr/lib/x.so`."""
    found = []
    with open(f"/proc/{pid}/maps", encoding="utf-8", errors="replace") as file:
        for line in file:
            fields = line.split(None, 5)
            name = os.path.basename(fields[5].strip()) if len(fields) > 5 else ""
            if "x" in fields[1] and name and not name.startswith("[") and not SYSTEM.match(name):
                start, _, end = fields[0].partition("-")
                found.append((int(start, 16), int(end, 16), name))
    return found
