"""Whether a process that was killed was killed for memory, by what its agent tells of that; pure."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from hostmesh.launcher.supervisor.blame.kinds import CERTAIN, KILLED, LIKELY, OUT_OF_MEMORY, UNKNOWN
from hostmesh.launcher.words import count_things, tell_size

# A host with less than this share of its memory available is short of it: daemons kill before the kernel does.
SHORT = 0.05
# A process with more than this share of what there was is the one that the kernel chooses.
LARGEST = 0.5
# A host with more than this share available had enough.
PLENTY = 0.5


# How a process tells that one below it was killed: PyTorch, concurrent.futures, multiprocessing, shells.
BELOW_WAS_KILLED = re.compile(
    r"killed by signal: Killed|terminated abruptly|exited unexpectedly|SIGKILL|\bcode -9\b|\bKilled$", re.MULTILINE
)


@dataclass(frozen=True)
class EndJudgement:
    """`words` say in brackets, or behind a semicolon, what the judgement comes from."""

    kind: str
    sure: str
    words: str
    evidence: tuple[str, ...] = ()


def judge_kill(memory: Mapping[str, Any], of_its_program: bool = False) -> EndJudgement:
    """Of a process that SIGKILL has ended, and that the run itself did not kill; or of a shell that says so of its
    program, whose pid need not be known.

    The kernel's log names whom it killed. Counters of the process's cgroup only say how many of that; those of the host
    only that there was somebody.
    """
    if not memory:
        return EndJudgement(KILLED, UNKNOWN, "was the host out of memory?", ("nothing is known of its memory",))
    named, in_cgroup, in_host = memory["named"], memory["cgroup_kills"], memory["host_kills"]
    if own := [each for each in named or () if each["who"] != "another"]:
        is_the_one = own[-1]["who"] == ("below" if of_its_program else "itself")
        return _for_memory(memory, CERTAIN if is_the_one else LIKELY, _tell_named(own[-1]), own[-1])
    if named and in_cgroup and of_its_program:
        return _for_memory(memory, LIKELY, _tell_named(named[-1]), named[-1])
    if named is not None and len(named) >= (in_cgroup or 0):  # the log has everybody that was counted
        return _not_for_memory(memory, "the kernel's log does not name it")
    if in_cgroup:
        is_largest = (memory["rss"] or 0) > LARGEST * (memory["limit"] or memory["total"] or float("inf"))
        killed = f"the kernel killed {count_things(in_cgroup, 'process')} of its cgroup for memory"
        return _for_memory(memory, CERTAIN if is_largest and in_cgroup == 1 else LIKELY, killed)
    if in_cgroup == 0:
        return _not_for_memory(memory, "the kernel killed no process of its cgroup for memory")
    if in_host and (_is_short(memory) or (memory["rss"] or 0) > LARGEST * (memory["total"] or float("inf"))):
        return _for_memory(
            memory, LIKELY, f"the kernel killed {count_things(in_host, 'process')} of its host for memory"
        )
    if in_host:
        told = f"the kernel killed {count_things(in_host, 'process')} of its host for memory: this one?"
        return EndJudgement(KILLED, UNKNOWN, told, (*_sizes(memory), told))
    return _not_for_memory(memory, "the kernel killed no process of its host for memory")


def judge_kill_below(memory: Mapping[str, Any], said: str) -> EndJudgement | None:
    """Of a process that failed by itself: whether that was because one below it was killed for memory, by what it said
    and what is known. None if not."""
    if not memory:
        return None
    says_so = BELOW_WAS_KILLED.search(said) is not None
    numbers = re.findall(r"\d+", said) if says_so else []
    named = memory["named"] or ()
    if own := [each for each in named if each["who"] == "below" or str(each["pid"]) in numbers]:
        return _for_memory(memory, CERTAIN if says_so else LIKELY, _tell_named(own[-1]), own[-1])
    if says_so and memory["named"] is None and memory["cgroup_kills"]:
        killed = f"the kernel killed {count_things(memory['cgroup_kills'], 'process')} of its cgroup for memory"
        return _for_memory(memory, LIKELY, killed)
    return None


def _for_memory(
    memory: Mapping[str, Any], sure: str, reason: str, killed: Mapping[str, Any] | None = None
) -> EndJudgement:
    """`killed` is who the log says it was, and how large."""
    size = (killed or {}).get("rss") or memory["rss"]
    had = [f"it had {tell_size(size)}"] if size else []
    return EndJudgement(OUT_OF_MEMORY, sure, "; ".join([*had, _tell_limit(memory, killed)]), (reason, *_sizes(memory)))


def _not_for_memory(memory: Mapping[str, Any], reason: str) -> EndJudgement:
    words, evidence = "no process was killed for memory", [reason, *_sizes(memory)]
    if others := [each for each in memory["named"] or () if each["who"] == "another"]:
        words = f"the kernel killed process {others[-1]['pid']} ({others[-1]['name']}) for memory, and not this one"
    elif memory["host_kills"]:
        words = "the kernel killed a process of the host for memory, and not this one"
    if others or memory["host_kills"]:
        evidence.append(words)
    if _is_short(memory):
        words = f"the host had only {tell_size(memory['available'])} free: a daemon such as earlyoom may have done it"
        return EndJudgement(KILLED, UNKNOWN, words, tuple(evidence))
    if memory["available"] is not None:
        words = f"the host had {tell_size(memory['available'])} free and {words}"
    return EndJudgement(KILLED, LIKELY, words, tuple(evidence))


def _tell_limit(memory: Mapping[str, Any], killed: Mapping[str, Any] | None) -> str:
    """The log says whose limit was reached. Without it: the host's, unless that had enough."""
    limit, total, available = memory["limit"], memory["total"], memory["available"]
    by_cgroup = killed["by_cgroup"] if killed is not None else not _is_short(memory)
    if by_cgroup and limit is not None and (total is None or limit < total):
        return f"the limit of its cgroup is {tell_size(limit)}"
    if total is None:
        return "the limit is not known"
    if by_cgroup and (killed is not None or available > PLENTY * total):
        return f"the host had {tell_size(available)} free: a cgroup above its own has a limit"
    return f"the host has {tell_size(total)}"


def _tell_named(named: Mapping[str, Any]) -> str:
    return f"the kernel's log says that it killed process {named['pid']} ({named['name']}) for memory"


def _is_short(memory: Mapping[str, Any]) -> bool:
    return memory["available"] is not None and memory["available"] < SHORT * memory["total"]


def _sizes(memory: Mapping[str, Any]) -> list[str]:
    """Just before its end."""
    told = []
    if memory["rss"] is not None:
        told.append(f"just before it had {tell_size(memory['rss'])}")
    if memory["limit"] is not None:
        used = f", of which {tell_size(memory['used'])} were used" if memory["used"] is not None else ""
        told.append(f"the limit of its cgroup is {tell_size(memory['limit'])}{used}")
    if memory["available"] is not None:
        told.append(f"its host had {tell_size(memory['available'])} of {tell_size(memory['total'])} free")
    return told
