"""`launch check`: an agent on every host looks around, and what they found becomes a table."""

from __future__ import annotations

import dataclasses
import json
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from hostmesh.launcher.bundle import pack_agent
from hostmesh.launcher.cluster.model import BUILT_IN_JOB, Cluster, Job
from hostmesh.launcher.engines import acquired, open_engine
from hostmesh.launcher.errors import EXIT_HOST_LOST, UsageError
from hostmesh.launcher.launch import allow_open_files
from hostmesh.launcher.output.lines import LineCutter
from hostmesh.launcher.output.redact import redact_json, redact_text
from hostmesh.launcher.output.run_folder import new_run_id
from hostmesh.launcher.planning.environment import check_environment, find_credentials
from hostmesh.launcher.planning.job import read_code
from hostmesh.launcher.planning.plan import Plan, make_plan
from hostmesh.launcher.preflight.report import Finding, HostReports, judge
from hostmesh.launcher.preflight.table import draw_table
from hostmesh.launcher.supervisor.link.arrivals import redact_arrival
from hostmesh.launcher.supervisor.link.channel import Channel, Ended, Heard, close_channels
from hostmesh.launcher.supervisor.link.inbox import Inbox
from hostmesh.launcher.supervisor.link.liveness import Liveness
from hostmesh.launcher.supervisor.link.protocol import find_violation, is_ignored
from hostmesh.launcher.supervisor.startup.machine import Startup
from hostmesh.launcher.supervisor.state.host import HostState, Phase
from hostmesh.launcher.supervisor.state.run_state import begin_state
from hostmesh.launcher.transports import open_streams
from hostmesh.launcher.transports.base import CLOSE_TIMEOUT, Stream

# A Python on a slow disk may take a minute to answer.
TIMEOUT = 120.0
NOTE_EVERY = 5.0
TICK = 0.5
UNFINISHED = (Phase.CONNECTING, Phase.GREETED, Phase.PREPARING)


def check_hosts(cluster: Cluster, as_json: bool, runs: Path, timeout: float) -> int:
    if cluster.transport == "slurm" and "SLURM_JOB_ID" not in os.environ:
        raise UsageError("these nodes are looked at from inside an allocation: salloc --nodes=… launch check --hosts …")
    plan = make_plan(cluster, Job(module=BUILT_IN_JOB))
    given = {name: os.environ.get(name, "") for name in cluster.secrets}
    hidden = tuple(filter(None, {**find_credentials(cluster.env), **given}.values()))
    check_environment(plan.env)
    allow_open_files(plan)
    tree = read_code(cluster, runs)
    code = tree.digest if tree is not None else None
    run_id = new_run_id()
    with acquired(open_engine(cluster, run_id)):
        checker = Checker(plan, open_streams(cluster, run_id), pack_agent(), hidden, timeout)
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
        self,
        plan: Plan,
        streams: Sequence[Stream],
        package: bytes,
        hidden: Sequence[str],
        timeout: float,
        inbox: Inbox | None = None,
    ) -> None:
        self._plan, self._hidden, self._timeout = plan, hidden, timeout
        self._inbox = inbox or Inbox()
        self._state = begin_state(plan)
        self.channels = {
            number: Channel(number, stream, package, plan.cluster.lease, self._inbox)
            for number, stream in enumerate(streams)
        }
        self._startup = Startup(plan, self._state, self.channels, self._inbox, thorough=True)
        self._liveness = Liveness(self._state.hosts, self.channels)

    def run(self) -> HostReports:
        """Every host answers, or cannot be reached, or has had its time."""
        began = noted = self._inbox.now()
        while waiting := [host for host in self._state.hosts if host.phase in UNFINISHED]:
            now = self._inbox.now()
            if now - noted > NOTE_EVERY:
                noted = now
                names = ", ".join(host.name for host in waiting[:4])
                print(f"launch: after {now - began:.0f} s waiting for {names} …", file=sys.stderr)
            if now - began > self._timeout:
                for host in waiting:
                    self._count_out(host, f"within {self._timeout:g} s; --timeout gives it longer")
            else:
                self._take_in()
        return self._report()

    def close(self) -> None:
        close_channels(dict.fromkeys(self.channels.values(), CLOSE_TIMEOUT), 2 * CLOSE_TIMEOUT)

    def _report(self) -> HostReports:
        hosts, coordinator, cluster = self._state.hosts, self._startup.coordinator, self._plan.cluster
        tried: dict[int, str | None] = {host.number: None for host in hosts if host.has_tried_port}
        refused = {host.number: host.refusals[-1] for host in hosts if host.refusals}
        return HostReports(
            [host.name for host in hosts],
            {host.number: host.facts or {} for host in hosts if host.facts is not None or host.refusals},
            unreachable={host.number: host.problem for host in self._state.unreachable},
            offsets={host.number: host.clock_offset for host in hosts if host.clock_offset is not None},
            ports={**tried, **refused, **coordinator.problems()},
            # For splitting devices evenly; none where the cluster file lists the devices of each process.
            processes=[host.processes for host in cluster.hosts] if cluster.local_devices == "auto" else [],
            coordinator=coordinator.place[0] if coordinator.place else None,
            syncs=cluster.sync is not None,
        )

    def _count_out(self, host: HostState, limit: str) -> None:
        """In the end everybody's time is over, also that of a transport that is still connecting."""
        if host.facts is not None:
            self._startup.refuse(host, f"it has not tried the coordinator's port {limit}")
        elif self.channels[host.number].is_open:
            self._startup.give_up(host, f"it is connected, but has not finished looking around {limit}")
        else:
            self._startup.give_up(host, f"not connected {limit}")

    def _take_in(self) -> None:
        began = self._inbox.now()
        entry = self._inbox.take(TICK)
        for host, limit in self._liveness.count(self._inbox.now() - began):
            said = redact_arrival(Ended(host.number, self.channels[host.number].said), self._hidden).text
            self._startup.lose(host, f"has been silent for {limit:g} s", said)
        match redact_arrival(entry, self._hidden):
            case Ended() as end:
                self._note_end(self._state.hosts[end.host], end)
            case Heard(number, event):
                self._note_event(self._state.hosts[number], event)
                self.channels[number].handled(event)

    def _note_end(self, host: HostState, end: Ended) -> None:
        if host.is_gone:
            return
        if end.unreachable is not None:
            self._startup.give_up(host, end.unreachable)
        else:
            self._startup.lose(host, "lost its agent", end.text)

    def _note_event(self, host: HostState, event: Any) -> None:
        if is_ignored(host, event):
            return
        if (violation := find_violation(host, event, spawned=False)) is not None:
            self._startup.lose(host, "broke the agent protocol", violation)
        else:
            self._startup.note_event(host, event)
