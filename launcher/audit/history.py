"""The steps that led to a run's final state: those that an attempt did and a later one did again count once; pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field

from hostmesh.launcher.audit.told import MAX_STRETCHES, Account, Attempt, Stretch, Told
from hostmesh.launcher.words import name_processes


@dataclass
class Part:
    """Steps of one stretch of an attempt, first to last, that are part of the history.

    `reached` is how far each process has told of it. `seen` is the last step that any of them is known to have begun.
    """

    attempt: Attempt
    accounts: Mapping[int, Account]
    stretch: int
    first: int
    last: int
    reached: Mapping[int, int]
    seen: int


@dataclass
class History:
    """Of one loader. A pass goes from a first step to a last one; the data may be gone through several times.

    `problems` are what is wrong, `unknown` what cannot be shown. `repeated` counts steps that were done again.
    """

    passes: list[list[Part]] = field(default_factory=list)
    repeated: int = 0
    problems: list[str] = field(default_factory=list)
    unknown: list[str] = field(default_factory=list)

    @property
    def parts(self) -> list[Part]:
        return [part for parts in self.passes for part in parts]

    @property
    def ranges(self) -> list[tuple[int, int]]:
        """The first and last step of each pass."""
        return [(parts[0].first, parts[-1].last) for parts in self.passes if parts]

    @property
    def steps(self) -> int:
        return sum(last - first + 1 for first, last in self.ranges)


def build_history(told: Told, loader: int) -> History:
    history = History()
    for attempt in told.attempts:
        accounts = attempt.loaders.get(loader, {})
        numbers = sorted({number for account in accounts.values() for number in account.stretches})
        if len(numbers) >= MAX_STRETCHES:
            history.unknown.append(f"the data was begun {MAX_STRETCHES:,} times or more in attempt {attempt.number}")
        for number in numbers:
            is_last = number == numbers[-1]
            _add(history, _make_part(history, attempt, accounts, number, is_last), _is_again(accounts, number))
    if history.passes and history.passes[-1]:
        _end(history, history.passes[-1][-1], told.outcome)
    history.passes = [parts for parts in ([p for p in each if p.first <= p.last] for each in history.passes) if parts]
    return history


def _make_part(history: History, attempt: Attempt, accounts: Mapping[int, Account], number: int, is_last: bool) -> Part:
    found = {process: account.stretches[number] for process, account in accounts.items() if number in account.stretches}
    first = Counter(stretch.first for stretch in found.values()).most_common(1)[0][0]
    _check_start(history, attempt, found, first)
    reached = {process: found[process].last if process in found else first - 1 for process in accounts}
    last = min(reached.values())
    seen = max(reached.values())
    if is_last and attempt.last_step is not None:
        seen = max(seen, attempt.last_step)  # what was not told yet when a process was killed
    return Part(attempt, accounts, number, first, last, reached, seen)


def _check_start(history: History, attempt: Attempt, found: Mapping[int, Stretch], first: int) -> None:
    if apart := [process for process, stretch in found.items() if stretch.first != first]:
        other = found[apart[0]].first
        history.problems.append(
            f"in attempt {attempt.number} {_name(apart)} began with step {other}, the others with step {first}"
        )
    saved = {stretch.restored for stretch in found.values() if stretch.first == first} - {None, first - 1}
    for step in sorted(each for each in saved if each is not None):
        what = _steps(first, step) if first <= step else _steps(step + 1, first - 1)
        how = "used twice" if first <= step else "left out"
        history.problems.append(
            f"{what} {'was' if what.startswith('step ') else 'were'} {how}: attempt {attempt.number} restored what was"
            f" saved after step {step} and went on with step {first}"
        )


def _is_again(accounts: Mapping[int, Account], number: int) -> bool:
    return any(account.stretches[number].is_again for account in accounts.values() if number in account.stretches)


def _add(history: History, part: Part, is_again: bool) -> None:
    if is_again and history.passes and history.passes[-1]:
        _end(history, history.passes[-1][-1], "succeeded")
        history.passes.append([])
    elif history.passes:
        _cut(history, part)
    else:
        history.passes.append([])
    history.passes[-1].append(part)


def _cut(history: History, following: Part) -> None:
    """What comes after the step before `following` was done again, and is no part of the history."""
    parts, last = history.passes[-1], following.first - 1
    while parts and parts[-1].first > last:
        gone = parts.pop()
        history.repeated += max(0, gone.seen - gone.first + 1)
    if not parts:
        return
    part = parts[-1]
    part.last = last
    seen, part.seen = part.seen, min(part.seen, last)
    history.repeated += seen - part.seen
    if behind := {process: reached for process, reached in part.reached.items() if reached < last}:
        what = _steps(min(behind.values()) + 1, last)
        if seen >= last:
            history.unknown.append(f"{_name(behind)} did not tell of {what} of attempt {part.attempt.number}")
        else:
            history.problems.append(
                f"{what} {'is' if what.startswith('step ') else 'are'} missing: attempt {following.attempt.number}"
                f" went on with step {following.first}"
            )


def _end(history: History, part: Part, outcome: str | None) -> None:
    """All processes of a run that succeeded have delivered the same steps; of any other the last ones may be untold."""
    part.last = min(part.reached.values())
    behind = [process for process, reached in part.reached.items() if reached == part.last]
    if len(behind) == len(part.reached):
        return
    most = max(part.reached.values())
    told = f"{_name(behind)} delivered {part.last} steps, others {most}"
    if outcome == "succeeded":
        history.problems.append(told)
    elif 0 in part.attempt.exits.values():
        history.unknown.append(f"{told}: some of the processes went on without the others")


def _name(processes: Mapping[int, int] | list[int]) -> str:
    return name_processes(sorted(processes))


def _steps(first: int, last: int) -> str:
    return f"step {first}" if first == last else f"steps {first} to {last}"
