"""What a run with faults says about them: before it starts, when one is done, at its end, and in its result; pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from hostmesh.launcher.chaos.model import KINDS, Fault
from hostmesh.launcher.words import count_things, list_some

LOUD = "launch: CHAOS: "


def tell_planned(faults: Sequence[Fault]) -> list[str]:
    """A line for each fault, before anything starts."""
    return [f"{LOUD}{_who(fault)} will {KINDS[fault.kind].will} {_when(fault)}{_how_long(fault)}" for fault in faults]


def tell_done(process_id: int, host: str, detail: Mapping[str, Any]) -> str:
    """What a process sends just before it does a fault; it may be anything, as all that processes send."""
    who, kind, step = f"process {process_id} on {host}", detail.get("kind"), detail.get("step")
    at = f" at step {step}" if isinstance(step, int) else ""
    if "problem" in detail:
        return f"{LOUD}{who} cannot do {kind}{at}: {detail['problem']}"
    return f"{LOUD}now{at}: {kind}: {who}"


def tell_end(faults: Sequence[Fault], told: Sequence[Mapping[str, Any]]) -> str:
    """The last line of such a run: nobody shall take it for an accident, nor a fault that never came for survived."""
    summary = zip(faults, summarise(faults, told), strict=True)
    left = [
        f"{fault.kind} of process {fault.process_id} {_when(fault)}" for fault, found in summary if not found["done"]
    ]
    done = f"{len(faults) - len(left)} of {count_things(len(faults), 'fault')} done"
    return f"{LOUD}this run was a rehearsal: {done}" + (f"; not done: {list_some(left)}" if left else "")


def summarise(faults: Sequence[Fault], told: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """For result.json: every fault; when it was done, by the clock of its host, or what kept it from being done."""
    facts = {detail.get("fault"): detail for detail in told}
    found = [(fault, facts.get(fault.number, {})) for fault in faults]
    return [
        {
            **fault.to_json(),
            "done": bool(detail) and "problem" not in detail,
            "done_at": detail.get("at"),
            "done_at_step": detail.get("step"),
            "problem": detail.get("problem"),
        }
        for fault, detail in found
    ]


def _who(fault: Fault) -> str:
    if KINDS[fault.kind].of_host:
        return fault.host
    chosen = f" (any, by seed {fault.seed})" if fault.was_chosen else ""
    return f"process {fault.process_id}{chosen}"


def _how_long(fault: Fault) -> str:
    kind, settings = KINDS[fault.kind], fault.settings
    if "factor" in settings:
        return f": every step from then on takes {settings['factor']:g} times as long"
    if "megabytes" in kind.may:
        return f", {settings['megabytes']:,} MiB" if "megabytes" in settings else ", until it is ended"
    if "seconds" in kind.may:
        for_ever = "until the run ends" if kind.of_host else "for ever"
        return f", for {settings['seconds']:g} s" if "seconds" in settings else f", {for_ever}"
    return ""


def _when(fault: Fault) -> str:
    of = f" of attempt {fault.attempt}" if fault.attempt > 1 else ""
    return (f"at step {fault.step}" if fault.step is not None else f"{fault.after or 0:g} s after its start") + of
