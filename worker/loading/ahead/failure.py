"""What making a batch has raised, kept for its turn."""

from __future__ import annotations

from hostmesh.worker.errors import DataError


class Failure:
    """Hands out what was raised once, and copies of it from then on.

    A traceback holds the frames of whoever catches the error, and with them the loader: who keeps it keeps the loader.
    """

    def __init__(self, error: BaseException) -> None:
        self._error = error

    @classmethod
    def of_raised(cls, error: BaseException) -> Failure:
        """Of an error that is on its way to the user already."""
        return cls(copy_without_traceback(error))

    def take(self) -> BaseException:
        error = self._error
        self._error = copy_without_traceback(error)
        return error


def copy_without_traceback(error: BaseException) -> BaseException:
    try:
        return type(error)(*error.args)
    except Exception:  # its class wants something that is not among its arguments
        return DataError(f"{type(error).__name__}: {error}")
