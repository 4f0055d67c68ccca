"""Start the processes of an attempt: each gets its identity, its environment and a log."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

from hostmesh.launcher.planning.plan import Plan
from hostmesh.launcher.protocol import wire
from hostmesh.launcher.supervisor.link.channel import Channel
from hostmesh.launcher.supervisor.link.inbox import Inbox
from hostmesh.launcher.supervisor.records import Records
from hostmesh.launcher.supervisor.state.host import Phase
from hostmesh.launcher.supervisor.state.progress import Progress
from hostmesh.launcher.supervisor.state.run_state import RunState
from hostmesh.worker.identity import GRACE, LOCAL_PROCESSES


def spawn_all(plan: Plan, state: RunState, records: Records, channels: Mapping[int, Channel], inbox: Inbox) -> None:
    state.spawned, state.spawned_at = True, inbox.now()
    state.progress = {process.process_id: Progress(state.spawned_at) for process in plan.processes}
    assert state.coordinator is not None
    on_host = Counter(process.host for process in plan.processes)
    is_python, argv = plan.job.command is None, plan.argv()
    for process in plan.processes:
        host = state.hosts[process.host]
        host.phase = Phase.RUNNING
        records.open_log(process.process_id, host.name)
        identity = plan.identity(process, records.run.id, state.attempt, *state.coordinator)
        found = host.env_of(process.local_process_id)
        about = {GRACE: f"{state.grace:g}", LOCAL_PROCESSES: str(on_host[process.host])}
        env = {**found, **process.env, **identity.to_env(), **about}
        order = wire.Spawn(process.process_id, env, argv, is_python, inbox.wall_clock())
        channels[process.host].send(order)
