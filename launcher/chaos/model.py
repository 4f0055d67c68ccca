"""What faults there are, and one fault of a file as a frozen value; pure."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from hostmesh.worker.identity import CHAOS

if TYPE_CHECKING:
    from hostmesh.launcher.planning.plan import Plan

STEP, AFTER, ATTEMPT = "step", "after", "attempt"


@dataclass(frozen=True)
class Kind:
    """`will` is what comes after "process 2 will"; `may` and `must` are settings beside who and when."""

    will: str
    when: tuple[str, ...] = (STEP, AFTER)
    may: tuple[str, ...] = ()
    must: tuple[str, ...] = ()
    of_host: bool = False

    @property
    def keys(self) -> tuple[str, ...]:
        return ("host" if self.of_host else "process", *self.when, *self.may, *self.must)


_WAITS = ("seconds",)  # without it: for ever

KINDS: Mapping[str, Kind] = {
    "kill": Kind("be killed (SIGKILL)"),
    "stop": Kind("be stopped (SIGSTOP)"),
    "abort": Kind("abort (SIGABRT)"),
    "segfault": Kind("read memory that is not its own (SIGSEGV)"),
    "raise": Kind("raise an exception"),
    "exit 0": Kind("end at once with exit code 0"),
    "leave early": Kind("leave in order with exit code 0"),
    "sleep": Kind("sleep", may=_WAITS),
    "lock": Kind("wait for a lock", may=_WAITS),
    "spin": Kind("compute in native code", may=_WAITS),
    "hold gil": Kind("compute in native code that lets no other thread of Python run", may=_WAITS),
    "python spin": Kind("compute in Python", may=_WAITS),
    "subprocess": Kind("wait for a program that it starts", may=_WAITS),
    "read": Kind("read what nobody writes", may=_WAITS),
    "disk": Kind("wait as for a disk (state D)", may=_WAITS),
    "deaf": Kind("hear nothing from the others", may=_WAITS),
    "fill memory": Kind("fill memory", may=("megabytes",)),
    "slow": Kind("be slow", must=("factor",)),
    "corrupt row": Kind("get a row with a wrong value", when=(STEP,)),
    "skip batch": Kind("skip a batch", when=(STEP,)),
    "another program": Kind("compute something else than the others"),
    "drop network": Kind("lose its network", when=(AFTER,), may=_WAITS, of_host=True),
}


@dataclass(frozen=True)
class Fault:
    number: int  # its place in the file
    kind: str
    process_id: int  # who does it
    host: str
    step: int | None = None
    after: float | None = None  # seconds since the process began
    settings: Mapping[str, float] = field(default_factory=dict)  # seconds, factor, megabytes
    seed: int = 0
    was_chosen: bool = False  # the file says `process: any`
    attempt: int = 1

    def to_json(self) -> dict[str, Any]:
        when = {STEP: self.step} if self.step is not None else {AFTER: self.after}
        which = {ATTEMPT: self.attempt} if self.attempt > 1 else {}
        return {"kind": self.kind, "process_id": self.process_id, "host": self.host, **when, **which, **self.settings}

    def to_process(self) -> dict[str, Any]:
        """What the process itself has to know."""
        when = {"number": self.number, "kind": self.kind, STEP: self.step, AFTER: self.after, "seed": self.seed}
        return {**when, ATTEMPT: self.attempt, **self.settings}


def add_faults(plan: Plan, faults: tuple[Fault, ...]) -> Plan:
    """The plan with the faults of each process in its environment."""
    processes = []
    for process in plan.processes:
        own = [fault.to_process() for fault in faults if fault.process_id == process.process_id]
        env = {**process.env, CHAOS: json.dumps(own)} if own else process.env
        processes.append(replace(process, env=env))
    return replace(plan, processes=tuple(processes), faults=faults)
