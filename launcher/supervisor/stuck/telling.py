"""A diagnosis in words: a line for each group of processes that do the same; pure."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

from hostmesh.launcher.errors import EXIT_HANG
from hostmesh.launcher.supervisor.blame import kinds
from hostmesh.launcher.supervisor.blame.verdict import Verdict
from hostmesh.launcher.supervisor.stuck.activity import Activity, Doing
from hostmesh.launcher.supervisor.stuck.diagnosis import Diagnosis
from hostmesh.launcher.words import agree, count_things, list_ids, name_processes

MAX_GROUPS = 6
MAX_HOSTS = 3
FIXES = {
    Doing.STOPPED: "SIGCONT lets it go on.",
    Doing.LEFT: "Every process must take as many steps as the others.",
    Doing.OTHER_PROGRAM: "All processes must run the same computations, in the same order.",
    Doing.NOT_JOINED: "Every process must call hostmesh.join(), or jax.distributed.initialize().",
}


def tell(diagnosis: Diagnosis, seconds: float) -> list[str]:
    """For the screen, while the run goes on."""
    lines = describe_groups(diagnosis.culprits, sole_host(diagnosis))
    lines += describe_groups(diagnosis.others, sole_host(diagnosis), waits_for=list_ids(ids_of(diagnosis.culprits)))
    network = [diagnosis.network.text] if diagnosis.network is not None else []
    return [f"nothing has moved for {seconds:.0f} s:", *("  " + line for line in (*network, *lines))]


def hang_verdict(diagnosis: Diagnosis, seconds: float, hosts: Sequence[str], logs: str, stacks: str) -> Verdict:
    """`hosts` are the names of all."""
    culprits, others = diagnosis.culprits, diagnosis.others
    still = f"nothing has moved for {seconds:.0f} s"
    ending = [f"Stacks: {stacks}", f"Logs: {logs}"]
    groups = describe_groups(others, sole_host(diagnosis), waits_for=list_ids(ids_of(culprits)))
    kind = kinds.DISAGREEMENT if diagnosis.cause is Doing.OTHER_PROGRAM else kinds.HANG
    judged: dict[str, Any] = {"kind": kind, "sure": diagnosis.sure, "evidence": (still, *groups)}
    if culprits:
        first = culprits[0]
        text = first.text if len(culprits) == 1 else make_plural(first.text)
        cause = f"{name_processes(ids_of(culprits))}{name_hosts(culprits)} {text}"
        detail = describe_groups(culprits[1:], None) if len({each.text for each in culprits}) > 1 else []
        detail += [*groups, *([FIXES[first.doing]] if first.doing in FIXES else []), *ending]
        victims = tuple(each.process_id for each in others)
        return Verdict(
            *("hang", EXIT_HANG, f"the run hangs: {cause}; {still}", first.process_id, first.host, len(others), detail),
            cause=cause,
            place=first.place or None,
            victim_ids=victims,
            last_step=first.step or None,
            **judged,
        )
    if (problem := diagnosis.network) is not None:
        host = None if problem.host is None else hosts[problem.host]
        message = f"the run hangs: {problem.text}; {still}"
        return Verdict("hang", EXIT_HANG, message, None, host, 0, [*groups, *ending], cause=problem.text, **judged)
    message = f"the run hangs: {still}, and nobody can be singled out"
    return Verdict("hang", EXIT_HANG, message, None, None, 0, [*groups, *ending], **judged)


def describe_groups(activities: Sequence[Activity], host: str | None, waits_for: str = "") -> list[str]:
    """`processes 0, 1 and 3 on gpu-a, gpu-b wait in step 12 at train.py:41 in main`; hosts are named unless all share
    one."""
    groups: dict[str, list[Activity]] = {}
    for each in activities:
        groups.setdefault(each.text, []).append(each)
    lines = []
    for text, group in list(groups.items())[:MAX_GROUPS]:
        text = text if len(group) == 1 else make_plural(text)
        if waits_for and group[0].doing is Doing.WAITING:
            text = re.sub(r"^waits?\b", lambda found: f"{found[0]} for {waits_for}", text)
        lines.append(f"{name_processes(ids_of(group))}{name_hosts(group) if host is None else ''} {text}")
    if len(groups) > MAX_GROUPS:
        lines.append(f"… and {count_things(len(groups) - MAX_GROUPS, 'more group')}")
    return lines


def ids_of(activities: Sequence[Activity]) -> list[int]:
    return [each.process_id for each in activities]


def name_hosts(activities: Sequence[Activity]) -> str:
    names = list(dict.fromkeys(each.host for each in activities))
    return f" on {', '.join(names)}" if len(names) <= MAX_HOSTS else f" on {len(names)} hosts"


def sole_host(diagnosis: Diagnosis) -> str | None:
    hosts = {each.host for each in (*diagnosis.culprits, *diagnosis.others)}
    return next(iter(hosts)) if len(hosts) == 1 else None


def make_plural(text: str) -> str:
    """`waits in step 3` of one process is `wait in step 3` of several."""
    first, *rest = text.split(" ")
    words = [agree(first, 2), *rest]
    if len(words) > 2 and words[1] == "or":
        words[2] = agree(words[2], 2)
    return " ".join(words)
