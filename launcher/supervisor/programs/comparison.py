"""Compares the programs that processes compile, among those that share the devices; pure.

All devices of a program must run the same one, in the same order, or what they compute together is wrong, silently.
Processes need not be equally far, and what was compiled ahead of time may come in any order. So two processes
disagree when each has begun a program that the other has not compiled at all: whatever comes next, each waits for the
other in something else. That holds only for programs that send something from process to process; the others may run
on one process alone.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from enum import Enum, auto
from typing import Any

from hostmesh.launcher.supervisor.programs.disagreement import Disagreement, Lone, Missing, Side
from hostmesh.launcher.supervisor.programs.reports import Begun, as_mask, as_numbers, read_begun

# Seconds more that processes get which have neither of two programs: they may show who is alone with his.
OTHERS_TIMEOUT = 5.0
# Who waits for the others in a program goes on for some steps at most, until its devices have enough to do.
LONE_MARKS, LONE_TIMEOUT = 50, 10.0
LOOK_FOR_LONE_EVERY = 1.0

Key = tuple[str, int]  # the devices, and the epoch


class Evidence(Enum):
    """How much two programs say that their processes differ."""

    CERTAIN = auto()  # both communicate, and were called
    LIKELY = auto()  # one line of the script called both, and of one at least it is not known that it needs no other
    AHEAD = auto()  # one line compiled both ahead of time, and may go on to compile the other one


# Seconds after which nothing else explains them.
SURE_AFTER = {Evidence.CERTAIN: 1.0, Evidence.LIKELY: 5.0, Evidence.AHEAD: 30.0}


@dataclass
class Program:
    """Sets of processes are integers: bit n is process n. A run of a thousand compares them at every report."""

    begun: Begun
    known_by: int = 0  # who compiles or has compiled it
    compiled_by: int = 0
    called_by: int = 0  # who compiled it for a call that follows at once
    communicates: bool | None = None
    is_accepted: bool = False  # its difference was told, and the run goes on
    # Since when some lack it whom it communicates with, and how far all had come by then.
    lone_at: float = 0.0
    lone_marks: dict[int, int] = field(default_factory=dict)


@dataclass
class Group:
    """The programs on one set of devices that some of its processes do not have."""

    members: int
    in_step_at: float = -1.0  # when all of them called the same one, last
    programs: dict[str, Program] = field(default_factory=dict)


@dataclass
class Reporter:
    """A process, by what it has sent: a command may run several programs, and each is an `epoch`."""

    pid: int
    epoch: int = 1
    last_number: int = 0
    heard_at: float = 0.0
    compiling: dict[int, tuple[Key, str]] = field(default_factory=dict)


class Programs:
    def __init__(self) -> None:
        self._groups: dict[Key, Group] = {}
        self._reporters: dict[int, Reporter] = {}
        self._unsure = 0  # processes whose reports are not complete: they may have any program
        self._suspects: dict[tuple[Key, str, str], float] = {}  # pairs of programs, and since when
        self._looked_for_lone_at = 0.0
        self.problem: str | None = None  # why a process is not compared, the first one

    def note(self, process_id: int, name: str, detail: dict[str, Any], now: float) -> bool:
        """Whether the report tells of a program that nobody had before."""
        match name, detail:
            case "programs not compared", {"problem": str(problem)}:
                self._doubt(process_id, problem, now)
            case "program", {"pid": int(pid), "number": int(number)}:
                if self._is_next(process_id, pid, number, now):
                    return self._note_begin(process_id, number, detail, now)
            case "program compiled", {"pid": int(pid), "number": int(number)}:
                self._note_end(process_id, pid, number, detail, now)
        return False

    def find_disagreement(self, now: float, ended: Collection[int] = ()) -> Disagreement | None:
        """`ended` are processes that will compile nothing more."""
        for (key, one, other), since in self._suspects.items():
            group = self._groups[key]
            first, second = group.programs[one], group.programs[other]
            evidence = self._compare(first, second)
            if evidence is None or evidence is Evidence.AHEAD and group.in_step_at >= since:
                continue  # whatever it was compiled for, they have gone on together
            if not self._is_sure(first, second, evidence, since, now, ended):
                continue
            found = self._describe(group, first, second)
            told = {number for side in found.sides for number in side.processes}
            others = set(as_numbers(group.members & ~self._unsure)) - told - set(ended)
            if found.minority or not others or now - since >= SURE_AFTER[evidence] + OTHERS_TIMEOUT:
                return found
        return None

    def find_missing(self) -> Missing | None:
        """A program that some call and others have not compiled: for a run that stands still. One that communicates
        explains more than any other."""
        found = []
        for group in self._groups.values():
            for program in group.programs.values():
                missing = group.members & ~program.known_by & ~self._unsure
                if program.called_by and missing:
                    side = _as_side(program, program.called_by)
                    found.append(Missing(side, tuple(as_numbers(missing)), bool(program.communicates)))
        return max(found, key=lambda each: each.communicates, default=None)

    def find_lone(self, now: float, find_marks: Callable[[], Mapping[int, int]]) -> Lone | None:
        """A program that communicates, that some have called and others never compiled, and yet all of them have gone
        on since: it took part in something else of theirs. The marks are how far each process has come."""
        if now - self._looked_for_lone_at < LOOK_FOR_LONE_EVERY:
            return None
        self._looked_for_lone_at, marks = now, find_marks()
        for group in self._groups.values():
            for program in group.programs.values():
                missing = group.members & ~program.known_by & ~self._unsure
                run_by = program.called_by & program.compiled_by & ~self._unsure
                if not (missing and run_by and program.communicates) or program.is_accepted:
                    continue
                program.lone_at, program.lone_marks = program.lone_at or now, program.lone_marks or dict(marks)
                taken = [marks.get(n, 0) - program.lone_marks.get(n, 0) for n in as_numbers(missing | run_by)]
                if now - program.lone_at >= LONE_TIMEOUT and min(taken) >= LONE_MARKS:
                    side = _as_side(program, run_by)
                    return Lone((side,), group.members.bit_count(), tuple(as_numbers(missing)))
        return None

    def accept(self, found: Disagreement) -> None:
        """It was told, and the run goes on: these programs are not compared again."""
        for group in self._groups.values():
            for program in group.programs.values():
                if any(side == _as_side(program, as_mask(side.processes)) for side in found.sides):
                    program.is_accepted = True
        for key, one, other in list(self._suspects):
            programs = self._groups[key].programs
            if self._compare(programs[one], programs[other]) is None:
                del self._suspects[key, one, other]

    # Reports.

    def _doubt(self, process_id: int, problem: str, now: float) -> None:
        self.problem = self.problem or problem
        self._unsure |= 1 << process_id
        for key, group in self._groups.items():
            for fingerprint in list(group.programs):
                self._look(key, fingerprint, now)

    def _is_next(self, process_id: int, pid: int, number: int, now: float) -> bool:
        """Whether this report follows the one before."""
        reporter = self._reporters.get(process_id)
        if reporter is None:
            reporter = self._reporters[process_id] = Reporter(pid)
        elif pid != reporter.pid and number == 1:
            reporter = self._reporters[process_id] = Reporter(pid, reporter.epoch + 1)
        if pid != reporter.pid or number != reporter.last_number + 1:
            self._doubt(process_id, f"reports of process {process_id} were lost", now)
            return False
        reporter.last_number, reporter.heard_at = number, now
        return True

    def _note_begin(self, process_id: int, number: int, detail: dict[str, Any], now: float) -> bool:
        bit, reporter = 1 << process_id, self._reporters[process_id]
        begun = read_begun(process_id, detail)
        if begun is None:
            self._doubt(process_id, f"a report of process {process_id} makes no sense", now)
            return False
        key = (begun.devices, reporter.epoch)
        group = self._groups.setdefault(key, Group(begun.members))
        is_new = begun.fingerprint not in group.programs
        if is_new and begun.again:
            return False  # everybody has it by now
        program = group.programs.setdefault(begun.fingerprint, Program(begun))
        program.known_by |= bit
        program.called_by |= 0 if begun.ahead else bit
        reporter.compiling[number] = key, begun.fingerprint
        self._look(key, begun.fingerprint, now)
        return is_new

    def _note_end(self, process_id: int, pid: int, number: int, detail: dict[str, Any], now: float) -> None:
        bit, reporter = 1 << process_id, self._reporters.get(process_id)
        if reporter is None or reporter.pid != pid:
            return
        reporter.heard_at = now
        key, fingerprint = reporter.compiling.pop(number, (("", 0), ""))
        program = self._groups[key].programs.get(fingerprint) if key in self._groups else None
        if program is None:
            return
        if detail.get("failed"):
            program.called_by &= ~bit  # it will not run
        else:
            program.compiled_by |= bit
        if isinstance(answer := detail.get("communicates"), bool):
            program.communicates = answer
        self._look(key, fingerprint, now)

    # Comparing.

    def _look(self, key: Key, fingerprint: str, now: float) -> None:
        """After a change of a program: what it disagrees with."""
        group = self._groups[key]
        program = group.programs[fingerprint]
        for pair in [pair for pair in self._suspects if pair[0] == key and fingerprint in pair[1:]]:
            if self._compare(*(group.programs[each] for each in pair[1:])) is None:
                del self._suspects[pair]
        compiled_by, known_by = program.compiled_by & ~self._unsure, program.known_by
        for other, second in group.programs.items():
            # Most pairs are told from one another by this alone, which takes no call.
            if not (compiled_by & ~second.known_by and second.compiled_by & ~known_by):
                continue
            if self._compare(program, second) is not None:
                one, two = sorted((fingerprint, other))
                self._suspects.setdefault((key, one, two), now)
        if not group.members & ~program.known_by & ~self._unsure:
            del group.programs[fingerprint]  # nobody lacks it
            if not group.members & ~program.called_by & ~self._unsure:
                group.in_step_at = now

    def _compare(self, first: Program, second: Program) -> Evidence | None:
        if first.is_accepted and second.is_accepted:
            return None
        if not (self._without(first, second) and self._without(second, first)):
            return None
        called = self._without(first, second, called=True) and self._without(second, first, called=True)
        if called and first.communicates and second.communicates:
            return Evidence.CERTAIN
        answers = (first.communicates, second.communicates)
        is_same_line = first.begun.name == second.begun.name and first.begun.stack == second.begun.stack
        if not is_same_line or False in answers and True not in answers:
            return None
        return Evidence.LIKELY if called else Evidence.AHEAD

    def _without(self, program: Program, other: Program, called: bool = False) -> int:
        """The processes that have compiled one program and lack the other."""
        who = program.called_by & program.compiled_by if called else program.compiled_by
        return who & ~other.known_by & ~self._unsure

    def _is_sure(
        self, one: Program, other: Program, evidence: Evidence, since: float, now: float, ended: Collection[int]
    ) -> bool:
        who = [n for n in as_numbers(self._without(one, other) | self._without(other, one)) if n not in ended]
        if not who:
            return evidence is not Evidence.AHEAD
        if evidence is Evidence.CERTAIN:
            return now - since >= SURE_AFTER[evidence]
        reporters = [self._reporters[number] for number in who]
        if any(reporter.compiling for reporter in reporters):
            return False
        return now - max(since, *(reporter.heard_at for reporter in reporters)) >= SURE_AFTER[evidence]

    def _describe(self, group: Group, first: Program, second: Program) -> Disagreement:
        """With all other programs that differ from both in the same way."""
        found = [first, second]
        for program in group.programs.values():
            if program.begun.name == first.begun.name and all(
                each is not program and self._compare(each, program) is not None for each in found
            ):
                found.append(program)
        sides = []
        for program in found:
            others = 0
            for other in found:
                others |= other.known_by if other is not program else 0
            sides.append(_as_side(program, program.known_by & ~others & ~self._unsure))
        sides = [side for side in sides if side.processes]
        sides.sort(key=lambda side: (-len(side.processes), side.processes))
        return Disagreement(tuple(sides), group.members.bit_count())


def _as_side(program: Program, processes: int) -> Side:
    begun = program.begun
    return Side(begun.name, begun.place, begun.inputs, begun.layout, tuple(as_numbers(processes)))
