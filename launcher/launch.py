"""From a plan to an exit code: secrets, run folder, screen, signals, supervisor, verdict."""

from __future__ import annotations

import os
import resource
import signal
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hostmesh.launcher.cluster.model import Cluster
from hostmesh.launcher.engines import acquired, open_engine
from hostmesh.launcher.errors import UsageError
from hostmesh.launcher.output.provenance import Provenance
from hostmesh.launcher.output.run_folder import SUBMITTED, Run
from hostmesh.launcher.planning.environment import check_environment, find_credentials
from hostmesh.launcher.planning.plan import Plan
from hostmesh.launcher.runs.owner import hold_run
from hostmesh.launcher.transports import open_streams, reopen_stream
from hostmesh.launcher.transports.stdin import Stdin

if TYPE_CHECKING:
    from hostmesh.launcher.output.view import View
    from hostmesh.launcher.supervisor.blame.verdict import Verdict
    from hostmesh.launcher.supervisor.control.server import Server
    from hostmesh.launcher.supervisor.loop import Supervisor
    from hostmesh.launcher.supervisor.records import Records
    from hostmesh.launcher.sync.tree import Tree

# A suspended launcher would fall silent, and its agents end the run: SIGTSTP only gets an answer.
# SIGUSR1 is what Slurm's --signal and its like often send ahead of the end of an allocation.
HANDLED = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGTSTP, signal.SIGUSR1)

# The launcher's own; a stream's, which to an agent on this machine is three pipes; a log's, to write and to show it.
OPEN_FILES, OPEN_FILES_A_HOST, OPEN_FILES_A_PROCESS = 128, 3, 2


def launch_plan(
    plan: Plan, runs: Path, as_json: bool, view: View, command: list[str], is_detached: bool = False, notify: str = ""
) -> int:
    secrets = read_secrets(plan.cluster)
    check_environment({**plan.env, **secrets})
    allow_open_files(plan)
    tree = read_checked_code(plan, runs)
    run = Run.create(runs, tuple(secrets.values()), os.environ.pop(SUBMITTED, None))
    if is_detached:
        from hostmesh.launcher.detach import detach

        if (code := detach(run, len(plan.processes), as_json)) is not None:
            return code
        as_json = False  # nobody reads what this process prints
    lock = hold_run(run, is_detached)
    provenance = Provenance(plan, run, command)
    if (unwritten := provenance.write_plan()) is not None:
        print(unwritten, file=sys.stderr)
    stdin, engine = Stdin(plan), open_engine(plan.cluster, run.id)
    if engine is not None:
        run.write_json(run.engine, engine.describe())
    with acquired(engine):
        streams = open_streams(plan.cluster, run.id, stdin.fd)
        # After the agents' Pythons have begun to start: they come up while this one imports the rest.
        from hostmesh.launcher.bundle import COMPRESSED, STORED, pack_agent, pack_code
        from hostmesh.launcher.output.events import EventLog
        from hostmesh.launcher.output.screen import Screen, use_colour
        from hostmesh.launcher.supervisor.loop import Shipment, Supervisor
        from hostmesh.launcher.supervisor.records import Records

        out = sys.stderr if as_json else sys.stdout
        screen = Screen(out, use_colour(out, os.environ), sys.stderr, tuple(secrets.values()), *view)
        screen.shows_prompts = stdin.is_terminal and out.isatty()
        events = EventLog(run, sys.stdout if as_json else None, screen.note)
        records = Records(run, screen, events, secrets)
        level = STORED if plan.cluster.transport == "local" else COMPRESSED
        supervisor = Supervisor(
            plan,
            streams,
            Shipment(pack_agent(level), partial(pack_code, level), tree),
            records,
            secrets=secrets,
            reopen=lambda number, life: reopen_stream(plan.cluster, run.id, number, life, stdin.fd),
            on_spawn=lambda: provenance.look(supervisor.found_python),
            engine=engine,
        )
        for number in HANDLED:
            if number != signal.SIGHUP or signal.getsignal(number) is not signal.SIG_IGN:  # as nohup leaves it
                signal.signal(number, lambda number, _: supervisor.interrupt(number))
        began = time.time()
        screen.start()
        server = open_control(run, supervisor, records)
        verdict = supervisor.run()
    stdin.take_back()
    events.close()
    seconds = time.time() - began
    if not supervisor.ending.has_told:
        records.note(f"launch: {verdict.text(took=f' in {seconds:.1f} s' if verdict.exit_code == 0 else '')}")
    audit = audit_run(run, records.note) if records.has_loaders else {}
    unwritten = write_result(run, supervisor, verdict, began, seconds, {**provenance.finish(), **audit})
    if unwritten is not None:
        records.note(unwritten)
    if plan.faults:
        from hostmesh.launcher.chaos.telling import tell_end

        records.note(tell_end(plan.faults, supervisor.state.faults_told))
    if notify:
        tell_others(notify, run, records)
    if server is not None:
        server.close()
    if lock is not None:
        lock.close()  # whoever follows the run finds its result by now
    while not (screen.finish(timeout=0.5) and events.finish(timeout=0.5)):
        if supervisor.asked_again():
            os._exit(verdict.exit_code)  # a thread that waits for a reader would hold up the interpreter's own end
    return verdict.exit_code


def open_control(run: Run, supervisor: Supervisor, records: Records) -> Server | None:
    """Where others can ask the run; a folder on some disks cannot have a socket, and the run does without."""
    from hostmesh.launcher.supervisor.control.server import Server

    try:
        return Server(run.control, supervisor.inbox)
    except OSError as error:
        records.tell("control lost", why=str(error))
        return None


def tell_others(target: str, run: Run, records: Records) -> None:
    from hostmesh.launcher.notify import notify

    try:
        result = run.result.read_bytes()
    except OSError as error:
        records.note(f"launch: --notify has nothing to tell: {run.result} cannot be read: {error.strerror}")
    else:
        notify(target, result, records.note)


def audit_run(run: Run, note: Callable[[str], None]) -> dict[str, Any]:
    """For result.json. The verdict stays as it is, whatever is found."""
    from hostmesh.launcher.audit.audit import audit_loaders, merge_audits
    from hostmesh.launcher.audit.data import describe_data
    from hostmesh.launcher.audit.line import tell_audit
    from hostmesh.launcher.audit.told import read_told

    try:
        with run.events.open("rb") as lines:
            told = read_told(lines)
    except OSError:
        return {}  # that the events cannot be written was told
    audits = audit_loaders(told)
    audit, data = merge_audits(told, audits), describe_data(told, audits)
    if (line := tell_audit(audit)) is not None:
        note(line)
    found = {"data": data, "audit": audit}
    return {name: value for name, value in found.items() if value is not None}


def read_checked_code(plan: Plan, runs: Path) -> Tree | None:
    """What travels to the hosts, read before any of them is bothered."""
    from hostmesh.launcher.planning.job import check_is_synced, read_code

    tree = read_code(plan.cluster, runs)
    if tree is not None:
        for sentence in tree.skipped:
            print(f"launch: {sentence}", file=sys.stderr)
        check_is_synced(plan.job, [entry.path for entry in tree.entries])
    return tree


def allow_open_files(plan: Plan) -> None:
    """Many systems begin with 1,024, which 300 hosts would use up."""
    hosts, processes = len(plan.cluster.hosts), len(plan.processes)
    wanted = OPEN_FILES + OPEN_FILES_A_HOST * hosts + OPEN_FILES_A_PROCESS * processes
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard != resource.RLIM_INFINITY and hard < wanted:
        raise UsageError(f"{hosts} hosts take {wanted} open files, and {hard} are allowed here; raise ulimit -Hn")
    if soft != resource.RLIM_INFINITY and soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


def read_secrets(cluster: Cluster) -> dict[str, str]:
    """With what stands in `env` and lets somebody in all the same."""
    if missing := [name for name in cluster.secrets if not os.environ.get(name)]:
        raise UsageError(f"secrets: {', '.join(missing)} not set in the environment of the launcher")
    return {**find_credentials(cluster.env), **{name: os.environ[name] for name in cluster.secrets}}


def write_result(
    run: Run, supervisor: Supervisor, verdict: Verdict, began: float, seconds: float, provenance: dict[str, Any]
) -> str | None:
    return run.write_json(
        run.result,
        {
            "run": run.id,
            "outcome": verdict.outcome,
            "exit_code": verdict.exit_code,
            "message": verdict.message,
            "detail": verdict.detail,
            "remarks": list(verdict.remarks),
            "process_id": verdict.process_id,
            "host": verdict.host,
            "victims": verdict.victims,
            "verdict": verdict.to_json(),
            "saved_step": supervisor.state.saved_step,
            "step": min(supervisor.state.steps.values(), default=None),
            "hosts": len(supervisor.state.members),
            "processes": supervisor.state.num_processes,
            "not_finite": supervisor.metrics.not_finite,
            "began": round(began, 3),
            "seconds": round(seconds, 3),
            "exits": {str(process_id): code for process_id, code in sorted(supervisor.state.exits.items())},
            **describe_attempts(supervisor),
            **provenance,
            **describe_chaos(supervisor),
        },
    )


def describe_attempts(supervisor: Supervisor) -> dict[str, Any]:
    """Of a run that may be restarted; nothing for any other."""
    if supervisor.attempts is None:
        return {}
    return {"attempts": [attempt.to_json() for attempt in supervisor.attempts.history]}


def describe_chaos(supervisor: Supervisor) -> dict[str, Any]:
    """What became of the faults of a rehearsal; nothing for any other run."""
    if not supervisor.plan.faults:
        return {}
    from hostmesh.launcher.chaos.telling import summarise

    return {"chaos": summarise(supervisor.plan.faults, supervisor.state.faults_told)}
