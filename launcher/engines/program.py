"""A program of an engine, asked one thing: whoever asks says what its failures mean."""

from __future__ import annotations

import subprocess
from collections.abc import Sequence


def run_program(argv: Sequence[str], stdin: str, timeout: float) -> subprocess.CompletedProcess[str]:
    """In a session of its own: Ctrl-C is for the launcher alone."""
    return subprocess.run(
        argv, input=stdin, capture_output=True, text=True, errors="replace", timeout=timeout, start_new_session=True
    )
