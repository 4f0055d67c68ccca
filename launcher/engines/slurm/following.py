"""A batch job, followed from a login node: why it waits, what it prints, how it ended."""

from __future__ import annotations

import queue
import signal
import sys
import time
from typing import IO

from hostmesh.launcher.engines.slurm.batch import AS_SIGTERM
from hostmesh.launcher.engines.slurm.commands import JobInfo, ask, ask_job, ask_limits
from hostmesh.launcher.engines.slurm.queued import TERMINATED, exit_code_of, reason_of
from hostmesh.launcher.engines.slurm.settings import Slurm
from hostmesh.launcher.engines.slurm.stopping import ask_what_to_do
from hostmesh.launcher.engines.slurm.submitting import SlurmJob
from hostmesh.launcher.engines.slurm.tail import Tail
from hostmesh.launcher.errors import EXIT_INTERRUPTED, HostmeshError

# Seconds between two looks at the job's files, and between two questions to slurmctld, which serves many.
LOOK = 0.2
FIRST_ASK, MAX_ASK = 0.5, 10.0
# Between the end that the job's file tells and the one that Slurm tells, before we stop waiting for the latter.
WIND_UP = 20.0
# For a launcher in the allocation that was asked to stop; then Slurm ends its job.
STOP_TIMEOUT = 60.0
NEVER = ("PartitionTimeLimit", "PartitionNodeLimit", "PartitionDown", "PartitionInactive", "QOS", "Assoc", "Bad")
HANDLED = (signal.SIGINT, signal.SIGTERM)


def follow(job: SlurmJob, settings: Slurm) -> int:
    """The inner launcher's exit code. Signals that come meanwhile are this function's to handle."""
    follower = Follower(job, settings)
    before = {number: signal.signal(number, lambda number, _: follower.signals.put(number)) for number in HANDLED}
    signal.pthread_sigmask(signal.SIG_UNBLOCK, HANDLED)  # who submitted the job may have held them up
    try:
        return follower.run()
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


class Follower:
    def __init__(self, job: SlurmJob, settings: Slurm, out: IO[bytes] | None = None, err: IO[bytes] | None = None):
        self._job, self._settings = job, settings
        self._tails = [Tail(job.out, out or sys.stdout.buffer), Tail(job.err, err or sys.stderr.buffer)]
        self.signals: queue.SimpleQueue[int] = queue.SimpleQueue()  # safe in a signal handler
        self._asked_to_stop: int | None = None
        self._told, self._reason = "", ""
        self._pause, self._ask_at = FIRST_ASK, 0.0
        self._info = JobInfo("PENDING")
        self._began = time.monotonic()
        self._stop_by = float("inf")
        self._ended_at: float | None = None
        self._left = False

    def run(self) -> int:
        while True:
            self._look_at_signals()
            if self._left:
                return 0
            if self._is_over():
                return self._finish()
            if not self._show():
                self._wait()

    # The job.

    def _is_over(self) -> bool:
        now = time.monotonic()
        if self._ended_at is None and self._job.exit.exists():
            self._ended_at, self._ask_at = now, now  # ask at once
        if now > self._stop_by:
            self._tell(f"has not stopped within {STOP_TIMEOUT:g} s; cancelled")
            self._stop_by = float("inf")
            self._cancel()
        if now < self._ask_at:
            return False
        info = self._ask()
        if info is None:
            return self._job.exit.exists() or self._ended_at is not None
        self._note(info)
        self._ask_at = time.monotonic() + (LOOK if self._ended_at is not None else self._pause)
        self._pause = min(self._pause * 1.3, MAX_ASK)
        return info.is_over or self._ended_at is not None and now - self._ended_at > WIND_UP

    def _ask(self) -> JobInfo | None:
        try:
            info = ask_job(self._job.id)
        except HostmeshError as error:
            self._tell(f"{error} (asking again)")
            self._ask_at = time.monotonic() + MAX_ASK
            return self._info
        if info is None:
            self._ended_at = self._ended_at or time.monotonic()
        return info

    def _note(self, info: JobInfo) -> None:
        before, self._info = self._info, info
        if info.is_waiting:
            self._ended_at = None
            if not before.is_waiting:  # it was queued again
                self._began, self._reason = time.monotonic(), ""
            if info.reason not in ("None", ""):
                self._tell_reason(info)
            waited = time.monotonic() - self._began
            if self._settings.wait is not None and waited > self._settings.wait and self._asked_to_stop is None:
                self._tell(f"has waited for {self._settings.wait:g} s (wait: in the cluster file): cancelled")
                self._asked_to_stop = signal.SIGTERM
                self._cancel()
        elif info.state == "RUNNING" and before.state != "RUNNING":
            self._pause = FIRST_ASK
            self._tell(f"runs on {info.nodes}")

    def _tell_reason(self, info: JobInfo) -> None:
        """Once, until it changes; with the partition's limits where these are the reason."""
        if info.reason != self._reason:
            limits = self._ask_limits(info.partition) if info.reason.startswith(NEVER) else ""
            more = f" (partition {info.partition} has {limits}; it may wait for ever)" if limits else ""
            self._tell(f"is waiting: {info.reason}{more}")
        self._reason = info.reason

    def _ask_limits(self, partition: str) -> str:
        try:
            return ask_limits(partition)
        except HostmeshError:
            return ""

    def _finish(self) -> int:
        while self._show():
            pass
        info, code = self._info, self._read_exit()
        if code is not None and info.state in ("COMPLETED", "FAILED", "RUNNING", "COMPLETING", "PENDING"):
            return code
        self._tell(
            f"has ended: {info.state}{reason_of(info)}" + (f" on {info.nodes}" if info.state == "NODE_FAIL" else "")
        )
        if self._asked_to_stop is not None:
            return EXIT_INTERRUPTED if self._asked_to_stop == signal.SIGINT else TERMINATED
        if code:
            return code
        return exit_code_of(info)

    def _read_exit(self) -> int | None:
        try:
            text = self._job.exit.read_text().strip()
        except OSError:
            return None
        return int(text) if text.isdecimal() else None

    # Requests to stop.

    def _look_at_signals(self) -> None:
        while not self.signals.empty():
            self._note_signal(self.signals.get())

    def _note_signal(self, number: int) -> None:
        if self._asked_to_stop is not None:
            self._tell("cancelled")
            self._cancel()
            return
        if number == signal.SIGINT and ask_what_to_do(self._job.id, self._info, self.signals) == "leave":
            self._left = True
            self._tell(f"goes on without us; launch attach {self._job.run_id} shows it again")
            return
        self._asked_to_stop = number
        if self._info.is_waiting:
            self._tell("cancelled while it was waiting")
            self._cancel()
        else:
            self._tell("asked to stop (again: at once)")
            self._scancel("--batch", f"--signal={'INT' if number == signal.SIGINT else AS_SIGTERM}")
            self._stop_by = time.monotonic() + STOP_TIMEOUT

    def _cancel(self) -> None:
        self._scancel()

    def _scancel(self, *options: str) -> None:
        try:
            answer = ask(["scancel", *options, self._job.id])
        except HostmeshError as error:
            self._tell(str(error))
            return
        if answer.code != 0:
            self._tell(f"scancel: {answer.error_text}")
        self._pause, self._ask_at = FIRST_ASK, 0.0

    # The screen.

    def _show(self) -> bool:
        """Whether anything new was there."""
        return any([tail.copy() for tail in self._tails])

    def _tell(self, text: str) -> None:
        if text != self._told:
            print(f"launch: job {self._job.id} {text}", file=sys.stderr, flush=True)
        self._told = text

    def _wait(self) -> None:
        try:
            self.signals.put(self.signals.get(timeout=LOOK))
        except queue.Empty:
            pass
