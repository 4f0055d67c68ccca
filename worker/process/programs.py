"""Reports every computation that this process compiles and that spans processes, so that the launcher can compare."""

from __future__ import annotations

import functools
import inspect
import os
import sys
import time
from collections import deque
from collections.abc import Callable
from threading import Lock
from types import FrameType, ModuleType
from typing import Any, Final, NamedTuple

from hostmesh.worker.identity import PROGRAMS
from hostmesh.worker.process.facts import offer_fact, send_fact
from hostmesh.worker.process.program_text import communicates, describe_module, digest
from hostmesh.worker.process.recorder import phase
from hostmesh.worker.process.user_frames import OURS, is_library

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


class Program(NamedTuple):
    """A computation that is being compiled."""

    number: int
    began: float
    owners: list[int]  # the process of each device
    is_long: bool


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
        self._lock = Lock()
        self._number = 0
        self._seen: dict[str, bool] = {}  # by fingerprint, whether ahead of time
        self._waiting: deque[tuple[str, dict[str, Any]]] = deque(maxlen=MAX_WAITING)

    def watch(self, compiler: ModuleType) -> None:
        """Take part in every compilation: called with jax's own module, right after its import."""
        compile = getattr(compiler, HOOK, None)
        if getattr(compile, "is_watched", False):
            return
        names = list(inspect.signature(compile).parameters) if callable(compile) else []
        if compile is None or tuple(names[: len(WANTED)]) != WANTED:
            self.problem = f"this version of jax has no {compiler.__name__}.{HOOK}({', '.join(WANTED)}, …)"
            return
        setattr(compiler, HOOK, self._watched(compile))

    def begin(self) -> None:
        """This process has joined the others of its run."""
        if os.environ.get(PROGRAMS) == "off":
            return
        self._pid = os.getpid()
        if self.problem is not None:
            self._give_up(self.problem)

    def _watched(self, compile: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(compile)
        def watched(*args: Any, **kwargs: Any) -> Any:
            with phase("compiling"):
                program = executable = None
                if self._pid and self._pid == os.getpid():
                    given = {**dict(zip(WANTED, args, strict=False)), **kwargs}
                    program = self._guarded(self._note_begin, given["computation"], given["devices"])
                try:
                    executable = compile(*args, **kwargs)
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
        self._pid = 0
        send_fact("programs not compared", problem=problem[:500])

    def _note_begin(self, computation: Any, devices: Any) -> Program | None:
        """None for a computation of this process alone, and for one that was reported before."""
        began = time.monotonic()
        flat = devices.flatten().tolist()
        owners = [device.process_index for device in flat]
        if len(set(owners)) == 1:
            return None
        text = computation.operation.get_asm(large_elements_limit=MAX_CONSTANT)
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
            self._number += 1
            number = self._number
            detail = {
                **described._asdict(),
                **callers._asdict(),
                "again": was_ahead is not None,
                "processes": as_ranges(sorted(set(owners))),
                "devices": digest(str(sorted(ids))),
            }
            self._send("program", number=number, **detail)
        return Program(number, began, owners, len(text) > MAX_LOOKED_AT)

    def _note_end(self, program: Program, executable: Any) -> None:
        """`executable` is None where compiling has failed."""
        answer = None if executable is None or program.is_long else find_communication(executable, program.owners)
        seconds = round(time.monotonic() - program.began, 3)
        with self._lock:
            self._send(
                "program compiled",
                number=program.number,
                failed=executable is None,
                communicates=answer,
                seconds=seconds,
            )

    def _send(self, name: str, **detail: Any) -> None:
        """In order, and without waiting: what the agent does not take now is offered again with the next one."""
        self._waiting.append((name, {"pid": self._pid, **detail}))
        while self._waiting and offer_fact(self._waiting[0][0], **self._waiting[0][1]):
            self._waiting.popleft()


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
