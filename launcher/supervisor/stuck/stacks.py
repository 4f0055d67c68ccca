"""The stacks that faulthandler dumps, read: which frames a thread is in, and whose code they are; pure."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from hostmesh.launcher.supervisor.blame.tails import FRAME

# Thread 0x00007f53a1c006c0 (most recent call first):
#   File "/job/train.py", line 41 in main
THREAD = re.compile(r"(Current thread|Thread) 0x[0-9a-f]+")
JAX = re.compile(r"/(jax|jaxlib)/")
OURS = re.compile(r"/hostmesh/(worker|launcher)/|/start\.py$")
LIBRARY = re.compile(r"/(site|dist)-packages/|/lib(64)?/python3|^<|/usr/lib/python3")
# Parts of ours in which a process waits for what the others say.
WAITS = re.compile(r"/hostmesh/worker/(process/coordination|distributed|preemption)\.py$")
LOADS = re.compile(r"/hostmesh/worker/(loading|reading|assembly|streams|sources|mixing|text)/")
# Files of the standard library in which a thread waits. What it waits for is known by their caller.
WAITING_TOOLS = re.compile(r"/(threading|queue|selectors|concurrent/futures/\w+)\.py$")
SUBPROCESS = re.compile(r"/(subprocess|asyncio/\w*subprocess\w*)\.py$")
# faulthandler shows a hundred threads at most, the newest first, and ends with this where there are more.
CUT = "..."


@dataclass(frozen=True)
class Frame:
    file: str
    line: str
    name: str

    @property
    def is_users(self) -> bool:
        return not (JAX.search(self.file) or OURS.search(self.file) or LIBRARY.search(self.file))

    def __str__(self) -> str:
        return f"{os.path.basename(self.file)}:{self.line} in {self.name}"


@dataclass(frozen=True)
class Stacks:
    """The frames of each thread, the innermost first. `main` is empty where it is not known."""

    main: tuple[Frame, ...] = ()
    others: tuple[tuple[Frame, ...], ...] = ()

    @property
    def waits_in_jax(self) -> bool:
        """The main thread is inside jax, or where our own code waits for the other processes; and so is no callback."""
        inner = next((frame for frame in self.main if not WAITING_TOOLS.search(frame.file)), None)
        return inner is not None and bool(JAX.search(inner.file) or WAITS.search(inner.file))

    @property
    def waits_in_python(self) -> bool:
        """In a lock, a queue or the like of the standard library."""
        return bool(self.main) and bool(WAITING_TOOLS.search(self.main[0].file) or SUBPROCESS.search(self.main[0].file))

    @property
    def callback(self) -> Frame | None:
        """Where a function of the user's is that jax calls back, in a thread of its own."""
        for frames in self.others:
            if any(JAX.search(frame.file) and "callback" in frame.file for frame in frames):
                return find_users(frames)
        return None

    @property
    def reading(self) -> Frame | None:
        """Where the loader reads: in the main thread, or in one that reads ahead."""
        for frames in (self.main, *self.others):
            if any(LOADS.search(frame.file) for frame in frames) and (found := find_users(before_ours(frames))):
                return found
        return None

    @property
    def runs_program(self) -> bool:
        return any(SUBPROCESS.search(frame.file) for frame in self.main)

    @property
    def place(self) -> Frame | None:
        """Where the main thread is in the user's code; else the innermost frame of all."""
        return find_users(self.main) or next(iter(self.main), None)


def find_users(frames: Iterable[Frame]) -> Frame | None:
    return next((frame for frame in frames if frame.is_users), None)


def before_ours(frames: Sequence[Frame]) -> list[Frame]:
    """What our loader has called: the user's loop, which called the loader, is further out."""
    for number, frame in enumerate(frames):
        if LOADS.search(frame.file):
            return list(frames[:number])
    return []


def parse_stacks(text: str) -> Stacks:
    threads: list[list[Frame]] = []
    is_cut = False
    for line in text.splitlines():
        if THREAD.match(line):
            threads.append([])
        elif (found := FRAME.match(line)) and threads:
            threads[-1].append(Frame(found["file"], found["line"], found["name"].strip()))
        elif line == CUT:
            is_cut = True
    if not threads or is_cut:
        return Stacks((), tuple(map(tuple, threads)))
    *others, main = map(tuple, threads)  # the main thread is the oldest
    return Stacks(main, tuple(others))
