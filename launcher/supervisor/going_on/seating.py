"""Other hosts take part in a run from now on: its processes are placed anew, and the user is told."""

from __future__ import annotations

from hostmesh.launcher.planning.plan import Plan
from hostmesh.launcher.supervisor.decisions import Seat
from hostmesh.launcher.supervisor.records import Records
from hostmesh.launcher.supervisor.state.run_state import RunState
from hostmesh.launcher.words import count_things


def seat_hosts(order: Seat, plan: Plan, state: RunState, records: Records) -> Plan:
    """The plan with the processes on the hosts of the new seats."""
    for old, new in zip(state.seats, order.seats, strict=True):
        if new is not None and old != new:
            place = "is there again, and takes part" if old is None else f"takes the place of {state.hosts[old].name}"
            records.note(f"launch: {state.hosts[new].name} {place}")
    plan = plan.place([number for number in order.seats if number is not None])
    state.seat(order.seats, plan.processes)
    if order.gone:
        hosts, processes = len(state.members), len(plan.processes)
        left = f"{count_things(hosts, 'host')}, {count_things(processes, 'process')}"
        records.note(f"launch: going on without {', '.join(order.gone)}: {left}")
    records.tell("hosts seated", hosts=[host.name for host in state.members])
    return plan
