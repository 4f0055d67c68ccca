"""Steps in a folder that every host mounts: each is a folder, which gets its number by a rename when it is complete."""

from __future__ import annotations

import errno
import os
import re
import shutil
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

from hostmesh.worker.errors import CheckpointError
from hostmesh.worker.process.facts import send_fact
from hostmesh.worker.saving.stores.base import Mark

# `40.orbax-checkpoint-tmp-1f2e3d`: a save that never ended. `40.old`: a step that is being removed.
LEFTOVER = re.compile(r"\d+\.(orbax-checkpoint-tmp.*|old)")


class Mounted:
    def __init__(self, path: Path) -> None:
        self.path = path

    def make_ready(self) -> None:
        self.path.mkdir(parents=True, exist_ok=True)

    def list_marks(self, beginning: str) -> list[str]:
        return [name for name in os.listdir(self.path) if name.startswith(beginning)]

    def exists(self, name: str) -> bool:
        return (self.path / name).exists()

    def create(self, name: str) -> bool:
        try:
            os.close(os.open(self.path / name, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o644))
        except FileExistsError:
            return False
        return True

    def read(self, name: str) -> Mark | None:
        """It is opened each time: only that makes a network filesystem look again."""
        file = self.path / name
        try:
            with file.open("rb") as opened:
                return Mark(os.fstat(opened.fileno()).st_mtime_ns, opened.read().decode(errors="replace"))
        except OSError as error:
            if error.errno in (errno.ENOENT, errno.ENOTDIR, errno.ESTALE):
                return None
            if error.errno != errno.EACCES:
                raise
            return Mark(file.stat().st_mtime_ns, "")

    def write(self, name: str, text: str) -> None:
        (self.path / name).write_text(text)

    def touch(self, name: str) -> None:
        os.utime(self.path / name)

    def remove(self, name: str) -> None:
        (self.path / name).unlink(missing_ok=True)

    def list_steps(self) -> list[int]:
        return [int(entry.name) for entry in self.path.iterdir() if entry.name.isdecimal()]

    def remove_step(self, step: int) -> None:
        """Renames it first: a step that is half removed must not look like a whole one."""
        old = self.path / f"{step}.old"
        with suppress(FileNotFoundError):  # somebody was quicker
            (self.path / str(step)).rename(old)
        shutil.rmtree(old, ignore_errors=True)

    def remove_leftovers(self) -> None:
        for entry in self.path.iterdir():
            if LEFTOVER.fullmatch(entry.name):
                shutil.rmtree(entry)

    def path_to_save(self, step: int) -> Path:
        return self.path / str(step)

    path_to_read = path_to_save

    def make_path_class(self, token: str, require_owned: Callable[[], None]) -> Any:
        """By itself orbax names the folder of an unfinished save by its step alone: two programs would write into one.

        A save is complete when it gets its own name, in the first process and in a thread of orbax's. That is told at
        once: whoever goes on after a crash goes on from there.
        """
        from orbax.checkpoint.path import atomicity

        class OwnersPath(atomicity.AtomicRenameTemporaryPath):  # type: ignore[misc]
            @classmethod
            def from_final(cls, final_path: Any, **options: Any) -> Any:
                name = f"{final_path.name}{atomicity.TMP_DIR_SUFFIX}-{token}"
                return cls(final_path.parent / name, final_path, **options)

            async def finalize(self) -> None:
                require_owned()
                await super().finalize()
                if (name := self.get_final().name).isdecimal():  # and no part of a step
                    send_fact("saved", must_arrive=True, step=int(name))

        return OwnersPath

    def explain(self, error: Exception) -> str:
        if "No space left" in str(error):
            return "no space left on the device"
        return str(error) if isinstance(error, CheckpointError) else f"{type(error).__name__}: {error}".splitlines()[0]

    def find_part_class(self) -> None:
        return None
