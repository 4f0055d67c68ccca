"""Programs on a terminal of their own, at which a test sits."""

from __future__ import annotations

import os
import pty
import select
import subprocess
import time
from pathlib import Path

from conftest import HANGS, clean_env


class OnTerminal:
    """A program whose controlling terminal is ours to type at."""

    def __init__(self, folder: Path, *command: str, env: dict[str, str] | None = None) -> None:
        self._ours, theirs = pty.openpty()
        ends = {"stdin": theirs, "stdout": theirs, "stderr": theirs}
        self._program = subprocess.Popen(
            ["setsid", "--ctty", *command], cwd=folder, env=clean_env({"NO_COLOR": "1", **(env or {})}), **ends
        )
        os.close(theirs)
        self.shown, self._awaited = "", 0

    def await_shown(self, text: str, timeout: float = 60) -> str:
        """All that is shown up to this text, after what was awaited before."""
        deadline = time.monotonic() + timeout
        while (found := self.shown.find(text, self._awaited)) < 0:
            assert select.select([self._ours], [], [], max(0.0, deadline - time.monotonic()))[0], self.shown
            self.shown += os.read(self._ours, 4096).decode(errors="replace")
        began, self._awaited = self._awaited, found + len(text)
        return self.shown[began : self._awaited]

    def type(self, keys: str) -> None:
        os.write(self._ours, keys.encode())

    def wait(self) -> int:
        """Reading to the end, so that it never waits for us."""
        try:
            while data := os.read(self._ours, 4096):
                self.shown += data.decode()
        except OSError:  # all of its other ends are closed
            pass
        return self._program.wait(HANGS)

    def close(self) -> None:
        self._program.kill()
        self._program.wait()
        os.close(self._ours)
