"""The audit of a run: what its processes told of their steps, held against the order of the data."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, TypeAlias

from hostmesh.launcher.audit.asking import Recounter
from hostmesh.launcher.audit.history import History, Part, build_history
from hostmesh.launcher.audit.told import Account, Segment, Told, read_told
from hostmesh.launcher.words import count_things

# What is found wrong in one loader; a run of a thousand processes may have as many.
MAX_PROBLEMS = 20
# Answers a question about records, or says why it cannot.
Recount: TypeAlias = Callable[[dict[str, Any]], dict[str, Any] | str]


def audit_events(lines: Iterable[bytes], recount: Recount | None = None) -> dict[str, Any] | None:
    """For result.json; None for a run in which no loader of ours delivered a step."""
    told = read_told(lines)
    return merge_audits(told, audit_loaders(told, recount))


def audit_loaders(told: Told, recount: Recount | None = None) -> dict[int, dict[str, Any]]:
    """By the number of the loader. Without a `recount` a Python is asked, within its limits."""
    if recount is None:
        with Recounter() as recounter:
            return audit_loaders(told, recounter)
    audits = {loader: audit_loader(told, loader, recount) for loader in told.loaders()}
    return {loader: audit for loader, audit in audits.items() if audit is not None}


def merge_audits(told: Told, audits: dict[int, dict[str, Any]]) -> dict[str, Any] | None:
    found = list(audits.values())
    if not found:
        return None
    first, attempts = found[0], len(told.attempts)
    if len(found) == 1:
        return {**first, "attempts": attempts}
    merged = {name: [text for each in found for text in each[name]] for name in ("problems", "unknown")}
    return {**first, **merged, "exact": merge_exact(found), "attempts": attempts, "loaders": found}


def merge_exact(found: list[dict[str, Any]]) -> bool | None:
    answers = [each["exact"] for each in found]
    return False if False in answers else None if None in answers else True


def audit_loader(told: Told, loader: int, recount: Recount) -> dict[str, Any] | None:
    history = build_history(told, loader)
    if not history.passes:
        return None
    check_steps(history)
    counted = count_records(history, recount)
    problems, unknown = history.problems[:MAX_PROBLEMS], history.unknown[:MAX_PROBLEMS]
    parts = {"parts": counted["parts"]} if "parts" in counted else {}
    return {
        "exact": False if problems else None if unknown else True,
        "steps": history.steps,
        "first_step": history.ranges[0][0],
        "records": counted.get("records"),
        "epochs": counted.get("epochs"),
        "left_out": counted.get("left_out"),
        **parts,
        "repeated_steps": history.repeated,
        "problems": problems,
        "unknown": unknown,
    }


def check_steps(history: History) -> None:
    """Whether each process delivered every step of its segments once; this needs nothing but the events."""
    for part in history.parts:
        for process, segments in segments_of(part).items():
            for each in segments:
                wanted = each.last - each.first + 1
                if each.steps != wanted:
                    where = f"of steps {each.first} to {each.last} of attempt {part.attempt.number}"
                    history.problems.append(f"{where} process {process} delivered {each.steps}, wanted {wanted}")


def segments_of(part: Part) -> dict[int, list[Segment]]:
    """By process. The last may go on after the part's last step: it is looked at as a whole, since its steps are."""
    return {
        process: [each for each in account.stretches[part.stretch].segments if each.first <= part.last]
        for process, account in part.accounts.items()
        if part.stretch in account.stretches
    }


def count_records(history: History, recount: Recount) -> dict[str, Any]:
    """What the order says of the steps of the history; where the processes say other things, that is a problem."""
    why = find_obstacle(history)
    if why:
        history.unknown.append(why)
        return {}
    asked = [(part, process, segments) for part in history.parts for process, segments in segments_of(part).items()]
    shares = [
        {"rows": part.accounts[process].rows, "segments": [(each.first, each.last) for each in segments]}
        for part, process, segments in asked
    ]
    spec = next(iter(history.parts[0].accounts.values())).spec
    answer = recount({"spec": spec, "shares": shares, "passes": history.ranges})
    if isinstance(answer, str):
        history.unknown.append(answer)
        return {}
    for (part, process, segments), wanted in zip(asked, answer["segments"], strict=True):
        for segment, (rows, words) in zip(segments, wanted, strict=True):
            compare(history, part, process, segment, rows, int(words, 16))
    if answer["twice"]:
        history.problems.append(f"the order has {count_things(answer['twice'], 'record')} twice in an epoch")
    return answer


def find_obstacle(history: History) -> str:
    """Why the records cannot be recounted, if so."""
    accounts = [account for part in history.parts for account in part.accounts.values()]
    spec = accounts[0].spec
    if "stream" in spec:
        return "the records of a stream have no numbers: only its steps are counted"
    if any(account.spec != spec for account in accounts):
        return "not all attempts and processes loaded the same data in the same batches"
    for part in history.parts:
        if why := find_shares_problem(list(part.accounts.values()), spec["batch_size"]):
            return f"in attempt {part.attempt.number} {why}"
    return ""


def find_shares_problem(accounts: list[Account], batch_size: int) -> str:
    """Each row of a batch is to be some process's own, and only one's."""
    at = 0
    for start, stop in sorted(run for account in accounts for run in account.rows):
        if start < at:
            return "several processes answer for the same rows of a batch: they ran separately"
        if start > at:
            break
        at = stop
    return "" if at == batch_size else f"no process told of row {at} of each batch"


def compare(history: History, part: Part, process: int, segment: Segment, rows: int, words: int) -> None:
    if (segment.rows, segment.sum) == (rows, words):
        return
    steps = f"step {segment.first}" if segment.first == segment.last else f"steps {segment.first} to {segment.last}"
    where = f"{steps} of attempt {part.attempt.number}: process {process} used"
    if segment.rows != rows:
        few = "few" if segment.rows < rows else "many"
        history.problems.append(f"{where} {count_things(abs(rows - segment.rows), 'record')} too {few}")
    else:
        history.problems.append(f"{where} other records than those of the order: some twice, some not at all")
