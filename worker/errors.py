"""What can go wrong inside a process.

WorkerError
├── MissingPackageError   an optional package is not installed; names the extra
├── DataError             a source, stream, map or collate gave what cannot be used; names the record
├── DisagreementError     processes differ in what must be equal; raised on all of them
├── CheckpointError       a checkpoint that cannot be used, or a folder that cannot hold one
├── NotFiniteError        training has come to numbers that are not finite; raised on all processes
└── SettingsError         the built-in job's command line: exit code 2
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from hostmesh.worker.process.place import find_place

MAX_SHOWN = 4


class WorkerError(Exception):
    """Its message is for the user: what was found, what was wanted, where to look."""

    exit_code = 1


class MissingPackageError(WorkerError, ImportError):
    pass


class DataError(WorkerError, ValueError):
    pass


class DisagreementError(WorkerError, RuntimeError):
    pass


class CheckpointError(WorkerError, RuntimeError):
    pass


class NotFiniteError(WorkerError, ArithmeticError):
    pass


class SettingsError(WorkerError, ValueError):
    exit_code = 2


@contextmanager
def naming(where: str) -> Iterator[None]:
    """Whatever goes wrong with data says where."""
    try:
        yield
    except Exception as error:
        raise blame(where, error) from error


def blame(where: str, error: Exception) -> DataError:
    """`map at train.py:12 in prepare: KeyError: 'caption'`; an error that explains itself needs no place."""
    if isinstance(error, DataError):
        return DataError(f"{where}: {error}")
    place = find_place(error.__traceback__)
    return DataError(f"{where}{f' at {place}' if place else ''}: {type(error).__name__}: {error}")


def list_some(parts: Sequence[str]) -> str:
    """`first; second; …; and 12 more`."""
    more = len(parts) - MAX_SHOWN
    return "; ".join([*parts[:MAX_SHOWN], *([f"and {more} more"] if more > 0 else [])])
