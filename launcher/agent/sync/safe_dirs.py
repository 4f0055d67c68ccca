"""Folders below one folder, opened a name at a time and never through a link."""

from __future__ import annotations

import errno
import os
from typing import List, Tuple

FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW


class NotADirectory(Exception):
    """A file or a link stands where a folder is wanted; `path` is its name below the top."""

    def __init__(self, path: bytes) -> None:
        super().__init__(path)
        self.path = path


class SafeDirs:
    """Keeps the folders of the last path open, so that paths in sorted order open each folder once."""

    def __init__(self, top: int) -> None:
        self._top = top
        self._open: List[Tuple[bytes, int]] = []

    def open(self, path: bytes, make: bool = False) -> int:
        """A descriptor of the folder, valid until the next call."""
        names = path.split(b"/") if path else []
        self._close_below(self._count_shared(names))
        for name in names[len(self._open) :]:
            self._open.append((name, self._enter(name, make)))
        return self._deepest

    def close(self) -> None:
        self._close_below(0)

    @property
    def _deepest(self) -> int:
        return self._open[-1][1] if self._open else self._top

    def _count_shared(self, names: List[bytes]) -> int:
        """How many of the open folders are above `names`, too."""
        opened = [name for name, _ in self._open]
        while opened != names[: len(opened)]:
            opened.pop()
        return len(opened)

    def _close_below(self, depth: int) -> None:
        while len(self._open) > depth:
            os.close(self._open.pop()[1])

    def _enter(self, name: bytes, make: bool) -> int:
        try:
            if make:
                make_folder(name, self._deepest)
            return os.open(name, FOLDER, dir_fd=self._deepest)
        except OSError as error:
            if error.errno in (errno.ENOTDIR, errno.ELOOP):
                raise NotADirectory(b"/".join([opened for opened, _ in self._open] + [name])) from None
            raise


def make_folder(name: bytes, above: int) -> None:
    try:
        os.mkdir(name, 0o755, dir_fd=above)
    except FileExistsError:
        pass
