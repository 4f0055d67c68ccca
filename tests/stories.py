"""Stories of a run with scripted agents: no process, no sleep; time passes when nobody has anything to do."""

from __future__ import annotations

import io
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from fake_agent import FakeAgent

from hostmesh.launcher.cluster.model import Cluster, Host, Job
from hostmesh.launcher.errors import Unreachable
from hostmesh.launcher.launch import write_result
from hostmesh.launcher.output.events import EventLog
from hostmesh.launcher.output.run_folder import Run
from hostmesh.launcher.output.screen import Screen
from hostmesh.launcher.planning.plan import Plan, make_plan
from hostmesh.launcher.protocol import wire
from hostmesh.launcher.supervisor.blame.verdict import Verdict
from hostmesh.launcher.supervisor.link.channel import Channel
from hostmesh.launcher.supervisor.link.inbox import Inbox
from hostmesh.launcher.supervisor.loop import Shipment, Supervisor
from hostmesh.launcher.supervisor.records import Records

EPOCH = 1_800_000_000.0
MAX_STORY = 1000.0
Act = Callable[[], Any]


class FakeInbox(Inbox):
    """Where others would wait, the time of the next act or of the timeout has come at once."""

    def __init__(self, agents: Sequence[FakeAgent]) -> None:
        self.agents, self.seconds = agents, 0.0
        self.acts: list[tuple[float, Act]] = []
        self.channels: Mapping[int, Channel] = {}
        for agent in agents:
            agent.clock = self.wall_clock

    def take(self, timeout: float) -> Any:
        self._drain()
        if not self.empty():
            return self.get()
        if self.acts and self.acts[0][0] <= self.seconds + timeout:
            at, act = self.acts.pop(0)
            self.seconds = max(self.seconds, at)
            act()
        else:
            self.seconds += timeout
        assert self.seconds < MAX_STORY, "nothing ends this story"
        for agent in self.agents:
            if agent.beats and not agent.is_over:
                agent.say(wire.Beat())
        return None

    def _drain(self) -> None:
        """Not while something waits here: a reader may be waiting for its turn."""
        for number, channel in self.channels.items():
            if self.empty():
                self.agents[number].drain(channel)

    def now(self) -> float:
        return self.seconds

    def wall_clock(self) -> float:
        return EPOCH + self.seconds

    def awake_or_not(self) -> float:
        return self.seconds


def plan_of(names: Sequence[str], job: Job | None = None, processes: int = 2, **settings: Any) -> Plan:
    hosts = tuple(Host(name, processes) for name in names)
    return make_plan(Cluster(hosts, **{"transport": "ssh", **settings}), job or Job(command=("train",)))


class Story:
    """A run on hosts a, b, … of two processes each, and all that it showed and wrote."""

    def __init__(
        self,
        folder: Path,
        agents: Sequence[FakeAgent],
        *,
        secrets: Mapping[str, str] | None = None,
        **settings: Any,
    ) -> None:
        self.agents, self.secrets = list(agents), secrets or {}
        self.later: dict[int, list[FakeAgent]] = {}  # by host: the agents that it gets when it is connected again
        self.plan = plan_of("abcdefgh"[: len(agents)], **settings)
        self.record = Run.create(folder / "runs", tuple(self.secrets.values()))
        self.out, self.events = io.StringIO(), io.StringIO()
        self.screen = Screen(self.out, colour=False, hidden=tuple(self.secrets.values()))
        self.log = EventLog(self.record, self.events, self.screen.note)
        self.inbox = FakeInbox(self.agents)
        records = Records(self.record, self.screen, self.log, self.secrets)
        shipment = Shipment(b"agent", lambda: b"code")
        self.supervisor = Supervisor(
            *(self.plan, agents, shipment, records), secrets=self.secrets, reopen=self._reopen, inbox=self.inbox
        )
        self.inbox.channels = self.supervisor.channels

    def _reopen(self, number: int, life: int) -> FakeAgent:
        waiting = self.later.get(number)
        agent = waiting.pop(0) if waiting else FakeAgent(hello=[Unreachable("connection refused")])
        agent.clock = self.inbox.wall_clock
        self.agents[number] = agent
        return agent

    def at(self, seconds: float, act: Act) -> None:
        """To be called when so much time has passed, and nobody has anything to do."""
        self.inbox.acts = sorted([*self.inbox.acts, (seconds, act)], key=lambda each: each[0])

    def say_at(self, seconds: float, host: int, *words: Any) -> None:
        self.at(seconds, lambda: self.agents[host].say(*words))

    def exit_at(self, seconds: float, process_id: int, code: int, tail: bytes = b"") -> None:
        host = self.agents[self.supervisor.state.host_of(process_id).number]
        self.at(seconds, lambda: host.say(*host.exit(process_id, code, tail)))

    def interrupt_at(self, seconds: float, *numbers: int) -> None:
        self.at(seconds, lambda: [self.supervisor.interrupt(number) for number in numbers])

    def run(self) -> Verdict:
        """As `launch` does it: the verdict is shown, and written to result.json."""
        self.screen.start()
        try:
            verdict = self.supervisor.run()
            assert write_result(self.record, self.supervisor, verdict, 0.0, 1.0, {}) is None
            self.screen.note(f"launch: {verdict.text()}")
        finally:
            self.log.close()
            assert self.screen.finish(20) and self.log.finish(20)
        return verdict

    @property
    def shown(self) -> str:
        return self.out.getvalue()

    @property
    def everything(self) -> str:
        """All that can be read when the run is over."""
        files = [path.read_text(errors="replace") for path in self.record.folder.rglob("*") if path.is_file()]
        return "\n".join([self.shown, self.events.getvalue(), *files])

    def commands(self, host: int, kind: type) -> list[Any]:
        return [command for command in self.agents[host].heard if isinstance(command, kind)]


def names_of(commands: Iterable[Any]) -> list[str]:
    return [type(command).__name__ for command in commands]
