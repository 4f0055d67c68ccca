"""`launch check`: an agent on every host looks around, and what they found becomes a table."""

from __future__ import annotations

import dataclasses
import ipaddress
import json
import os
import queue
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from hostmesh.launcher import wire
from hostmesh.launcher.bundle import pack_agent
from hostmesh.launcher.cluster.model import BUILT_IN_JOB, Cluster, Job
from hostmesh.launcher.environment import check_environment
from hostmesh.launcher.errors import EXIT_HOST_LOST
from hostmesh.launcher.job import read_code
from hostmesh.launcher.launch import allow_open_files
from hostmesh.launcher.output.lines import LineCutter
from hostmesh.launcher.output.redact import redact_json, redact_text
from hostmesh.launcher.output.run_folder import new_run_id
from hostmesh.launcher.plan import Plan, make_plan
from hostmesh.launcher.preflight.host_reports import measure_offset
from hostmesh.launcher.preflight.report import Finding, HostReports, judge
from hostmesh.launcher.preflight.table import draw_table
from hostmesh.launcher.supervisor.arrivals import redact_arrival
from hostmesh.launcher.supervisor.channel import Channel, Ended, Heard, Stream, close_channels
from hostmesh.launcher.supervisor.coordinator import Coordinator
from hostmesh.launcher.supervisor.remedies import explain_no_agent, find_remedies
from hostmesh.launcher.supervisor.startup import default_python, explain_refusal
from hostmesh.launcher.transports import CLOSE_TIMEOUT, open_streams

# A Python on a slow disk may take a minute to answer.
TIMEOUT = 120.0
HELLO_TIMEOUT = 45.0
NOTE_EVERY = 5.0


def check_hosts(cluster: Cluster, as_json: bool, runs: Path, timeout: float) -> int:
    plan = make_plan(cluster, Job(module=BUILT_IN_JOB))
    hidden = tuple(filter(None, (os.environ.get(name) for name in cluster.secrets)))
    check_environment(plan.env)
    allow_open_files(plan)
    tree = read_code(cluster, runs)
    code = tree.digest if tree is not None else None
    checker = Checker(plan, open_streams(cluster, new_run_id()), pack_agent(), hidden, timeout)
    try:
        look = checker.run()
    finally:
        checker.close()
    findings = judge(dataclasses.replace(look, code=code))
    rows = redact_json(as_rows(findings, look), hidden)
    print(json.dumps(rows, indent=2) if as_json else clean(redact_text(draw_table(look.hosts, findings), hidden)))
    if look.unreachable:
        return EXIT_HOST_LOST
    return 1 if any(finding.level == "failure" for finding in findings) else 0


def clean(text: str) -> str:
    """Of what would garble a terminal: hosts are quoted in it."""
    return "\n".join(LineCutter(colour=False).feed(text.encode("utf-8", "replace") + b"\n"))


def as_rows(findings: Sequence[Finding], look: HostReports) -> list[dict[str, Any]]:
    return [{**dataclasses.asdict(finding), "host": look.hosts[finding.host]} for finding in findings]


class Checker:
    """One thread owns this; channels only fill the inbox."""

    def __init__(
        self, plan: Plan, streams: Sequence[Stream], package: bytes, hidden: Sequence[str], timeout: float
    ) -> None:
        self._plan, cluster = plan, plan.cluster
        self._hidden, self._timeout = hidden, timeout
        self._hosts = [host.address for host in cluster.hosts]
        self._inbox: queue.SimpleQueue[Any] = queue.SimpleQueue()
        self._coordinator = Coordinator(plan)
        self._facts: dict[int, dict[str, Any]] = {}
        self._unreachable: dict[int, str] = {}
        self._asked: dict[int, float] = {}
        self._offsets: dict[int, tuple[float, float]] = {}
        self._ports: dict[int, str | None] = {}
        self._channels = [
            Channel(number, stream, package, cluster.lease, self._inbox) for number, stream in enumerate(streams)
        ]

    def run(self) -> HostReports:
        """Every host answers, or cannot be reached, or has had its time."""
        began = noted = time.monotonic()
        while waiting := self._waiting():
            now = time.monotonic()
            if now - noted > NOTE_EVERY:
                noted = now
                names = ", ".join(self._hosts[host] for host in waiting[:4])
                print(f"launch: after {now - began:.0f} s waiting for {names} …", file=sys.stderr)
            self._count_out(waiting, now - began)
            self._take_in()
        self._settle_ports()
        return HostReports(
            self._hosts,
            self._facts,
            unreachable=self._unreachable,
            offsets=self._offsets,
            ports=self._ports,
            processes=self._processes(),
            coordinator=self._coordinator.place[0] if self._coordinator.place else None,
            syncs=self._plan.cluster.sync is not None,
        )

    def close(self) -> None:
        close_channels(dict.fromkeys(self._channels, CLOSE_TIMEOUT), 2 * CLOSE_TIMEOUT)

    def _waiting(self) -> list[int]:
        return [host for host in range(len(self._hosts)) if host not in self._unreachable and not self._is_done(host)]

    def _is_done(self, host: int) -> bool:
        return host in self._facts and (host in self._ports or not self._is_tried(host))

    def _is_tried(self, host: int) -> bool:
        """Nobody can try a port that the first host does not hold."""
        return host > 0 and self._coordinator.needs_trial and 0 not in self._unreachable and 0 not in self._ports

    def _count_out(self, waiting: Sequence[int], seconds: float) -> None:
        """A transport that is still connecting has a limit of its own, but in the end everybody's time is over."""
        for host in waiting:
            if seconds > self._timeout:
                self._give_up(host, f"within {self._timeout:g} s; --timeout gives it longer")
            elif seconds > HELLO_TIMEOUT and self._channels[host].is_open and host not in self._asked:
                said = redact_arrival(Ended(host, self._channels[host].said), self._hidden).text
                why = f"has been silent for {HELLO_TIMEOUT:g} s"
                self._lose(host, explain_no_agent(why, said, self._plan.cluster.agent_python))

    def _give_up(self, host: int, limit: str) -> None:
        if host in self._facts:
            self._ports[host] = f"it has not tried the coordinator's port {limit}"
        elif self._channels[host].is_open:
            self._lose(host, f"it is connected, but has not finished looking around {limit}")
        else:
            self._lose(host, f"not connected {limit}")

    def _take_in(self) -> None:
        try:
            entry = self._inbox.get(timeout=0.5)
        except queue.Empty:
            return
        entry = redact_arrival(entry, self._hidden)
        if isinstance(entry, Ended):
            agent_python = self._plan.cluster.agent_python
            self._lose(entry.host, entry.unreachable or explain_no_agent("lost its agent", entry.text, agent_python))
        elif isinstance(entry, Heard):
            self._note(entry.host, entry.event)
            self._channels[entry.host].handled(entry.event)

    def _lose(self, host: int, problem: str) -> None:
        self._unreachable.setdefault(host, problem)

    def _note(self, host: int, event: Any) -> None:
        match event:
            case wire.Hello():
                self._greet(host, event)
            case wire.Inspected():
                self._offsets[host] = measure_offset(event.found["time"], self._asked[host], time.time())
                self._facts[host] = event.found
            case wire.Reserved():
                self._coordinator.note_reserved(event.ports)
                for other in self._asked.keys() - {0}:
                    self._try_port(other)
            case wire.Reached():
                self._coordinator.note_reached(host, event.problems)
                self._ports[host] = None
            case wire.Refused():
                problem = explain_refusal(event)
                self._ports[host] = "\n".join([problem, *find_remedies(problem)])
                self._facts.setdefault(host, {})

    def _greet(self, host: int, hello: wire.Hello) -> None:
        cluster, channel = self._plan.cluster, self._channels[host]
        python = cluster.hosts[host].python or default_python(cluster.transport)
        self._asked[host] = time.time()
        channel.send(wire.Lease(cluster.lease))
        channel.send(wire.Inspect(python, cluster.workdir, dict(self._plan.env), self._names(), thorough=True))
        if host == 0 and self._coordinator.needs_trial:
            channel.send(self._coordinator.reserve(hello.addresses))
        else:
            self._try_port(host)

    def _try_port(self, host: int) -> None:
        if (order := self._coordinator.reach()) is not None:
            self._channels[host].send(order)

    def _names(self) -> list[str]:
        """What the hosts call each other, where that is not a number."""
        inner = [host.internal_address for host in self._plan.cluster.hosts if host.internal_address]
        return [name for name in inner if not is_number(name)]

    def _processes(self) -> list[int]:
        """For splitting devices evenly; none where the cluster file lists the devices of each process."""
        cluster = self._plan.cluster
        return [host.processes for host in cluster.hosts] if cluster.local_devices == "auto" else []

    def _settle_ports(self) -> None:
        self._ports |= self._coordinator.problems()


def is_number(address: str) -> bool:
    try:
        ipaddress.ip_address(address)
    except ValueError:
        return False
    return True
