"""Reports every computation that this process compiles and that spans processes, so that the launcher can compare."""

from __future__ import annotations

import atexit
import functools
import inspect
import os
import sys
import time
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from threading import RLock, Thread
from types import FrameType, ModuleType
from typing import Any, Final, NamedTuple

from hostmesh.worker.identity import PROGRAMS
from hostmesh.worker.process.facts import offer_fact
from hostmesh.worker.process.user_frames import OURS, is_library
from hostmesh.worker.recording.program_text import communicates, describe_module, digest
from hostmesh.worker.recording.recorder import phase

HOOK = "compile_or_get_cached"
WANTED = ("backend", "computation", "devices")
# Where jax compiles what may be called later, or never.
AHEAD_OF_TIME = (os.path.join("jax", "_src", "stages.py"), "compile")
# Elements of a constant that are part of the fingerprint; the values of larger ones are not compared.
MAX_CONSTANT = 64
# Characters of a lowered module above which XLA's own text, many times as long, is not looked at.
MAX_LOOKED_AT = 4 << 20
# A process that compiles more than this is not compared any more.
MAX_PROGRAMS = 10_000
# Reports that wait for an agent that does not keep up. If there are more, the launcher sees the gap in their numbers.
MAX_WAITING = 1000
# Seconds between two tries to send them, and for the last ones when the process ends.
RETRY_EVERY, LAST_TIMEOUT = 0.1, 1.0


class Program(NamedTuple):
    """A computation that is being compiled."""

    began: float
    owners: list[int]  # the process of each device
    is_long: bool
    report: dict[str, Any]


class Callers(NamedTuple):
    """Who asked for a computation: `stack` is a fingerprint of all lines of the user's own that led there."""

    place: str | None
    stack: str
    ahead: bool


class Programs:
    """Compares nothing until this process has joined the others of its run."""

    def __init__(self) -> None:
        self.problem: str | None = None  # why programs cannot be compared
        self._pid = 0  # of the process that joined; what it forks is no part of the run
        self._has_given_up = False
        self._lock = RLock()
        self._number = 0
        self._seen: dict[str, bool] = {}  # by fingerprint, whether ahead of time
        self._ahead: dict[int, dict[str, Any]] = {}  # reports of what is not called yet, by the id of the executable
        self._waiting: deque[tuple[str, dict[str, Any]]] = deque(maxlen=MAX_WAITING)
        self._is_retrying = False

    def watch(self, compiler: ModuleType) -> None:
        """Take part in every compilation: called with jax's own module, right after its import."""
        compile = getattr(compiler, HOOK, None)
        if getattr(compile, "is_watched", False):
            return
        try:
            names = list(inspect.signature(compile).parameters) if callable(compile) else []
        except ValueError:  # it is not written in Python
            names = []
        if compile is None or tuple(names[: len(WANTED)]) != WANTED:
            self.problem = f"this version of jax has no {compiler.__name__}.{HOOK}({', '.join(WANTED)}, …)"
            return
        setattr(compiler, HOOK, self._watched(compile))

    def watch_calls(self, stages: ModuleType) -> None:
        """Notice the first call of what was compiled ahead of time; without it, only the compilation is known."""
        compiled = getattr(stages, "Compiled", None)
        call = vars(compiled).get("__call__") if compiled is not None else None
        if compiled is None or call is None or getattr(call, "is_watched", False):
            return

        @functools.wraps(call)
        def watched(program: Any, *args: Any, **kwargs: Any) -> Any:
            if self._ahead and getattr(program, "_call", program) is None:  # it is set by the first call
                self._guarded(self._note_call, program)
            return call(program, *args, **kwargs)

        watched.is_watched = True  # type: ignore[attr-defined]
        with suppress(AttributeError, TypeError):  # it is not written in Python
            compiled.__call__ = watched

    def begin(self) -> None:
        """This process has joined the others of its run."""
        if os.environ.get(PROGRAMS) == "off":
            return
        if not self._pid:
            atexit.register(self._send_last)
        self._pid = os.getpid()
        if self.problem is not None:
            self._give_up(self.problem)

    @property
    def _is_comparing(self) -> bool:
        return self._pid == os.getpid() and not self._has_given_up

    def _watched(self, compile: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(compile)
        def watched(*args: Any, **kwargs: Any) -> Any:
            with phase("compiling"):
                program = executable = None
                if self._is_comparing:
                    given = {**dict(zip(WANTED, args, strict=False)), **kwargs}
                    program = self._guarded(self._note_begin, given["computation"], given["devices"])
                try:
                    executable = compile(*args, **kwargs)
                    self._ahead.pop(id(executable), None)  # of one that is gone, and had the same id
                finally:
                    if program is not None:
                        self._guarded(self._note_end, program, executable)
                return executable

        watched.is_watched = True  # type: ignore[attr-defined]
        return watched

    def _guarded(self, act: Callable[..., Program | None], *args: Any) -> Program | None:
        """Nothing that a program does may fail because it is compared."""
        try:
            return act(*args)
        except Exception as error:
            self._give_up(f"{type(error).__name__}: {error}")
        return None

    def _give_up(self, problem: str) -> None:
        with self._lock:
            self._has_given_up = True
            self._send("programs not compared", problem=problem[:500])

    def _note_begin(self, computation: Any, devices: Any) -> Program | None:
        """None for a computation of this process alone, and for one that was reported before."""
        began = time.monotonic()
        flat = devices.flatten().tolist()
        owners = [device.process_index for device in flat]
        if len(set(owners)) == 1:
            return None
        text = computation.operation.get_asm(large_elements_limit=MAX_CONSTANT, assume_verified=True)
        ids = [device.id for device in flat]
        described = describe_module(text, ids)
        callers = find_callers(sys._getframe(1))
        with self._lock:
            was_ahead = self._seen.get(described.fingerprint)
            if was_ahead is False or was_ahead is callers.ahead:
                return None
            if len(self._seen) >= MAX_PROGRAMS:
                self._give_up(f"it has compiled more than {MAX_PROGRAMS:,} of them")
                return None
            self._seen[described.fingerprint] = callers.ahead
            report = {
                **described._asdict(),
                **callers._asdict(),
                "processes": as_ranges(sorted(set(owners))),
                "devices": digest(str(sorted(ids))),
            }
            report["number"] = self._send_program(report, again=was_ahead is not None)
        return Program(began, owners, len(text) > MAX_LOOKED_AT, report)

    def _note_end(self, program: Program, executable: Any) -> None:
        """`executable` is None where compiling has failed."""
        answer = None if executable is None or program.is_long else find_communication(executable, program.owners)
        seconds = round(time.monotonic() - program.began, 3)
        with self._lock:
            if program.report["ahead"] and executable is not None:
                self._ahead[id(executable)] = program.report
            self._send_compiled(program.report["number"], executable is None, answer, seconds)

    def _note_call(self, compiled: Any) -> None:
        """Of what was compiled ahead of time."""
        report = self._ahead.pop(id(compiled.runtime_executable()), None)
        if report is None or not self._is_comparing:
            return
        with self._lock:
            if self._seen[report["fingerprint"]]:
                self._seen[report["fingerprint"]] = False
                self._send_compiled(self._send_program({**report, "ahead": False}, again=True), False, None, 0.0)

    # Sending.

    def _send_program(self, report: dict[str, Any], again: bool) -> int:
        self._number += 1
        self._send("program", **{**report, "number": self._number, "again": again})
        return self._number

    def _send_compiled(self, number: int, failed: bool, communicates: bool | None, seconds: float) -> None:
        self._send("program compiled", number=number, failed=failed, communicates=communicates, seconds=seconds)

    def _send(self, name: str, **detail: Any) -> None:
        """In order, and without waiting: what the agent does not take now is offered again."""
        self._waiting.append((name, {"pid": self._pid, **detail}))
        self._offer()
        if self._waiting and not self._is_retrying:
            self._is_retrying = True
            Thread(target=self._retry, name="hostmesh programs", daemon=True).start()

    def _offer(self) -> None:
        while self._waiting and offer_fact(self._waiting[0][0], **self._waiting[0][1]):
            self._waiting.popleft()

    def _retry(self) -> None:
        while self._is_retrying:
            time.sleep(RETRY_EVERY)
            with self._lock:
                self._offer()
                self._is_retrying = bool(self._waiting)

    def _send_last(self) -> None:
        deadline = time.monotonic() + LAST_TIMEOUT
        while self._waiting and self._pid == os.getpid() and time.monotonic() < deadline:
            with self._lock:
                self._offer()
            time.sleep(0.01)


def find_communication(executable: Any, owners: list[int]) -> bool | None:
    try:
        texts = [module.to_string() for module in executable.hlo_modules()]
    except Exception:  # some backends do not show it
        return None
    return communicates("\n".join(texts), owners)


def find_callers(frame: FrameType | None) -> Callers:
    own: list[str] = []
    ahead = False
    file, function = AHEAD_OF_TIME
    while frame is not None:
        code = frame.f_code
        if code.co_name == function and code.co_filename.endswith(file):
            ahead = True
        elif not is_library(code.co_filename) and not code.co_filename.startswith(OURS):
            own.append(f"{os.path.basename(code.co_filename)}:{frame.f_lineno}")
        frame = frame.f_back
    return Callers(own[0] if own else None, digest("\n".join(own)), ahead)


def as_ranges(numbers: list[int]) -> list[list[int]]:
    """The first and last of every run of consecutive numbers."""
    ranges: list[list[int]] = []
    for number in numbers:
        if ranges and ranges[-1][1] == number - 1:
            ranges[-1][1] = number
        else:
            ranges.append([number, number])
    return ranges


PROGRAM_REPORTS: Final = Programs()
