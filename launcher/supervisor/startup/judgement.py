"""Hosts of a run judged together, once each has answered: the coordinator, preflight checks, GPUs, proxies."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from hostmesh.launcher.errors import UsageError
from hostmesh.launcher.planning.accelerators import pick_gpus, split_devices
from hostmesh.launcher.planning.plan import Plan
from hostmesh.launcher.supervisor.startup.coordinator import Coordinator
from hostmesh.launcher.supervisor.state.host import HostState, Phase

# Checks that mean nothing to a command that is no Python program.
FOR_PYTHON = ("python", "jax", "jaxlib", "numpy")


class Judgement:
    """`judged` are those that are looked at, beside the others of the run; `env` is what processes get on every host,
    secrets included."""

    def __init__(
        self,
        plan: Plan,
        hosts: Sequence[HostState],
        judged: Sequence[HostState],
        env: Mapping[str, str],
        refuse: Callable[[HostState, str], None],
        note: Callable[[str], None],
        tell: Callable[..., object],
    ) -> None:
        self._plan, self._hosts, self._judged, self._env = plan, hosts, judged, env
        self._refuse, self._note, self._tell = refuse, note, tell

    def judge(self, coordinator: Coordinator | None = None) -> None:
        """Without the coordinator where that is agreed on later."""
        address = None
        if coordinator is not None:
            for number, problem in coordinator.problems().items():
                self._refuse(self._hosts[number], problem)
            address = coordinator.place[0] if coordinator.place is not None else None
        if any(host.facts is not None for host in self._judged):
            self._judge_facts(address)
            self._split_gpus()
        if address is not None:
            self.bypass_proxies(address)

    def _judge_facts(self, address: str | None) -> None:
        from hostmesh.launcher.preflight.report import judge_run

        looked_at = [host for host in self._hosts if host in self._judged or host.phase in (Phase.READY, Phase.RUNNING)]
        facts = {host.number: host.facts for host in looked_at if host.facts is not None}
        offsets = {host.number: host.clock_offset for host in looked_at if host.clock_offset is not None}
        is_python = self._plan.job.command is None
        for finding in judge_run(self._plan.cluster, facts, offsets, address):
            if not is_python and finding.check in FOR_PYTHON:
                continue
            host = self._hosts[finding.host]
            if host not in self._judged:
                continue
            # Names matter to collectives, which a command may do without.
            if finding.level == "failure" and (is_python or finding.check != "names"):
                self._refuse(host, finding.text)
            else:
                self._note(f"launch: {host.name}: {finding.text}")

    def _split_gpus(self) -> None:
        """Those of this machine were split when the run was planned."""
        if self._plan.gpus is not None:
            return
        for host in self._judged:
            if host.facts is None:
                continue
            env = {**own_settings(host.facts), **self._plan.env}
            try:
                kind, count = pick_gpus(host.facts["devices"], env)
                host.device_env = split_devices(self._plan.cluster, host.number, count, env, kind)
            except UsageError as error:
                self._refuse(host, str(error))

    def bypass_proxies(self, address: str) -> None:
        """Where a proxy would get the connections to the coordinator, the processes are told to go past it."""
        proxies = {host: self._proxies_of(host) for host in self._judged}
        if not any(name.endswith("_proxy") for found in proxies.values() for name in found):
            return
        from hostmesh.launcher.preflight.proxies import except_address, find_capturing

        for host, found in proxies.items():
            if variable := find_capturing(found, address):
                host.proxy_env = except_address(found, address)
                self._tell("proxy bypassed", host=host.name, proxy=variable, env=host.proxy_env)

    def _proxies_of(self, host: HostState) -> Mapping[str, str]:
        """Processes on this machine see what the launcher sees, also where no host was inspected."""
        if host.facts is not None:
            found = host.facts.get("proxies") or {}
            return {} if "problem" in found else found
        return {**os.environ, **self._env} if self._plan.cluster.transport == "local" else {}


def own_settings(facts: Mapping[str, Any]) -> dict[str, str]:
    """What a host's own environment says about devices."""
    own = {**(facts.get("visible") or {}), "JAX_PLATFORMS": facts.get("platforms")}
    return {name: value for name, value in own.items() if isinstance(value, str)}
