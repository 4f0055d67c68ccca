"""Carries the compiled programs that process 0 uses to the hosts that lack them, in the background, piece by piece.

One piece is on its way at a time: from process 0's host to the launcher, and from there to every host that lacks the
program. So memory stays bounded, and all other messages wait for no more than one piece, which is small on a slow link.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from hostmesh.launcher.agent.flow import Limits, Window
from hostmesh.launcher.cluster.model import Cluster
from hostmesh.launcher.protocol import wire
from hostmesh.launcher.supervisor.link.channel import Channel
from hostmesh.launcher.supervisor.link.inbox import Inbox
from hostmesh.launcher.supervisor.records import Records
from hostmesh.launcher.supervisor.reports import Reports
from hostmesh.launcher.supervisor.state.host import HostState, Phase
from hostmesh.launcher.supervisor.state.run_state import RunState
from hostmesh.worker.compiling.names import ENTRY, FOLDER, MAX_ENTRY

# Seconds after which other hosts are asked whether they lack a program: most have compiled it by then themselves.
ASK_AFTER = 5.0
# Seconds for an answer. Whoever takes longer is carried nothing more until the next attempt.
ANSWER_TIMEOUT = 30.0
LOOK_EVERY = 0.5
MAX_PROGRAMS = 10_000
# How many programs hosts are asked about at once.
MAX_ASKED = 500
PIECES = Limits(first=64 << 10, least=16 << 10, most=1 << 20, quick=0.1, slow=0.3)

Program = tuple[str, str]  # folder and name


@dataclass
class Question:
    """Which hosts lack these programs? `unheard` have not answered."""

    began: float
    unheard: set[int]
    lacking: dict[Program, set[int]] = field(default_factory=dict)


@dataclass
class Transfer:
    """A program on its way to some hosts; `unheard` are those that have not stored the last piece."""

    program: Program
    size: int
    to: set[int]
    start: int = 0
    length: int = 0  # of the piece on its way; 0 until process 0's host has sent it
    began: float = 0.0
    unheard: set[int] = field(default_factory=set)


class CompiledCarrier:
    """Everything happens in `note_event`: every agent beats once a second."""

    def __init__(
        self,
        cluster: Cluster,
        state: RunState,
        channels: Mapping[int, Channel],
        records: Records,
        inbox: Inbox,
        reports: Reports,
    ) -> None:
        self._state, self._channels, self._records, self._inbox = state, channels, records, inbox
        self._reports = reports
        self._is_on = cluster.compile_cache == "on" and len(cluster.hosts) > 1
        self._window = Window(PIECES, inbox.now)
        self._sizes: dict[Program, int] = {}  # of all programs that were used
        self._due: deque[tuple[float, Program]] = deque()
        self._slow: set[int] = set()
        self._question: Question | None = None
        self._transfer: Transfer | None = None
        self._look_at = 0.0
        self._has_told = False

    def begin(self) -> None:
        """Processes have been started. Agents have forgotten what they were asked before."""
        self._slow.clear()
        self._question = self._transfer = None
        if self._is_on:
            self._state.host_of(0).asked.add(wire.ShareCompiled)
            self._channels[self._source].send(wire.ShareCompiled())

    def note_event(self, host: HostState, event: Any) -> bool:
        """Whether the event was one about compiled programs. Once a run ends, nothing more is carried."""
        is_ours = True
        match event:
            case wire.CompiledUsed():
                self._note_used(event)
            case wire.CompiledLacking():
                self._note_lacking(host.number, event)
            case wire.CompiledPiece():
                self._pass_on(event)
            case wire.CompiledStored():
                self._note_stored(host.number, event)
            case _:
                is_ours = False
                self._note_other(host, event)
        now = self._inbox.now()
        if not self._reports.is_ending and (is_ours or now >= self._look_at):
            self._go_on(now)
        return is_ours

    def _note_other(self, host: HostState, event: Any) -> None:
        if isinstance(event, wire.Ready):  # a host that was not there before
            self._due.extend((self._inbox.now(), program) for program in self._sizes)
        elif isinstance(event, wire.Fact) and event.name == "compile cache" and not self._has_told:
            self._has_told = True
            problem = event.detail.get("problem")
            self._records.note(f"launch: compiled programs are not kept on {host.name}: {problem}")

    def _note_used(self, event: wire.CompiledUsed) -> None:
        """An agent can say anything."""
        due = self._inbox.now() + ASK_AFTER
        for name, size in event.sizes.items():
            is_program = FOLDER.fullmatch(event.folder) and ENTRY.fullmatch(name) and 0 < size <= MAX_ENTRY
            if is_program and len(self._sizes) < MAX_PROGRAMS:
                self._sizes[event.folder, name] = size
                self._due.append((due, (event.folder, name)))

    @property
    def _source(self) -> int:
        return self._state.host_of(0).number

    def _find_reachable(self) -> set[int]:
        are_there = {host.number for host in self._state.hosts if host.phase in (Phase.READY, Phase.RUNNING)}
        return are_there - self._slow

    def _go_on(self, now: float) -> None:
        if now >= self._look_at:
            self._look_at = now + LOOK_EVERY
            self._give_up_on_some(now)
        if self._source in self._slow:
            return
        if self._transfer is not None:
            self._continue(self._transfer)
        if self._question is not None and self._transfer is None:
            self._begin_next(self._question)
        if self._question is None and self._due and self._due[0][0] <= now:
            self._ask(now)

    def _give_up_on_some(self, now: float) -> None:
        """On hosts that are gone, or take too long."""
        if self._source not in self._find_reachable():
            self._slow.add(self._source)
        for wait in (self._question, self._transfer):
            if wait is None:
                continue
            if now - wait.began > ANSWER_TIMEOUT:
                self._slow |= wait.unheard
            wait.unheard &= self._find_reachable()
        if self._transfer is not None:
            self._transfer.to &= self._find_reachable()

    # Asking.

    def _ask(self, now: float) -> None:
        """About programs of one folder, which many of them share."""
        folder = self._due[0][1][0]
        names: list[str] = []
        while self._due and self._due[0][0] <= now and self._due[0][1][0] == folder and len(names) < MAX_ASKED:
            names.append(self._due.popleft()[1][1])
        order = wire.encode(wire.FindCompiled(folder, names))
        hosts = self._find_reachable() - {self._source}
        for number in hosts:
            self._channels[number].send_encoded(order)
        self._question = Question(now, hosts)

    def _note_lacking(self, host: int, event: wire.CompiledLacking) -> None:
        if self._question is None or host not in self._question.unheard:
            return
        self._question.unheard.discard(host)
        for name in event.names:
            if (event.folder, name) in self._sizes:
                self._question.lacking.setdefault((event.folder, name), set()).add(host)

    def _begin_next(self, question: Question) -> None:
        if question.unheard:
            return
        while question.lacking:
            program, hosts = question.lacking.popitem()
            if to := hosts & self._find_reachable():
                self._transfer = Transfer(program, self._sizes[program], to)
                self._fetch(self._transfer)
                return
        self._question = None

    # Carrying.

    def _fetch(self, transfer: Transfer) -> None:
        transfer.began, transfer.length, transfer.unheard = self._inbox.now(), 0, {self._source}
        size = min(self._window.size, transfer.size - transfer.start)
        self._channels[self._source].send(wire.ReadCompiled(*transfer.program, transfer.start, size))

    def _pass_on(self, piece: wire.CompiledPiece) -> None:
        transfer = self._transfer
        if transfer is None or transfer.length or not _is_of(piece, transfer):
            return
        size = len(piece.data)
        if not 0 < size <= transfer.size - transfer.start:
            self._transfer = None  # the program is gone, or is another by now
            return
        transfer.began, transfer.length, transfer.unheard = self._inbox.now(), size, set(transfer.to)
        self._window.note_sent(size)
        order = wire.encode(wire.StoreCompiled(*transfer.program, transfer.start, transfer.size, piece.data))
        for number in transfer.to:
            self._channels[number].send_encoded(order)

    def _note_stored(self, host: int, event: wire.CompiledStored) -> None:
        transfer = self._transfer
        if transfer is not None and _is_of(event, transfer) and host in transfer.unheard:
            transfer.unheard.discard(host)
            if event.ok is not True:
                transfer.to.discard(host)

    def _continue(self, transfer: Transfer) -> None:
        if transfer.unheard:
            return
        self._window.note_acknowledged(transfer.length)
        transfer.start += transfer.length
        if transfer.length and transfer.start < transfer.size and transfer.to:
            self._fetch(transfer)
        else:
            self._transfer = None


def _is_of(event: wire.CompiledPiece | wire.CompiledStored, transfer: Transfer) -> bool:
    return (event.folder, event.name, event.start) == (*transfer.program, transfer.start)
