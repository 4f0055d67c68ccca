"""`hostmesh.report`: how training goes, step by step, told to the launcher without ever waiting for a device."""

from __future__ import annotations

import atexit
import os
import sys
from typing import Any

from hostmesh.worker.recording.recorder import RECORDER
from hostmesh.worker.reporting.reports import Reports

EXIT_TIMEOUT = 5.0


def report(step: int, **metrics: Any) -> None:
    """Tell the launcher how training goes; call it at every step, and whenever else there is something to tell.

    A metric is a Python number, or a scalar of NumPy or jax. A jax scalar may still be in computation: nobody waits
    for it, it is sent by a later call that finds it ready, or at the end of the process. So that no process talks all
    the time, calls send every half second at most, and of each name one value on average: up to 20 that were reported
    close together all arrive, of more than that some do. So a name that is reported now and then loses nothing
    to one that is reported at every step, and the last value of every name arrives.

    The launcher keeps what process 0 reports, with `--metrics all` what all of them do, as `metrics` in
    `events.jsonl`. A number that is not finite travels as text, and the run's last line tells of it. A scalar that was
    donated meanwhile, that lives on other processes only, or whose computation failed is left out.
    """
    global _is_exit_prepared
    if not _is_exit_prepared:
        _is_exit_prepared = True
        # Exit handlers run from the last one registered to the first: jax's own, which ends the devices, comes later.
        atexit.register(_leave)
        os.register_at_fork(after_in_child=_begin_anew)
    _reports.add(step, metrics)
    RECORDER.note_step(step)


def flush_report() -> None:
    """Send what has not been sent yet; this waits for its values. At the end of a process it happens by itself."""
    _reports.flush()


def flush_ready() -> None:
    """After a failure: send what is there. What is still in computation may never come, and is given up."""
    _reports.leave(timeout=0)


_reports = Reports()
_is_exit_prepared = False


def _leave() -> None:
    """At the end of the process. Where an exception has ended a plain Python, values may never come."""
    _reports.leave(0 if hasattr(sys, "last_value") else EXIT_TIMEOUT)


def _begin_anew() -> None:
    """What the parent has not sent yet is not for a forked child to send."""
    global _reports
    _reports = Reports()
