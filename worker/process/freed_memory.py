"""Tells the C library to keep memory that was freed: a choice for a whole process, so its owner makes it."""

from __future__ import annotations

import ctypes
import sys

# From malloc.h; 32 MiB is the most the second may be.
M_TRIM_THRESHOLD, M_MMAP_THRESHOLD = -1, -3
MMAP_THRESHOLD, TRIM_THRESHOLD = 32 << 20, 128 << 20


def keep_freed_memory() -> None:
    """Tell the C library not to hand memory back to the system that the next batch will ask for again.

    For scripts that load small batches at a high rate: the temporary arrays of a `map` cost 70 page faults a batch
    otherwise, for 256 small images. The process keeps up to 128 MiB more. It holds for every library in this process,
    so a loader calls it only in processes that `launch` started. Elsewhere than on glibc it does nothing.
    """
    if sys.platform == "linux" and hasattr(libc := ctypes.CDLL(None), "mallopt"):
        libc.mallopt(M_MMAP_THRESHOLD, MMAP_THRESHOLD)
        libc.mallopt(M_TRIM_THRESHOLD, TRIM_THRESHOLD)
