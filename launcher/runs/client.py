"""Ask a run that lives: one question, and its answers until the run has said all."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from hostmesh.launcher.errors import HostmeshError, UsageError
from hostmesh.launcher.runs.link import open_link
from hostmesh.launcher.runs.owner import Owner, find_owner
from hostmesh.launcher.runs.queued import find_job_of

# Seconds within which a supervisor says something to a question that it can answer at once.
TIMEOUT = 10.0


class NoAnswer(HostmeshError):
    """The run cannot be asked: it has ended, or it is somewhere else."""


def require_owner(folder: Path) -> Owner:
    """Raises NoAnswer for a run that has no supervisor, UsageError for one of somebody else."""
    owner = find_owner(folder)
    if owner is None:
        ended = (folder / "result.json").exists()
        raise NoAnswer(f"run {folder.name} " + ("has ended" if ended else "has no supervisor: it died without a word"))
    if not owner.is_me:
        raise UsageError(f"run {folder.name} is {owner.user}'s: only they can talk to it")
    return owner


def ask(folder: Path, question: dict[str, Any], timeout: float | None = TIMEOUT) -> Iterator[dict[str, Any]]:
    """Each answer as it comes; raises NoAnswer, also for an answer that is an error. Without a timeout it waits for as
    long as the run lives."""
    owner = require_owner(folder)
    count = 0
    try:
        with open_link(folder, owner, timeout) as link:
            link.sendall(json.dumps(question).encode() + b"\n")
            with link.makefile("rb") as lines:
                for line in lines:
                    answer = json.loads(line)
                    if "error" in answer:
                        raise NoAnswer(f"run {folder.name}: {answer['error']}")
                    count += 1
                    yield answer
    except TimeoutError:
        raise NoAnswer(f"run {folder.name} does not answer within {timeout:g} s") from None
    except (OSError, ValueError) as error:
        raise NoAnswer(explain(folder, owner, error)) from None
    if not count:
        raise NoAnswer(explain(folder, owner, ConnectionError("it says nothing")))


def explain(folder: Path, owner: Owner, error: Exception) -> str:
    if not owner.is_here and find_job_of(folder) is None:
        return f"run {folder.name} is supervised on {owner.host}, by process {owner.pid}: ask it there"
    reason = getattr(error, "strerror", None) or str(error)
    where = "" if owner.is_here else f" on {owner.node or owner.host}"
    return f"run {folder.name} is supervised by process {owner.pid}{where}, which cannot be asked: {reason}"
