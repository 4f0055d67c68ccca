"""From a YAML file of faults to the faults of a run: read all of it, check it against the plan, choose what is open."""

from __future__ import annotations

import difflib
import os
import random
from typing import Any

from hostmesh.launcher.chaos.model import AFTER, ATTEMPT, KINDS, STEP, Fault, Kind
from hostmesh.launcher.cluster.yaml_values import (
    TEXT,
    WHOLE,
    Check,
    Problems,
    Value,
    compose,
    read_text,
    scalar,
    seconds,
    sequence,
    whole_number,
)
from hostmesh.launcher.errors import UsageError
from hostmesh.launcher.planning.plan import Plan

ANY = "any"
MAX_FAULTS = 200
SHARED_NETWORK = "all processes share this machine's network; a host of a cluster over ssh or docker has its own"


def read_faults(path: str | os.PathLike[str], plan: Plan) -> tuple[Fault, ...]:
    """Raises one error that holds every problem of the file."""
    if plan.job.command is not None:
        raise UsageError(
            f"--chaos: found the program {plan.job.command[0]}, wanted a script or a module: "
            "faults are done inside of processes that run Python"
        )
    problems = Problems(os.fspath(path))
    text = read_text(problems.path, "a YAML file of faults")
    top = Value(compose(text, problems, "a mapping with 'faults'"), "", problems)
    schema = {
        "seed": whole_number(0, 1 << 62, "a whole number, 0 or more"),
        "faults": sequence(lambda value: _read_fault(value, plan), "a list of faults", 1, MAX_FAULTS),
    }
    values = top.read(schema, required=("faults",))
    if problems.entries:
        raise problems.error()
    seed = values.get("seed", 0)
    return tuple(_make_fault(number, entry, seed, plan) for number, entry in enumerate(values["faults"]))


def _make_fault(number: int, entry: dict[str, Any], seed: int, plan: Plan) -> Fault:
    settings = dict(entry)
    kind, step, after = settings.pop("kind"), settings.pop(STEP, None), settings.pop(AFTER, None)
    attempt = settings.pop(ATTEMPT, 1)
    process_id, host = settings.pop("process", None), settings.pop("host", None)
    was_chosen = process_id == ANY
    if was_chosen:
        # A function of seed and place: another fault in the file changes nothing about this one.
        process_id = random.Random(f"{seed}/{number}").randrange(len(plan.processes))
    elif host is not None:
        process_id = next(each.process_id for each in plan.processes if plan.host_of(each).address == host)
    host = plan.host_of(plan.processes[process_id]).address
    return Fault(number, kind, process_id, host, step, after, settings, seed, was_chosen, attempt)


def _read_fault(value: Value, plan: Plan) -> dict[str, Any]:
    settings = value.read(_schema(plan), required=("kind",))
    kind = KINDS.get(settings.get("kind") or "")
    if kind is not None:
        _check_together(value, settings, kind, plan)
    return settings


def _check_together(value: Value, settings: dict[str, Any], kind: Kind, plan: Plan) -> None:
    name = settings["kind"]
    for key in settings:
        if key not in ("kind", ATTEMPT, *kind.keys):
            value.under(key).fail(f"{name} has no {key}; it takes {', '.join(kind.keys)}")
    for key in (kind.keys[0], *kind.must):
        if key not in settings:
            value.fail(f"missing key '{key}'")
    given = [key for key in (STEP, AFTER) if key in settings]
    if len(given) != 1:
        value.reject(
            f"{' or '.join(kind.when)}: when it happens", " and ".join(given) or f"no {' or '.join(kind.when)}"
        )
    if kind.of_host and plan.cluster.transport == "local":
        value.under("kind").fail(f"{name} is not possible here: {SHARED_NETWORK}")


def _schema(plan: Plan) -> dict[str, Check]:
    return {
        "kind": _kind,
        "process": lambda value: _process(value, len(plan.processes)),
        "host": lambda value: _host(value, plan),
        STEP: whole_number(1, 1 << 62, "a step: a whole number, 1 or more"),
        AFTER: seconds(lambda number: number <= 1e9, "seconds since the process began, 0 or more"),
        ATTEMPT: lambda value: _attempt(value, plan.cluster.restarts + 1),
        "seconds": seconds(lambda number: 0 < number <= 1e9, "more than 0 seconds"),
        "factor": seconds(lambda number: 1 < number <= 1e6, "a number above 1"),
        "megabytes": whole_number(1, 1 << 40, "a whole number of MiB, 1 or more"),
    }


def _kind(value: Value) -> str | None:
    if not value.is_a((TEXT,), "a kind of fault"):
        return None
    if value.node.value in KINDS:
        return str(value.node.value)
    near = difflib.get_close_matches(value.node.value[:60], KINDS, n=1)
    value.fail(f"unknown kind {value.shown}; " + (f"nearest is '{near[0]}'" if near else f"wanted {', '.join(KINDS)}"))
    return None


def _process(value: Value, count: int) -> int | str | None:
    there = "0 alone" if count == 1 else f"0 to {count - 1}"
    wanted = f"a process of this run, which are {there}, or any"
    if value.kind == TEXT:
        found: str | None = scalar((TEXT,), ANY, wanted)(value)
        return found
    number: int | None = scalar((WHOLE,), "0|[1-9][0-9]{0,17}", wanted, int, lambda number: number < count)(value)
    return number


def _attempt(value: Value, most: int) -> int | None:
    there = "1 alone: there are no --restarts" if most == 1 else f"1 to {most}"
    wanted = f"an attempt of this run, which are {there}"
    number: int | None = scalar((WHOLE,), "[1-9][0-9]{0,17}", wanted, int, lambda number: number <= most)(value)
    return number


def _host(value: Value, plan: Plan) -> str | None:
    hosts = [host.address for host in plan.cluster.hosts]
    if value.is_a((TEXT,), "a host of this run") and value.node.value in hosts:
        return str(value.node.value)
    if value.kind == TEXT:
        near = difflib.get_close_matches(value.node.value[:60], hosts, n=1)
        value.reject("a host of this run" + (f"; nearest is '{near[0]}'" if near else f", such as {hosts[0]}"))
    return None
