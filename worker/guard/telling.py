"""Tells the agent what was compared, and answers what it asks: by a thread, so that nobody waits for it."""

from __future__ import annotations

import atexit
import json
import os
import socket
import threading
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
MAX_UNTOLD = 20_000
MAX_QUESTION = 4096

Answer = Callable[[dict[str, Any]], dict[str, Any]]
Step = dict[str, Any]


class Told:
    """What is to be told of one loader, or of one name that arrays were checked by; all processes call it `of`."""

    def __init__(self, of: str, answer: weakref.WeakMethod[Answer] | None = None) -> None:
        self.of, self.answer = of, answer
        self.steps: deque[Step] = deque(maxlen=MAX_UNTOLD)
        self.forms: deque[dict[str, Any]] = deque()
        self.taken, self.taken_told = 0, -1

    def tell(self, wait: bool = False, **more: Any) -> None:
        """What the agent does not take is told later."""
        ready = len(self.steps)  # the forms of these are known by now; another thread may add more of both
        while self.forms:
            if not offer("row parts", wait, {"of": self.of, **self.forms[0]}):
                return
            self.forms.popleft()
        while ready or more or self.taken != self.taken_told:
            chosen = self._choose(ready)
            taken = self.taken
            if not offer("rows", wait, {"of": self.of, "taken": taken, "steps": chosen, **more}):
                self.steps.extendleft(reversed(chosen))
                return
            self.taken_told, more = taken, {}
            ready -= len(chosen)

    def _choose(self, ready: int) -> list[Step]:
        chosen: list[Step] = []
        size = 0
        while len(chosen) < min(ready, MAX_STEPS) and size < MAX_CHARACTERS:
            step = self.steps.popleft()
            chosen.append(step)
            size += 60 + sum(map(len, step.get("rows", ())))
        return chosen


class Teller:
    """One for a process; its thread begins with the first that there is to tell."""

    def __init__(self) -> None:
        self._all: dict[str, Told] = {}
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None

    def add(self, of: str, answer: Answer | None = None) -> Told:
        """`answer` reads some rows again. It is forgotten with its loader."""
        with self._lock:
            told = self._all[of] = Told(of, None if answer is None else weakref.WeakMethod(answer))
            if self._thread is None:
                every = TELL_EVERY + TELL_EVERY_PER_PROCESS * jax.process_count()
                self._thread = threading.Thread(target=self._run, args=(every,), name="hostmesh guard", daemon=True)
                self._thread.start()
                # The handler runs before jax disconnects, which waits for all other processes.
                atexit.register(self.tell_end)
        return told

    def tell_end(self) -> None:
        for told in list(self._all.values()):
            told.tell(wait=True, left=True)

    def _run(self, every: float) -> None:
        questions = open_questions()
        questions.settimeout(every)
        while True:
            with suppress(TimeoutError, ValueError, KeyError, TypeError):
                self._answer(json.loads(questions.recv(MAX_QUESTION)))
            for told in list(self._all.values()):
                told.tell()

    def _answer(self, question: dict[str, Any]) -> None:
        reference = self._all[question["of"]].answer
        answer = None if reference is None else reference()
        try:
            found = {"problem": "it cannot be read again"} if answer is None else answer(question)
        except Exception as error:
            found = {"problem": f"{type(error).__name__}: {error}"[:500]}
        offer("rows again", True, {**question, **found})


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
