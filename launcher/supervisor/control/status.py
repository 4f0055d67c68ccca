"""How a run stands, as JSON; pure."""

from __future__ import annotations

from typing import Any

from hostmesh.launcher.supervisor.state.run_state import RunState


def describe_status(state: RunState, run_id: str) -> dict[str, Any]:
    return {
        "run": run_id,
        "state": name_state(state),
        "attempt": state.attempt,
        "step": min(state.steps.values(), default=None),
        "saved_step": state.saved_step,
        "hosts": [
            {
                "host": host.name,
                "phase": host.phase.name.lower(),
                "waiting_for": host.waiting_for,
                "problem": host.problem or "; ".join(host.refusals),
                "process_ids": list(host.process_ids),
            }
            for host in state.hosts
        ],
        "processes": [describe_process(state, process_id) for process_id in range(state.num_processes)],
    }


def name_state(state: RunState) -> str:
    if state.interrupts:
        return "stopping"
    if not state.spawned:
        return "starting" if state.attempt == 1 else "restarting"
    return "standing still" if state.stood_still is not None else "running"


def describe_process(state: RunState, process_id: int) -> dict[str, Any]:
    progress = state.progress.get(process_id)
    told: dict[str, Any] = {"process_id": process_id, "state": "waiting"}
    if process_id in state.exits:
        told |= {"state": "ended", "exit_code": state.exits[process_id]}
    elif process_id in state.started:
        told["state"] = "stopped" if progress is not None and progress.is_stopped else "running"
    if progress is not None and progress.phase:
        told |= {"phase": progress.phase, "step": progress.step}
    return told
