"""Threads that fetch: started when they are first needed, and anew after a fork."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from queue import SimpleQueue
from typing import Any, TypeVar

Result = TypeVar("Result")

# Requests at once, by one process. Most of the time of each is waiting for the store.
FETCHERS = 16

_Job = tuple[Callable[[], Any], "Future[Any]"]
_lock = threading.Lock()
_jobs: dict[int, SimpleQueue[_Job]] = {}


def submit(job: Callable[[], Result]) -> Future[Result]:
    """A job must not wait for other jobs. The threads are daemons: one that waits for a store holds up no program's
    end."""
    future: Future[Result] = Future()
    _queue().put((job, future))
    return future


def run_all(jobs: Sequence[Callable[[], Result]]) -> list[Result]:
    """All results in order, or the first error, after which what was not begun is left out."""
    futures = [submit(job) for job in jobs]
    try:
        return [future.result() for future in futures]
    except BaseException:
        for future in futures:
            future.cancel()
        raise


def _queue() -> SimpleQueue[_Job]:
    with _lock:
        jobs = _jobs.get(os.getpid())
        if jobs is None:
            jobs = _jobs[os.getpid()] = SimpleQueue()
            for number in range(FETCHERS):
                name = f"hostmesh fetch {number}"
                threading.Thread(target=_work, args=(jobs,), name=name, daemon=True).start()
        return jobs


def _work(jobs: SimpleQueue[_Job]) -> None:
    while True:
        job, future = jobs.get()
        if future.set_running_or_notify_cancel():
            try:
                future.set_result(job())
            except BaseException as error:
                future.set_exception(error)
        del job, future  # they hold what was fetched
