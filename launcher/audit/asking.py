"""The recount of records, in a Python of its own: it needs numpy, which the launcher itself never imports."""

from __future__ import annotations

import json
import os
import select
import subprocess
import sys
import tempfile
import time
from typing import IO, Any

# It imports this very package, also where another version is installed; nothing else comes from beside it first.
PROGRAM = """import sys
sys.path.insert(0, sys.argv[1])
import hostmesh
sys.path.append(sys.path.pop(0))
from hostmesh.worker.audit.recount import main
main()"""
# Records that are recounted at the end of a run, which takes some ten seconds, and how long that may take for all
# loaders together.
MAX_RECORDS = 1 << 26
# Of a table with a byte for each record of the data.
MAX_LENGTH = 1 << 28
TIMEOUT = 60.0
LATER = "`python -m hostmesh.launcher.audit RUNFOLDER` recounts it however long that takes"


class Recounter:
    """Answers questions, or says why it cannot. Its Python is started by the first one and serves all: a line each."""

    def __init__(self, timeout: float | None = TIMEOUT) -> None:
        """With a timeout only so much is recounted that nobody waits long for the end of a run."""
        self._timeout = timeout
        self._deadline = float("inf")
        self._python: subprocess.Popen[str] | None = None
        self._said: IO[str] = tempfile.TemporaryFile("w+", errors="replace")  # noqa: SIM115, closed by __exit__

    def __enter__(self) -> Recounter:
        return self

    def __exit__(self, *_: object) -> None:
        self._end()
        self._said.close()

    def __call__(self, question: dict[str, Any]) -> dict[str, Any] | str:
        if self._timeout is not None and (why := find_excess(question)):
            return why
        try:
            python = self._python or self._start()
            assert python.stdin is not None and python.stdout is not None
            python.stdin.write(json.dumps(question) + "\n")
            python.stdin.flush()
            left = None if self._timeout is None else max(0.0, self._deadline - time.monotonic())
            if not select.select([python.stdout], [], [], left)[0]:
                self._end()
                return f"the recount took longer than {self._timeout:g} s; {LATER}"
            answer: dict[str, Any] = json.loads(python.stdout.readline())
            return answer
        except (OSError, ValueError) as error:
            return f"the recount failed: {self._find_last_words() or error}"

    def _start(self) -> subprocess.Popen[str]:
        package = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
        command = [sys.executable, "-P", "-c", PROGRAM, os.path.dirname(package)]
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": self._said}
        if self._timeout is not None:
            self._deadline = min(self._deadline, time.monotonic() + self._timeout)
        self._python = subprocess.Popen(command, text=True, **pipes)  # type: ignore[call-overload]
        return self._python

    def _find_last_words(self) -> str:
        code = self._end()
        self._said.seek(0)
        said = self._said.read().strip().splitlines()
        self._said.truncate(0)
        self._said.seek(0)
        return said[-1] if said else f"exit code {code}" if code else ""

    def _end(self) -> int | None:
        """Its exit code. The next question starts another one."""
        python, self._python = self._python, None
        if python is None:
            return None
        assert python.stdin is not None and python.stdout is not None
        python.kill()
        code = python.wait()
        python.stdout.close()
        try:
            python.stdin.close()
        except OSError:
            pass  # what it has not read any more
        return code


def find_excess(question: dict[str, Any]) -> str:
    """What is too much to recount, or nothing."""
    spec = question["spec"]
    ranges = [*question["passes"], *(segment for share in question["shares"] for segment in share["segments"])]
    steps = max(last for _, last in ranges) - min(first for first, _ in ranges) + 1
    if steps * spec["batch_size"] > MAX_RECORDS:
        return f"{steps * spec['batch_size']:,} records are more than the {MAX_RECORDS:,} recounted at once; {LATER}"
    length = sum(spec["mixture"]["lengths"]) if "mixture" in spec else spec["length"]
    if length > MAX_LENGTH:
        return f"a table of {length:,} records has more than {MAX_LENGTH:,} bytes; {LATER}"
    return ""
