"""The seam: what a checkpoint needs of the place where its steps lie."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple, Protocol


class Mark(NamedTuple):
    """A small file as it was found. `changed` is another value after each change."""

    changed: Any
    text: str


class Place(Protocol):
    """Steps, and beside them small files by name (marks). What goes wrong is an OSError that says why."""

    @property
    def path(self) -> Path | str:
        """What the user knows it by: a path, or a URL."""

    def make_ready(self) -> None:
        """Make the folder, where there are folders."""

    def list_marks(self, beginning: str) -> list[str]: ...

    def exists(self, name: str) -> bool:
        """Of a mark, or of a saved step by its number."""

    def create(self, name: str) -> bool:
        """Make an empty mark; False if it is there. Of many processes one succeeds."""

    def read(self, name: str) -> Mark | None:
        """None where there is no such mark."""

    def write(self, name: str, text: str) -> None:
        """Fill a mark that this process has created."""

    def touch(self, name: str) -> None:
        """Change a mark of this process, so that others see it live."""

    def remove(self, name: str) -> None:
        """A mark, or nothing."""

    def list_steps(self) -> list[int]:
        """Those that are complete, in any order."""

    def remove_step(self, step: int) -> None:
        """At no time it looks like a whole step and is half a one."""

    def remove_leftovers(self) -> None:
        """What saves and removals left that never ended. Only the owner may."""

    def path_to_save(self, step: int) -> os.PathLike[str]:
        """For orbax: the path that the step is to have."""

    def path_to_read(self, step: int) -> os.PathLike[str]:
        """For orbax: the path where its data are."""

    def make_path_class(self, token: str, require_owned: Callable[[], None]) -> Any:
        """For orbax: where data are written until the step is complete, and how it becomes a step then.

        The token keeps two programs from writing into one place; `require_owned` is called just before the step shows.
        """

    def explain(self, error: Exception) -> str:
        """Why saving or reading failed, in one line."""

    def find_part_class(self) -> Any:
        """The same for the parts of a step; None leaves it to orbax."""
