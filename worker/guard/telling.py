"""Tells the agent what was compared, and answers what it asks: by a thread, so that nobody waits for it."""

from __future__ import annotations

import atexit
import json
import os
import socket
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from typing import Any, Final

import jax

from hostmesh.worker.audit.deliveries import offer
from hostmesh.worker.identity import FACTS_SOCKET, PROCESS_ID, QUESTIONS

# Seconds between two messages, and so many more for each process of the run: one launcher hears all of them.
TELL_EVERY = 0.25
TELL_EVERY_PER_PROCESS = 1 / 400
# One message has so many steps, and so many characters of fingerprints, at most.
MAX_STEPS, MAX_CHARACTERS = 500, 40_000
# What an agent that is busy has not taken by then is dropped, the oldest first.
MAX_UNTOLD = 4000
# Loaders that nobody uses any more, and of which the end of the process is told all the same.
MAX_OVER = 20
# A main thread that has used less than so many seconds of a processor for so many seconds is idle.
IDLE_SHARE, IDLE_AFTER = 0.005, 2.5
MAX_QUESTION = 4096

Answer = Callable[[dict[str, Any]], dict[str, Any]]
Step = dict[str, Any]


class Told:
    """What is to be told of one loader, or of one name that arrays were checked by; all processes call it `of`."""

    def __init__(self, of: str) -> None:
        self.of = of
        self.is_over = False  # nobody uses its loader any more
        self.forms: deque[dict[str, Any]] = deque()
        self.taken = 0  # batches, or calls
        self.is_idle = False  # the main thread waits for something, and this is what it took from last
        self._steps: deque[Step] = deque(maxlen=MAX_UNTOLD)
        self._news_told = -1, False
        self._lock = threading.Lock()  # who tells: the thread, and at the end the main thread
        self._held_back: dict[int, list[tuple[bool, dict[str, Any]]]] = {}  # by form
        self._holding = threading.Lock()

    def hold_back(self, form: int) -> None:
        """What is added of that form is told once the loader has compared its structure, as it does itself."""
        self._held_back[form] = []

    def release(self, form: int) -> None:
        with self._holding:
            for is_form, each in self._held_back.pop(form, ()):
                (self.forms if is_form else self._steps).append(each)

    def add_form(self, form: dict[str, Any]) -> None:
        self._add(True, form)

    def add(self, step: Step) -> None:
        """What its form is was added before."""
        self._add(False, step)

    def _add(self, is_form: bool, each: dict[str, Any]) -> None:
        with self._holding:
            if each["form"] in self._held_back:
                self._held_back[each["form"]].append((is_form, each))
            else:
                (self.forms if is_form else self._steps).append(each)

    def tell(self, wait: bool = False, **more: Any) -> bool:
        """What the agent does not take is told later; False then."""
        with self._lock:
            return self._tell(wait, **more)

    def _tell(self, wait: bool, **more: Any) -> bool:
        ready = len(self._steps)  # the forms of these are known by now; another thread may add more of both
        while self.forms:
            if not offer("row parts", wait, {"of": self.of, **self.forms[0]}):
                return False
            self.forms.popleft()
        while ready > 0 or more or (self.taken, self.is_idle) != self._news_told:
            chosen = self._choose(ready)
            taken, idle = news = self.taken, self.is_idle
            if not offer("rows", wait, {"of": self.of, "taken": taken, "idle": idle, "steps": chosen, **more}):
                self._steps.extendleft(reversed(chosen))
                return False
            self._news_told, more = news, {}
            ready -= len(chosen)
        return True

    def _choose(self, ready: int) -> list[Step]:
        chosen: list[Step] = []
        size = 0
        while self._steps and len(chosen) < min(ready, MAX_STEPS) and size < MAX_CHARACTERS:
            step = self._steps.popleft()
            chosen.append(step)
            size += 100 + sum(map(len, step["rows"])) + sum(map(len, step.get("own", ())))
        return chosen


class Teller:
    """One for a process; its thread begins with the first that there is to tell."""

    def __init__(self) -> None:
        self._all: dict[str, tuple[Told, weakref.WeakMethod[Answer] | None]] = {}
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None
        self._idleness = Idleness()
        self.last: Told | None = None  # what the last batch or call was of; None where that is not compared

    def note_taken(self, told: Told) -> None:
        """One more batch, or call."""
        told.taken += 1
        self.last = told

    def add(self, of: str, owner: object = None, answer: Answer | None = None) -> Told:
        """`answer` is a method of the `owner` that reads some rows again, and is forgotten with it."""
        told = Told(of)
        if owner is not None:
            weakref.finalize(owner, setattr, told, "is_over", True).atexit = False
        with self._lock:
            self._all[of] = told, None if answer is None else weakref.WeakMethod(answer)
            if self._thread is None:
                every = TELL_EVERY + TELL_EVERY_PER_PROCESS * jax.process_count()
                self._thread = threading.Thread(target=self._run, args=(every,), name="hostmesh guard", daemon=True)
                self._thread.start()
                # The handler runs before jax disconnects, which waits for all other processes.
                atexit.register(self.tell_end)
        return told

    def tell_end(self) -> None:
        """An agent that does not hear one of them is not waited for again."""
        all(told.tell(wait=True, left=True) for told in self._list())

    def _list(self) -> list[Told]:
        with self._lock:
            return [told for told, _ in self._all.values()]

    def _run(self, every: float) -> None:
        with open_questions() as questions:
            questions.settimeout(every)
            while True:
                with suppress(TimeoutError, ValueError, KeyError, TypeError):
                    self._answer(json.loads(questions.recv(MAX_QUESTION)))
                self._tell_all()

    def _tell_all(self) -> None:
        is_idle, over = self._idleness.look(), []
        for told in self._list():
            told.is_idle = is_idle and told is self.last
            if told.tell() and told.is_over:
                over.append(told.of)
        with self._lock:
            for of in over[:-MAX_OVER]:
                del self._all[of]

    def _answer(self, question: dict[str, Any]) -> None:
        reference = self._all[question["of"]][1]
        answer = None if reference is None else reference()
        try:
            found = {"problem": "it cannot be read again"} if answer is None else answer(question)
        except Exception as error:
            found = {"problem": f"{type(error).__name__}: {error}"[:500]}
        offer("rows again", True, {**question, **found})


class Idleness:
    """Does the main thread wait? One that has taken more batches than others have may do so for ever."""

    def __init__(self) -> None:
        self._clock: int | None = None
        if hasattr(time, "pthread_getcpuclockid"):
            self._clock = time.pthread_getcpuclockid(threading.main_thread().ident or 0)
        self._used, self._since = -1.0, 0.0

    def look(self) -> bool:
        if self._clock is None:
            return False  # not known here
        used, now = time.clock_gettime(self._clock), time.monotonic()
        if used - self._used > IDLE_SHARE:
            self._used, self._since = used, now
        return now - self._since > IDLE_AFTER


def open_questions() -> socket.socket:
    """Where the agent's questions come in; one that is there already is of a process of an earlier attempt."""
    found = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    folder = os.path.dirname(os.environ[FACTS_SOCKET])
    path = os.path.join(folder, f"{QUESTIONS}-{os.environ[PROCESS_ID]}")
    with suppress(OSError):
        os.unlink(path)
    with suppress(OSError):  # then nothing is asked
        found.bind(path)
    return found


TELLER: Final = Teller()
