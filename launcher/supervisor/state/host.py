"""What the launcher knows of one host: the phase it is in, what is wrong with it, and what it turned out to have."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from enum import Enum, auto
from typing import Any

from hostmesh.launcher.supervisor.blame.verdict import Verdict
from hostmesh.launcher.supervisor.link.clocks import Clock, same_clock

# Agents beat once a second; a host that misses some beats is quiet.
QUIET = 3.0


class Phase(Enum):
    """A host goes down this list, and leaves out what does not happen to it."""

    CONNECTING = auto()  # no agent has said hello
    GREETED = auto()  # its agent has said hello
    PREPARING = auto()  # its agent makes it ready for processes, or inspects it
    READY = auto()  # processes can start
    RUNNING = auto()  # its agent was told to start processes
    REFUSED = auto()  # it cannot take part, for reasons that are known
    LEFT = auto()  # its agent has ended everything and said goodbye
    LOST = auto()  # it had an agent, which is gone
    UNREACHABLE = auto()  # it cannot be used: its agent never started


WITH_AGENT = frozenset({Phase.GREETED, Phase.PREPARING, Phase.READY, Phase.RUNNING, Phase.REFUSED})
GONE = frozenset({Phase.LEFT, Phase.LOST, Phase.UNREACHABLE})


class Answer(Enum):
    """What an agent that prepares its host owes the launcher."""

    PYTHON = auto()  # the workers' Python can start
    PORT = auto()  # the coordinator's port is held, or was tried
    FACTS = auto()  # what it found on its host


@dataclass
class Silence:
    """How long nothing has come from a host. Only the time that the launcher itself waited counts."""

    seconds: float = 0.0
    chunks: int = 0

    def count(self, chunks: int, seconds: float) -> None:
        self.seconds = self.seconds + seconds if chunks == self.chunks else 0.0
        self.chunks = chunks


@dataclass(eq=False)
class HostState:
    """One host of a run, or of a check. `RunState` moves it from phase to phase."""

    number: int
    name: str
    process_ids: tuple[int, ...] = ()
    phase: Phase = Phase.CONNECTING
    life: int = 1  # how many agents it has had; what an earlier one says is not heard
    clock: Clock = field(default_factory=Clock)
    silence: Silence = field(default_factory=Silence)
    waiting_for: str = "to connect"  # the end of "waiting for HOST …"; empty when nothing is waited for
    asked: set[type] = field(default_factory=set)  # commands about the coordinator's port that it was sent
    owed: set[Answer] = field(default_factory=set)
    ready_at: float = math.inf
    is_synced: bool = False
    has_tried_port: bool = False
    # What is wrong with it.
    refusals: list[str] = field(default_factory=list)
    refused_at: float = 0.0
    problem: str = ""  # why it is unreachable
    loss: Verdict | None = None
    explained_by: float = -math.inf  # until then an engine may say why it took the host away
    notice: str = ""  # why it is known that the host will be taken away soon
    # What it turned out to have.
    addresses: tuple[str, ...] = ()  # of its interfaces
    facts: dict[str, Any] | None = None
    inspected_at: float = 0.0
    clock_offset: tuple[float, float] | None = None
    device_env: list[dict[str, str]] = field(default_factory=list)
    proxy_env: dict[str, str] = field(default_factory=dict)

    @property
    def has_agent(self) -> bool:
        return self.phase in WITH_AGENT

    @property
    def has_seat(self) -> bool:
        """It takes part: processes run on it, or will."""
        return bool(self.process_ids)

    @property
    def is_gone(self) -> bool:
        return self.phase in GONE

    @property
    def is_quiet(self) -> bool:
        """It has missed beats, and may be lost."""
        return self.has_agent and self.silence.seconds > QUIET

    @property
    def is_to_come_back(self) -> bool:
        """It was lost, and is being connected again."""
        return self.life > 1 and self.phase is Phase.CONNECTING

    def begin_again(self) -> None:
        """A host that is gone gets another agent, which knows nothing of the one before."""
        clock = self.clock if self.clock == same_clock() else Clock()
        fresh = HostState(self.number, self.name, self.process_ids, life=self.life + 1, clock=clock)
        vars(self).update(vars(fresh))
        self.waiting_for = "to come back"

    def env_of(self, local_process_id: int) -> dict[str, str]:
        """What a process gets because of the devices and proxies that its host turned out to have."""
        devices = self.device_env[local_process_id] if self.device_env else {}
        return {**devices, **self.proxy_env}
