"""What can go wrong inside a process.

WorkerError
├── MissingPackageError   an optional package is not installed; names the extra
├── DataError             a source, stream, map or collate gave what cannot be used; names the record
│   └── StoreError        an object store did not give what was asked of it, whichever record that was for
├── DisagreementError     processes differ in what must be equal; raised on all of them
├── CheckpointError       a checkpoint that cannot be used, or a folder that cannot hold one
├── NotFiniteError        training has come to numbers that are not finite; raised on all processes
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


class StoreError(DataError):
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
def error_context(where: str) -> Iterator[None]:
    """Whatever the body raises becomes a DataError whose message begins with `where`."""
    try:
        yield
    except Exception as error:
        raise as_data_error(where, error) from error


def as_data_error(where: str, error: Exception) -> DataError:
    """`map at train.py:12 in prepare: KeyError: 'caption'`. A DataError only gets `where` before its message."""
    if isinstance(error, DataError):
        return DataError(f"{where}: {error}")
    # Not at the top: the launcher knows these errors too, and starts sooner without what looks into tracebacks.
    from hostmesh.worker.process.user_frames import find_user_frame

    frame = find_user_frame(error.__traceback__)
    return DataError(f"{where}{f' at {frame}' if frame else ''}: {type(error).__name__}: {error}")
