"""All that is known about a run; the policy looks at nothing else."""

from __future__ import annotations

import math
import signal
from collections.abc import Collection
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from hostmesh.launcher.cluster.model import HangTimeout
from hostmesh.launcher.planning.plan import Plan
from hostmesh.launcher.supervisor.blame.failures import Failure
from hostmesh.launcher.supervisor.blame.verdict import Verdict
from hostmesh.launcher.supervisor.link.clocks import Clock, same_clock
from hostmesh.launcher.supervisor.programs.comparison import Programs
from hostmesh.launcher.supervisor.state.host import HostState
from hostmesh.launcher.supervisor.state.progress import Progress
from hostmesh.launcher.supervisor.state.run_hosts import RunHosts
from hostmesh.launcher.supervisor.state.standstill import Standstill
from hostmesh.worker.identity import EXIT_PREEMPTED

if TYPE_CHECKING:
    from hostmesh.launcher.supervisor.guard.comparison import Guard
    from hostmesh.launcher.supervisor.programs.disagreement import Disagreement
    from hostmesh.launcher.supervisor.stuck.network import NetworkProblem, NetworkTrial

# When the network is tried, each host tries all others; more of them would be more of the same.
MAX_TRYING = 64
# What jax raises when XLA fails.
RUNTIME_ERRORS = frozenset({"JaxRuntimeError", "XlaRuntimeError"})
ORDERLY = frozenset({0, EXIT_PREEMPTED})
# What is known of the processes of one attempt, and of no other.
OF_AN_ATTEMPT = (
    *("coordinator", "is_assembling", "saved_at", "spawned", "spawned_at", "started", "joining", "joined"),
    *("separate", "exits", "crashes", "failures", "leavers", "progress", "hang", "hang_since", "network"),
    *(
        "looked_at",
        "standstill",
        "nursery_death",
        "programs",
        "ended_before",
        "resumed_step",
        "resumed_source",
        "guard",
    ),
)


@dataclass
class RunState(RunHosts):
    """Hosts are in the order of the cluster file. Process ids are keys, times are those of the inbox's `now`."""

    logs: str = ""
    grace: float = 3.0
    keep_going: bool = False
    tries_network: bool = False  # whether hosts can reach each other is worth a trial
    ends_at_disagreement: bool = True  # processes that run different programs end the run
    hang_timeout: HangTimeout = HangTimeout()
    stacks: str = ""
    attempt: int = 1
    not_before: float = 0.0  # the next attempt's processes are not to start
    # Start-up.
    unsendable: str | None = None  # what is wrong with a file on this machine
    spawned: bool = False
    spawned_at: float = 0.0
    # Processes.
    started: set[int] = field(default_factory=set)
    joining: set[int] = field(default_factory=set)
    joined: set[int] = field(default_factory=set)
    separate: set[int] = field(default_factory=set)
    exits: dict[int, int] = field(default_factory=dict)
    crashes: dict[int, tuple[float, dict[str, Any]]] = field(default_factory=dict)
    failures: list[Failure] = field(default_factory=list)
    leavers: list[Failure] = field(default_factory=list)
    progress: dict[int, Progress] = field(default_factory=dict)
    hang: Verdict | None = None  # what would be said if the run ended now, as of when it was last told about
    hang_since: float = 0.0
    looked_at: float = -math.inf  # when the processes were last looked at, all of them
    standstill: Standstill = Standstill()
    network: NetworkTrial | None = None  # the last one, where hosts were asked to try it
    nursery_death: Verdict | None = None
    save_seconds: float | None = None
    saved_step: int | None = None
    saved_at: float = -math.inf  # the last save of this attempt was complete
    reached_before: int | None = None  # the last step that all processes of the attempt before had begun
    resumed_step: int | None = None  # where this attempt goes on from,
    resumed_source: str = ""  # in memory or on disk
    programs: Programs = field(default_factory=Programs)
    guard: Guard | None = None  # from the first report of rows on
    faults_told: list[dict[str, Any]] = field(default_factory=list)  # of a rehearsal, done or not possible
    # Requests to stop.
    interrupts: list[int] = field(default_factory=list)
    interrupted_at: float = 0.0
    ended_before: set[int] = field(default_factory=set)  # processes that had ended when the run was asked to stop

    def begin_attempt(self, not_before: float) -> None:
        """The processes of the last one are gone; the hosts, and what was saved, stay."""
        self.reached_before = min(self.steps.values(), default=None)
        fresh = RunState(())
        for name in OF_AN_ATTEMPT:
            setattr(self, name, getattr(fresh, name))
        self.attempt, self.not_before = self.attempt + 1, not_before
        self.starts_together = False

    def can_spawn(self, now: float) -> bool:
        return self.are_ready and self.coordinator is not None and now >= self.not_before

    # Processes.

    @property
    def lost_processes(self) -> set[int]:
        """Those of lost hosts of which no exit is known."""
        lost = (host.process_ids for host in self.troubled if host.loss is not None)
        return {process_id for ids in lost for process_id in ids} - self.exits.keys()

    @property
    def everyone_ended(self) -> bool:
        return len(self.exits.keys() | self.lost_processes) == self.num_processes

    @property
    def nobody_is_waited_for(self) -> bool:
        """Who has lost a peer only waits for its own end."""
        waiting = {number for number, (_, crash) in self.crashes.items() if crash["lost_peer"]}
        return len(self.exits.keys() | self.lost_processes | waiting) == self.num_processes

    @property
    def was_preempted(self) -> bool:
        codes = set(self.exits.values())
        return len(self.exits) == self.num_processes and codes <= ORDERLY and EXIT_PREEMPTED in codes

    @property
    def stood_still(self) -> Verdict | None:
        """Who held the others up, if it has not moved since that was found out. What the others say when they give up
        is no movement."""
        if self.hang is None:
            return None
        culprit = self.hang.process_id
        looked_at = [culprit] if culprit is not None else self.progress.keys() - self.exits.keys() - self.crashes.keys()
        return self.hang if all(self.progress[each].moved_at <= self.hang_since for each in looked_at) else None

    @property
    def steps(self) -> dict[int, int]:
        """The last one that each process has begun, as its record says."""
        return {process_id: each.step for process_id, each in self.progress.items() if each.step}

    @property
    def marks(self) -> dict[int, int]:
        """How far each process has come: its step or, where it tells none, in how many seconds it was seen to work."""
        return {number: each.step if each.is_kept else each.seen.moves for number, each in self.progress.items()}

    def find_disagreement(self, now: float, ended: Collection[int]) -> Disagreement | None:
        """`ended` are processes that will compile nothing more."""
        programs = self.programs
        return programs.find_disagreement(now, ended) or programs.find_lone(now, lambda: self.marks)

    def find_network_problem(self) -> NetworkProblem | None:
        return None if self.network is None else self.network.find_problem([host.name for host in self.hosts])

    @property
    def moved_at(self) -> float:
        """When any process last moved."""
        return max(each.moved_at for each in self.progress.values())

    @property
    def succeeded(self) -> int:
        return sum(code == 0 for code in self.exits.values())

    @property
    def victims(self) -> list[Failure]:
        """Also those that have said so and have not ended yet."""
        known = {failure.process_id for failure in self.failures}
        told = [
            Failure(number, self.host_of(number).name, 1, at, "", crash)
            for number, (at, crash) in self.crashes.items()
            if number not in known and crash["lost_peer"]
        ]
        return [*self.failures, *told]

    @property
    def early_leavers(self) -> list[Failure]:
        """Who never joined the others cannot be missed by them."""
        return [each for each in self.leavers if not self.joined or each.process_id in self.joined]

    @property
    def cause_is_leaving(self) -> bool:
        """A process has raised an exception of its own and runs its exit handlers, for which it has some seconds."""
        leaving = [crash for process_id, (_, crash) in self.crashes.items() if process_id not in self.exits]
        return any(not crash["lost_peer"] for crash in leaving)

    @property
    def has_own_cause(self) -> bool:
        """A process failed for a reason that its peers, and what it computes with them, have no part in."""
        own = (crash for _, crash in self.crashes.values() if not crash["lost_peer"])
        if any(str(crash["type"]).rpartition(".")[2] not in RUNTIME_ERRORS for crash in own):
            return True
        return any(each.crash is None and each.is_a_cause and each.code != -signal.SIGABRT for each in self.failures)

    # Requests to stop.

    @property
    def stop_grace(self) -> float:
        """A save takes every process: once one is gone in another way, there is nothing to wait for."""
        left = [code for number, code in self.exits.items() if number not in self.ended_before]
        if self.save_seconds is None or not ORDERLY.issuperset(left):
            return self.grace
        return max(self.grace, self.save_seconds)

    @property
    def request(self) -> int:
        """The signal that asks processes to stop: what the launcher got; SIGTERM where that makes them save."""
        is_ctrl_c = self.interrupts[0] == signal.SIGINT
        return signal.SIGINT if is_ctrl_c and self.save_seconds is None else signal.SIGTERM


def begin_state(plan: Plan, logs: str = "", stacks: str = "") -> RunState:
    """Of a run that has a plan, and whose hosts are not known yet."""
    cluster = plan.cluster
    is_here = cluster.transport == "local"
    hosts = (
        HostState(number, host.address, clock=same_clock() if is_here else Clock())
        for number, host in enumerate(cluster.hosts)
    )
    state = RunState(
        tuple(hosts),
        logs,
        cluster.grace,
        cluster.keep_going,
        goes_on=cluster.goes_on,
        least_seats=cluster.min_hosts,
        rejoin=cluster.rejoin,
        tries_network=not is_here and 1 < len(cluster.hosts) <= MAX_TRYING,
        ends_at_disagreement=cluster.programs == "stop",
        hang_timeout=cluster.hang_timeout,
        stacks=stacks,
    )
    state.seat(tuple(range(len(cluster.hosts) - cluster.spares)), plan.processes)
    state.starts_together = True
    return state
