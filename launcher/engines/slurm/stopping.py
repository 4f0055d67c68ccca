"""What Ctrl-C means for a job that could go on without us: on a terminal the user says."""

from __future__ import annotations

import os
import queue
import select
import sys
from typing import Literal

from hostmesh.launcher.engines.slurm.batch import AS_SIGTERM
from hostmesh.launcher.engines.slurm.commands import JobInfo, ask
from hostmesh.launcher.errors import UsageError

Choice = Literal["stop", "leave"]


def ask_what_to_do(job: str, info: JobInfo, signals: queue.SimpleQueue[int]) -> Choice:
    """A second Ctrl-C meanwhile, an end of input, or no terminal: stop."""
    if not (sys.stdin.isatty() and sys.stderr.isatty()):
        return "stop"
    does = "waits" if info.is_waiting else "runs"
    while signals.empty():
        question = f"\nlaunch: job {job} {does}: stop it, or leave it to Slurm? [s/l] "
        print(question, end="", file=sys.stderr, flush=True)
        answer = _read_line(signals)
        if answer in ("l", "leave"):
            return "leave"
        if answer in ("", "s", "stop"):
            break
    return "stop"


def _read_line(signals: queue.SimpleQueue[int]) -> str:
    """Empty for a signal or the end of input."""
    text = b""
    while signals.empty() and not text.endswith(b"\n"):
        ready, _, _ = select.select([0], [], [], 0.1)
        if ready:
            data = os.read(0, 256)
            if not data:
                return ""
            text += data
    return text.decode(errors="replace").strip().lower()


def stop_job(job: str, now: bool = True) -> None:
    """At once: Slurm ends all of it, or takes it out of its queue. In order: the launcher in it hears SIGTERM."""
    answer = ask(["scancel", *([] if now else ["--batch", f"--signal={AS_SIGTERM}"]), job])
    if answer.code != 0:
        raise UsageError(f"scancel {job}: {answer.error_text}")
