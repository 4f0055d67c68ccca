"""How many workers read for a loader, and of which kind."""

from __future__ import annotations

import math
import os
from dataclasses import dataclass

from hostmesh.worker.identity import LOCAL_PROCESSES
from hostmesh.worker.reading import cpu_quota

# Beyond this threads wait for each other: all of them need the interpreter's lock now and then.
MAX_CHOSEN = 32
# More than so many for each core make nothing faster, whatever they wait for.
MAX_EACH_CORE, MAX_ANYWHERE = 32, 64


@dataclass(frozen=True)
class WorkerChoice:
    """`threads` or `processes`, or neither: then the thread that reads ahead does all. `is_asked` says that the user
    gave a number of threads."""

    threads: int = 0
    processes: int = 0
    is_asked: bool = False


def choose_workers(workers: int | str | None, processes: int) -> WorkerChoice:
    """From the loader's arguments; without any the number of threads follows from the cores of this process."""
    processes = check_count("processes", processes)
    if workers == "processes":
        return WorkerChoice(processes=processes or count_cores())
    if isinstance(workers, str):
        raise ValueError(f"workers wants a number of threads, or 'processes'; found {workers!r}")
    if processes:
        if workers:
            raise ValueError(f"wanted workers or processes, not both; found workers={workers}, processes={processes}")
        return WorkerChoice(processes=processes)
    if workers is None:
        count = min(count_cores(), MAX_CHOSEN)
        return WorkerChoice(threads=count if count > 1 else 0)
    return WorkerChoice(threads=check_count("workers", workers), is_asked=True)


def check_count(name: str, value: int) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or value < 0:
        raise ValueError(f"{name} wants a number of 0 or more; found {value!r}")
    cores = count_all_cores()
    most = max(MAX_ANYWHERE, MAX_EACH_CORE * cores)
    if value > most:
        raise ValueError(f"{name} wants at most {most} on a host with {cores} cores; found {value}")
    return value


def count_cores() -> int:
    """This process's share of the cores that it and the others of its host may use at a time."""
    quota = cpu_quota.find_quota()
    cores = count_all_cores() if quota is None else min(count_all_cores(), math.ceil(quota))
    return max(1, cores // max(1, int(os.environ.get(LOCAL_PROCESSES) or 1)))


def count_all_cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
