"""Whether a process that was killed was killed for memory, by what its agent tells of that; pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from hostmesh.launcher.supervisor.kinds import CERTAIN, KILLED, LIKELY, OUT_OF_MEMORY, UNKNOWN
from hostmesh.launcher.words import count_things

# A host with less than this share of its memory available is short of it: daemons kill before the kernel does.
SHORT = 0.05
# A process with more than this share of what there was is the one that the kernel chooses.
LARGEST = 0.5
# A host with more than this share available had enough.
PLENTY = 0.5


@dataclass(frozen=True)
class Judgement:
    """`words` say in brackets, or behind a semicolon, what the judgement comes from."""

    kind: str
    sure: str
    words: str
    evidence: tuple[str, ...] = ()


def judge_kill(memory: Mapping[str, Any]) -> Judgement:
    """Of a process that SIGKILL has ended, and that the run itself did not kill.

    The kernel's log names whom it killed. Counters of the process's cgroup only say how many of that; those of the host
    only that there was somebody.
    """
    if not memory:
        return Judgement(KILLED, UNKNOWN, "was the host out of memory?", ("nothing is known of its memory",))
    named, in_cgroup, in_host = memory["named"], memory["cgroup_kills"], memory["host_kills"]
    if named is not None and (own := [each for each in named if each["who"] != "another"]):
        itself = any(each["who"] == "itself" for each in own)
        return _for_memory(memory, CERTAIN if itself else LIKELY, _tell_named(own[-1]))
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
        return Judgement(KILLED, UNKNOWN, told, (*_sizes(memory), told))
    return _not_for_memory(memory, "the kernel killed no process of its host for memory")


def was_below(memory: Mapping[str, Any], says_so: bool) -> Judgement | None:
    """Of a process that failed by itself: whether that was because one below it was killed for memory. `says_so` is
    whether it reports such a kill."""
    if not memory:
        return None
    if below := [each for each in memory["named"] or () if each["who"] == "below"]:
        return _for_memory(memory, CERTAIN if says_so else LIKELY, _tell_named(below[-1]))
    if says_so and memory["named"] is None and memory["cgroup_kills"]:
        killed = f"the kernel killed {count_things(memory['cgroup_kills'], 'process')} of its cgroup for memory"
        return _for_memory(memory, LIKELY, killed)
    return None


def tell_size(size: int) -> str:
    """`11.2 GiB`, `512 MiB`."""
    if size >= 1 << 30:
        return f"{size / (1 << 30):.1f}".removesuffix(".0") + " GiB"
    return f"{size / (1 << 20):.0f} MiB"


def _for_memory(memory: Mapping[str, Any], sure: str, reason: str) -> Judgement:
    had = [f"it had {tell_size(memory['rss'])}"] if memory["rss"] else []
    return Judgement(OUT_OF_MEMORY, sure, "; ".join([*had, _tell_limit(memory)]), (reason, *_sizes(memory)))


def _not_for_memory(memory: Mapping[str, Any], reason: str) -> Judgement:
    others = [each for each in memory["named"] or () if each["who"] == "another"]
    if others:
        reason = f"the kernel killed process {others[-1]['pid']} ({others[-1]['name']}) for memory, and not this one"
    elif memory["host_kills"]:
        reason = "the kernel killed a process of the host for memory, and not this one"
    if _is_short(memory):
        words = f"the host had only {tell_size(memory['available'])} free: a daemon such as earlyoom may have done it"
        return Judgement(KILLED, UNKNOWN, words, (reason, *_sizes(memory)))
    words = reason if others or memory["host_kills"] else "no process was killed for memory"
    if memory["available"] is not None:
        words = f"the host had {tell_size(memory['available'])} free and {words}"
    return Judgement(KILLED, LIKELY, words, (reason, *_sizes(memory)))


def _tell_limit(memory: Mapping[str, Any]) -> str:
    """The log says whose limit was reached. Without it: the host's, unless that had enough."""
    limit, total, available = memory["limit"], memory["total"], memory["available"]
    logged = [each["by_cgroup"] for each in memory["named"] or () if each["who"] != "another"]
    by_cgroup = logged[-1] if logged else not _is_short(memory)
    if by_cgroup and limit is not None and (total is None or limit < total):
        return f"the limit of its cgroup is {tell_size(limit)}"
    if total is None:
        return "the limit is not known"
    if by_cgroup and (logged or available > PLENTY * total):
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
