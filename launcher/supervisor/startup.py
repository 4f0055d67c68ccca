"""From agents that said hello to hosts on which processes can start: code, setup, a look at each, the coordinator."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any

from hostmesh.launcher import wire
from hostmesh.launcher.accelerators import pick_gpus, split_devices
from hostmesh.launcher.errors import UsageError
from hostmesh.launcher.plan import Plan
from hostmesh.launcher.supervisor.channel import Channel
from hostmesh.launcher.supervisor.coordinator import Coordinator

if TYPE_CHECKING:
    from hostmesh.launcher.sync.sending import Sending
    from hostmesh.launcher.sync.tree import Tree

# Checks that mean nothing to a command that is no Python program.
FOR_PYTHON = ("python", "jax", "jaxlib", "numpy")


@dataclass
class Readiness:
    """How far the hosts are; the supervisor decides by it. `doing` is what is waited for on a host."""

    doing: dict[int, str]
    greeted: set[int] = field(default_factory=set)
    unreachable: dict[int, str] = field(default_factory=dict)
    refused: dict[int, list[str]] = field(default_factory=dict)
    refused_at: float = 0.0
    unsendable: str | None = None  # what is wrong with a file on this machine
    coordinator: tuple[str, int] | None = None
    complete: bool = False

    @property
    def answered(self) -> bool:
        """Every host has been reached, or cannot be."""
        return len(self.greeted) + len(self.unreachable) == len(self.doing)


class Preparation:
    def __init__(
        self,
        plan: Plan,
        channels: Mapping[int, Channel],
        secrets: Mapping[str, str],
        code: bytes,
        tree: Tree | None,
        tell: Callable[..., object],
        note: Callable[[str], None],
    ) -> None:
        self._plan, self._channels, self._tree = plan, channels, tree
        self._code = wire.encode(wire.Code(code))
        self._listing = tree.encode() if tree is not None else b""
        self._sending = self._begin_sending(tree) if tree is not None else None
        self._synced: set[int] = set()
        self._env = {**plan.env, **secrets}
        self._tell, self._note = tell, note
        self._coordinator = Coordinator(plan)
        self._waiting: dict[int, set[str]] = {}
        self._looked_at: dict[int, float] = {}
        self._found: dict[int, dict[str, Any]] = {}
        self._offsets: dict[int, tuple[float, float]] = {}
        self._device_env: dict[int, list[dict[str, str]]] = {}
        self._proxy_env: dict[int, dict[str, str]] = {}
        self.readiness = Readiness({number: "to connect" for number in range(len(plan.cluster.hosts))})

    def note_event(self, host: int, event: Any) -> None:
        match event:
            case wire.Hello():
                self._greet(host, event)
            case wire.FilesNeeded():
                self._send_wanted(host, event.numbers)
            case wire.BytesStored():
                self._channels[host].note_taken(event.size)
            case wire.Synced():
                self._note_synced(host, event)
            case wire.SetupDone():
                self._note_set_up(host, event)
            case wire.Ready():
                self._tell("host ready", host=self._name(host), python=event.python)
                self._done(host, "Python")
            case wire.Inspected():
                self._note_found(host, event.found)
            case wire.Reserved():
                self._ask_to_reach(event.ports)
            case wire.Reached():
                self._coordinator.note_reached(host, event.problems)
                self._done(host, "port")
            case wire.Refused():
                self.refuse(host, explain_refusal(event))
            case _ if self._tree is not None:
                self._note_sending(event)

    def _note_sending(self, event: Any) -> None:
        from hostmesh.launcher.sync.sending import LeftOut, Unsendable

        match event:
            case LeftOut():
                self._note(f"launch: {event.path} was left out: {event.why}")
                self._tell("file left out", path=event.path, why=event.why)
            case Unsendable():
                self.readiness.unsendable = self.readiness.unsendable or event.problem

    def refuse(self, host: int, problem: str) -> None:
        from hostmesh.launcher.supervisor.remedies import find_remedies

        problem = "\n".join([problem, *find_remedies(problem)])
        self.readiness.refused_at = self.readiness.refused_at or time.monotonic()
        self.readiness.refused.setdefault(host, []).append(problem)
        if host in self._waiting:
            self._waiting[host].clear()
        self.readiness.doing[host] = ""
        self._tell("host refused", host=self._name(host), problem=problem)

    def lose(self, host: int, problem: str) -> None:
        """It was never reached."""
        self.readiness.unreachable[host] = problem
        self.readiness.doing[host] = ""

    def env_of(self, host: int, local_process_id: int) -> dict[str, str]:
        """What a process gets because of the devices and proxies its host turned out to have."""
        each = self._device_env.get(host)
        return {**(each[local_process_id] if each else {}), **self._proxy_env.get(host, {})}

    @property
    def found_python(self) -> Mapping[str, Any]:
        """Of process 0, where somebody had a look: its version, and those of its packages."""
        return self._found.get(0, {}).get("python") or {}

    def _greet(self, host: int, hello: wire.Hello) -> None:
        """Nothing is done on a host before all of them have an agent: one that is missing leaves the others alone."""
        ready = self.readiness
        ready.greeted.add(host)
        ready.doing[host] = ""
        self._tell("host connected", host=self._name(host), agent_pid=hello.pid, guardian_pid=hello.guardian_pid)
        self._send(host, wire.Lease(self._plan.cluster.lease))
        if host == 0:
            self._send(0, self._coordinator.reserve(hello.addresses))
        if ready.answered and not ready.unreachable and not ready.refused:
            for each in sorted(ready.greeted):
                self._begin(each)

    # One host.

    def _begin(self, host: int) -> None:
        self._waiting[host] = {"Python"}
        if host == 0 or self._coordinator.needs_trial:
            self._waiting[host].add("port")
        if host == 0:
            self._note_port()
        else:
            self._try_port(host)
        if self._tree is None:
            self._channels[host].send_encoded(self._code)
            self._set_up(host)
            return
        assert self._plan.cluster.workdir is not None
        self.readiness.doing[host] = "to look at its code"
        self._send(host, wire.Sync(self._plan.cluster.workdir, self._listing))
        self._channels[host].send_encoded(
            self._code
        )  # after it: a process of its own on the host is busy with the sync

    def _send_wanted(self, host: int, numbers: list[int]) -> None:
        assert self._sending is not None
        if numbers:
            self.readiness.doing[host] = f"to receive {len(numbers)} files"
        if (problem := self._sending.note_wanted(numbers)) is not None:
            self.note_event(host, problem)
            return
        channel = self._channels[host]
        channel.send_pieces(self._sending.pieces(numbers, channel.report))

    def _begin_sending(self, tree: Tree) -> Sending:
        from hostmesh.launcher.sync.sending import Sending

        job = self._plan.job
        return Sending(tree, {*filter(None, [job.script, *(job.command or ())]), *job.args})

    def _note_synced(self, host: int, synced: wire.Synced) -> None:
        assert self._tree is not None
        self._synced.add(host)
        if len(self._synced) == len(self.readiness.doing):
            self._tree.kept.clear()
        self._tell("host synced", host=self._name(host), code=self._tree.digest, **synced._asdict())
        self._set_up(host)

    def _set_up(self, host: int) -> None:
        cluster = self._plan.cluster
        if not cluster.setup.run:
            self._prepare(host)
            return
        self.readiness.doing[host] = "to be set up"
        self._send(host, wire.RunSetup(list(cluster.setup.run), self._setup_key, cluster.workdir, self._env))

    @cached_property
    def _setup_key(self) -> str:
        from hostmesh.launcher.supervisor.setup_key import make_key

        return make_key(self._plan.cluster.setup, self._plan.env, self._tree)

    def _note_set_up(self, host: int, event: wire.SetupDone) -> None:
        if event.ran:
            self._note(f"launch: set up {self._name(host)} in {event.seconds:.1f} s")
        self._tell("host set up", host=self._name(host), **event._asdict())
        self._prepare(host)

    def _prepare(self, host: int) -> None:
        self.readiness.doing[host] = "to be ready"
        cluster, settings = self._plan.cluster, self._plan.cluster.hosts[host]
        python = self._python_of(host)
        warm = self._plan.is_warm(settings)
        preload = list(cluster.preload)
        self._send(host, wire.PrepareWorkers(python, cluster.workdir, self._env, warm, preload))
        if self._is_inspected():
            self._waiting[host].add("look")
            self._looked_at[host] = time.time()
            self._send(host, wire.Inspect(python, cluster.workdir, self._env, [], thorough=False))

    def _python_of(self, host: int) -> str:
        return self._plan.cluster.hosts[host].python or default_python(self._plan.cluster.transport)

    def _is_inspected(self) -> bool:
        """CPU processes on this machine need no look: it would cost a tenth of their start."""
        return self._plan.cluster.transport != "local" or self._plan.env.get("JAX_PLATFORMS") != "cpu"

    def _note_found(self, host: int, found: dict[str, Any]) -> None:
        from hostmesh.launcher.preflight.host_reports import measure_offset

        self._offsets[host] = measure_offset(found["time"], self._looked_at[host], time.time())
        self._found[host] = found
        self._done(host, "look")

    # All of them.

    def _ask_to_reach(self, ports: dict[str, int]) -> None:
        self._coordinator.note_reserved(ports)
        for host in sorted(self._waiting.keys() - {0}):
            self._try_port(host)
        if 0 in self._waiting:
            self._note_port()

    def _note_port(self) -> None:
        if self._coordinator.is_reserved:
            self._done(0, "port")

    def _try_port(self, host: int) -> None:
        if (order := self._coordinator.reach()) is not None:
            self._send(host, order)

    def _done(self, host: int, what: str) -> None:
        """Every host in the end gets here for the last time; then all of them are judged together."""
        ready = self.readiness
        self._waiting[host].discard(what)
        if not self._waiting[host]:
            ready.doing[host] = ""
        elif self._waiting[host] == {"look"}:
            ready.doing[host] = f"to answer: its Python {self._python_of(host)} has yet to start"
        is_last = len(self._waiting) == len(ready.doing) and not any(self._waiting.values())
        if is_last and not (ready.complete or ready.refused or ready.unreachable):
            self._judge()
            ready.complete = not ready.refused

    def _judge(self) -> None:
        for host, problem in self._coordinator.problems().items():
            self.refuse(host, problem)
        self.readiness.coordinator = self._coordinator.place
        if self._found:
            self._judge_found()
        if self.readiness.coordinator is not None:
            self._go_past_proxies(self.readiness.coordinator[0])

    def _go_past_proxies(self, address: str) -> None:
        """Where a proxy would get the connections to the coordinator, the processes are told to go past it."""
        proxies = {host: self._proxies_of(host) for host in self._waiting}
        if not any(name.endswith("_proxy") for found in proxies.values() for name in found):
            return
        from hostmesh.launcher.preflight.proxies import except_address, find_capturing

        for host, found in proxies.items():
            if variable := find_capturing(found, address):
                self._proxy_env[host] = except_address(found, address)
                self._tell("proxy bypassed", host=self._name(host), proxy=variable, env=self._proxy_env[host])

    def _proxies_of(self, host: int) -> Mapping[str, str]:
        """Processes on this machine see what the launcher sees, also where nobody has a look first."""
        if host in self._found:
            found = self._found[host].get("proxies") or {}
            return {} if "problem" in found else found
        return {**os.environ, **self._env} if self._plan.cluster.transport == "local" else {}

    def _judge_found(self) -> None:
        from hostmesh.launcher.preflight.report import judge_run

        cluster = self._plan.cluster
        address = self._coordinator.place[0] if self._coordinator.place else None
        for finding in judge_run(cluster, self._found, self._offsets, address):
            is_python = self._plan.job.command is None
            if not is_python and finding.check in FOR_PYTHON:
                continue
            # Names matter to collectives, which a command may do without.
            if finding.level == "failure" and (is_python or finding.check != "names"):
                self.refuse(finding.host, finding.text)
            else:
                self._note(f"launch: {self._name(finding.host)}: {finding.text}")
        for host, found in self._found.items() if self._plan.gpus is None else ():
            try:
                env = {**own_settings(found), **self._plan.env}
                kind, count = pick_gpus(found["devices"], env)
                self._device_env[host] = split_devices(cluster, host, count, env, kind)
            except UsageError as error:
                self.refuse(host, str(error))

    def _name(self, host: int) -> str:
        return self._plan.cluster.hosts[host].address

    def _send(self, host: int, message: Any) -> None:
        self._channels[host].send(message)


def own_settings(found: Mapping[str, Any]) -> dict[str, str]:
    """What a host's own environment says about devices."""
    own = {**(found.get("visible") or {}), "JAX_PLATFORMS": found.get("platforms")}
    return {name: value for name, value in own.items() if isinstance(value, str)}


def default_python(transport: str) -> str:
    return sys.executable if transport == "local" else "python3"


def explain_refusal(refused: wire.Refused) -> str:
    """With the end of what a program printed about it."""
    from hostmesh.launcher.supervisor.remedies import last_lines

    return "\n".join([refused.problem, *("  " + line for line in last_lines(refused.said))])
