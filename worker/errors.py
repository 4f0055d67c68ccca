"""What can go wrong inside a process.

WorkerError
├── MissingPackageError   an optional package is not installed; names the extra
├── DataError             a source, stream, map or collate gave what cannot be used; names the record
├── DisagreementError     processes differ in what must be equal; raised on all of them
├── CheckpointError       a checkpoint that cannot be used, or a folder that cannot hold one
└── SettingsError         the built-in job's command line: exit code 2
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager


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


class SettingsError(WorkerError, ValueError):
    exit_code = 2


@contextmanager
def naming(where: str) -> Iterator[None]:
    """Whatever goes wrong with data says where."""
    try:
        yield
    except Exception as error:
        raise DataError(f"{where}: {tell(error)}") from error


def tell(error: Exception) -> str:
    return str(error) if isinstance(error, DataError) else f"{type(error).__name__}: {error}"
