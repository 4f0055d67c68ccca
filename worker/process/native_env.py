"""Lets a variable count that a native library reads when it is loaded, and that a script sets after a warm start."""

from __future__ import annotations

import ctypes
import os
import re
from collections.abc import Iterable, Mapping
from typing import NamedTuple

COUNT = re.compile(r"\s*(\d+)")


class Kind(NamedTuple):
    """A sort of library: by the names of its files, the variables it reads when it is loaded (by their beginnings), and
    those among them that can be made up for: numbers of threads, the strongest first, and who sets them."""

    files: str
    reads: tuple[str, ...]
    threads: tuple[str, ...] = ()
    setters: tuple[str, ...] = ()
    most_is_cores: bool = False


# As seen by noting each getenv() while numpy and jax were imported.
KINDS = (
    Kind(
        r"lib\w*openblas",
        ("OPENBLAS_", "GOTO_NUM_THREADS", "OMP_NUM_THREADS", "OMP_ADAPTIVE"),
        ("OPENBLAS_NUM_THREADS", "GOTO_NUM_THREADS", "OMP_NUM_THREADS"),
        tuple(f"{package}openblas_set_num_threads{ints}" for package in ("", "scipy_") for ints in ("", "64_")),
        most_is_cores=True,
    ),
    Kind(
        r"libmkl_rt",
        ("MKL_", "KMP_", "OMP_NUM_THREADS"),
        ("MKL_NUM_THREADS", "OMP_NUM_THREADS"),
        ("MKL_Set_Num_Threads",),
    ),
    Kind(r"lib(gomp|omp|iomp5)\b", ("OMP_", "GOMP_", "KMP_"), ("OMP_NUM_THREADS",), ("omp_set_num_threads",)),
    Kind(r"_multiarray_umath", ("NPY_", "NUMPY_")),
    Kind(r"libjax_common|xla_extension", ("TF_CPP_", "TF_USE_MODULAR_FILESYSTEM", "MPITRAMPOLINE_", "GCS_")),
)


class Library(NamedTuple):
    path: str
    kind: Kind

    @property
    def package(self) -> str | None:
        """`numpy` for a file below site-packages/numpy or site-packages/numpy.libs; None for the system's own."""
        _, found, inside = self.path.rpartition("-packages/")
        return inside.partition("/")[0].removesuffix(".libs") if found else None

    def settle(self, changed: Iterable[str]) -> list[str]:
        """Make up for changed variables; returns those that it reads and for which that cannot be done."""
        concerned = [name for name in changed if name.startswith(self.kind.reads)]
        applied = set(concerned) & set(self.kind.threads)
        if applied and not self._set_threads():
            applied = set()
        return sorted(set(concerned) - applied)

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
    """Those of known kinds in this process."""
    try:
        with open("/proc/self/maps") as file:
            paths = {line.split(maxsplit=5)[5].rstrip("\n") for line in file if "/" in line}
    except OSError:
        return []
    found = [(path, kind) for path in sorted(paths) for kind in KINDS if re.match(kind.files, os.path.basename(path))]
    return [Library(path, kind) for path, kind in found]


def _count_threads(kind: Kind, env: Mapping[str, str]) -> int:
    """As the libraries do: the first that is a number above 0, else one for each core."""
    cores = len(os.sched_getaffinity(0))
    found = [int(match[1]) for name in kind.threads if (match := COUNT.match(env.get(name, "")))]
    count = next((number for number in found if number > 0), cores)
    return min(count, cores) if kind.most_is_cores else count
