"""Call a function in a fresh process: one that may fork, since jax is not there, or give up its rights."""

from __future__ import annotations

import multiprocessing
import os
from collections.abc import Callable
from multiprocessing.connection import Connection
from typing import Any

NOBODY = 65534
TIMEOUT = 60.0


def call_apart(act: Callable[..., Any], *args: Any) -> Any:
    """What `act`, a function of a module, returned; what it raised fails here."""
    result, problem = _call(act, args)
    assert problem is None, problem
    return result


def fail_apart(act: Callable[..., Any], *args: Any) -> str:
    """The text of what it raised."""
    problem = _call(act, args)[1]
    assert problem is not None
    return problem


def drop_rights() -> None:
    """For such a function: root may read and write everything, and often runs tests."""
    if os.geteuid() == 0:
        os.setgroups([])
        os.setgid(NOBODY)
        os.setuid(NOBODY)


def _call(act: Callable[..., Any], args: tuple[Any, ...]) -> tuple[Any, str | None]:
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe(duplex=False)
    process = context.Process(target=_answer, args=(theirs, act, args))
    process.start()
    theirs.close()
    try:
        assert ours.poll(TIMEOUT), f"{act.__name__} did not return within {TIMEOUT:g} s"
        answer: tuple[Any, str | None] = ours.recv()
        process.join(TIMEOUT)
    finally:
        process.kill()
        process.join()
        ours.close()
    return answer


def _answer(pipe: Connection, act: Callable[..., Any], args: tuple[Any, ...]) -> None:
    try:
        pipe.send((act(*args), None))
    except Exception as error:
        pipe.send((None, str(error)))
