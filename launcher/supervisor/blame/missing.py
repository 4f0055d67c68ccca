"""Verdicts about hosts that are not there, cannot take part, or are there again."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from hostmesh.launcher.errors import EXIT_HOST_LOST, EXIT_USAGE
from hostmesh.launcher.supervisor.blame import kinds
from hostmesh.launcher.supervisor.blame.verdict import Verdict
from hostmesh.launcher.words import agree, list_some


def refused(problems: Mapping[str, Sequence[str]]) -> Verdict:
    return Verdict("refused", EXIT_USAGE, "nothing was started", detail=_list_problems(problems))


def unsendable(problem: str) -> Verdict:
    """A file of this machine; no host is to blame."""
    return Verdict("refused", EXIT_USAGE, f"nothing was started: {problem}")


def unreachable(hosts: int, problems: Mapping[str, str], others: Mapping[str, Sequence[str]]) -> Verdict:
    """Every host's answer: `problems` of those that cannot be reached, and what `others` refused."""
    first = next(iter(problems))
    who = first if len(problems) == 1 else f"{len(problems)} of {hosts} hosts"
    detail = _list_problems({**{host: [problem] for host, problem in problems.items()}, **others})
    message = f"nothing was started: {who} cannot be used"
    return Verdict("host lost", EXIT_HOST_LOST, message, None, first, 0, detail, kind=kinds.HOST_LOST)


def _list_problems(problems: Mapping[str, Sequence[str]]) -> list[str]:
    lines = [f"{host}: {problem}".splitlines() for host, found in problems.items() for problem in found]
    return [line for each in lines for line in each]


def not_back(loss: Verdict, host: str, problems: Sequence[str]) -> Verdict:
    """A lost host's that was waited for; `problems` is what came of connecting to it again."""
    lines = [line for problem in problems for line in problem.splitlines()]
    told = [f"{host} was waited for and did not come back{':' if lines else '.'}", *(f"  {line}" for line in lines)]
    return replace(loss, detail=[*told, *loss.detail])


def grows(hosts: Sequence[str]) -> Verdict:
    """Of an attempt that ends because more hosts are there."""
    return Verdict("grown", 0, f"{list_some(hosts, 4, 3, 'other hosts')} {agree('is', len(hosts))} back")
