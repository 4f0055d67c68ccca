"""Applies variables that a native library has read before a script set them, where the library can still be told."""

from __future__ import annotations

import ctypes
import os
import re
from collections.abc import Iterable, Mapping
from typing import NamedTuple

COUNT = re.compile(r"\s*(\d+)")


class LibraryKind(NamedTuple):
    """A kind of library: a pattern for its file names, prefixes of the variables that it reads when it is loaded, those
    of them that set its number of threads, the strongest first, and the functions that set that number later."""

    files: str
    reads: tuple[str, ...]
    threads: tuple[str, ...] = ()
    setters: tuple[str, ...] = ()
    is_limited_to_cores: bool = False


# Found by recording each getenv() while numpy and jax were imported.
KNOWN_LIBRARIES = (
    LibraryKind(
        r"lib\w*openblas",
        ("OPENBLAS_", "GOTO_NUM_THREADS", "OMP_NUM_THREADS", "OMP_ADAPTIVE"),
        ("OPENBLAS_NUM_THREADS", "GOTO_NUM_THREADS", "OMP_NUM_THREADS"),
        tuple(f"{package}openblas_set_num_threads{ints}" for package in ("", "scipy_") for ints in ("", "64_")),
        is_limited_to_cores=True,
    ),
    LibraryKind(
        r"libmkl_rt",
        ("MKL_", "KMP_", "OMP_NUM_THREADS"),
        ("MKL_NUM_THREADS", "OMP_NUM_THREADS"),
        ("MKL_Set_Num_Threads",),
    ),
    LibraryKind(r"lib(gomp|omp|iomp5)\b", ("OMP_", "GOMP_", "KMP_"), ("OMP_NUM_THREADS",), ("omp_set_num_threads",)),
    LibraryKind(r"_multiarray_umath", ("NPY_", "NUMPY_")),
    LibraryKind(r"libjax_common|xla_extension", ("TF_CPP_", "TF_USE_MODULAR_FILESYSTEM", "MPITRAMPOLINE_", "GCS_")),
)


class Library(NamedTuple):
    path: str
    kind: LibraryKind

    @property
    def package(self) -> str | None:
        """`numpy` for a file below site-packages/numpy or site-packages/numpy.libs; None for the system's own."""
        _, found, inside = self.path.rpartition("-packages/")
        return inside.partition("/")[0].removesuffix(".libs") if found else None

    def apply(self, changed: Iterable[str]) -> list[str]:
        """Apply changed variables; returns those that the library has read and that cannot be applied any more."""
        read = [name for name in changed if name.startswith(self.kind.reads)]
        applied = set(read) & set(self.kind.threads)
        if applied and not self._set_threads():
            applied = set()
        return sorted(set(read) - applied)

    def _set_threads(self) -> bool:
        try:
            library = ctypes.CDLL(self.path, mode=os.RTLD_NOLOAD | os.RTLD_LAZY)
        except OSError:
            return False
        for name in self.kind.setters:
            if (setter := getattr(library, name, None)) is not None:
                setter(ctypes.c_int(_count_threads(self.kind, os.environ)))
                return True
        return False


def find_loaded() -> list[Library]:
    """The known libraries that this process has loaded."""
    try:
        with open("/proc/self/maps") as file:
            paths = {line.split(maxsplit=5)[5].rstrip("\n") for line in file if "/" in line}
    except OSError:
        return []
    found = [
        (path, kind)
        for path in sorted(paths)
        for kind in KNOWN_LIBRARIES
        if re.match(kind.files, os.path.basename(path))
    ]
    return [Library(path, kind) for path, kind in found]


def _count_threads(kind: LibraryKind, env: Mapping[str, str]) -> int:
    """As the libraries do: the first that is a number above 0, else one for each core."""
    cores = len(os.sched_getaffinity(0))
    found = [int(match[1]) for name in kind.threads if (match := COUNT.match(env.get(name, "")))]
    count = next((number for number in found if number > 0), cores)
    return min(count, cores) if kind.is_limited_to_cores else count
