"""`launch --detach`: the supervisor gets a session of its own, and this terminal waits until all processes run."""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from pathlib import Path

from hostmesh.launcher.output.run_folder import Run
from hostmesh.launcher.runs.reading import Lines, read_json

LOOK_EVERY = 0.05


def detach(run: Run, num_processes: int, as_json: bool) -> int | None:
    """None in the process that is to supervise the run; an exit code in the one that the user waits for. To be called
    before there are threads."""
    sys.stdout.flush()
    sys.stderr.flush()
    pid = os.fork()
    if pid == 0:
        leave_terminal(run)
        return None
    return await_start(run, pid, num_processes, as_json)


def leave_terminal(run: Run) -> None:
    """What the launcher itself has to say goes to a file of the run's, which has also what would be lost otherwise: how
    a supervisor fell over its own feet."""
    os.setsid()
    nothing = os.open(os.devnull, os.O_RDWR)
    own = os.open(run.own_log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    for source, target in ((nothing, 0), (nothing, 1), (own, 2)):
        os.dup2(source, target)
    os.close(nothing)
    os.close(own)


def await_start(run: Run, pid: int, num_processes: int, as_json: bool) -> int:
    """0 once every process has started, or the exit code of a run that ended before. Ctrl-C stops it."""
    events, started, shown = Lines(run.events), 0, 0
    while True:
        try:
            ended, status = os.waitpid(pid, os.WNOHANG)
            shown += show_more(run.own_log, shown)
            started += sum(event.get("event") == "process started" for event in events.read())
            if ended:
                return tell_end(run, os.waitstatus_to_exitcode(status), as_json)
            if started >= num_processes:
                tell_started(run, num_processes, as_json)
                return 0
            time.sleep(LOOK_EVERY)
        except KeyboardInterrupt:
            os.kill(pid, signal.SIGINT)


def tell_started(run: Run, num_processes: int, as_json: bool) -> None:
    if as_json:
        print(json.dumps({"run": run.id, "folder": str(run.folder), "processes": num_processes}))
        return
    tell_how_to_come_back(run)


def tell_how_to_come_back(run: Run, who: str = "") -> None:
    """The id alone is on stdout. `who` begins the run later, where a scheduler does."""
    does = f"is begun by {who}" if who else "goes on"
    print(f"launch: run {run.id} {does} without this terminal; come back with", file=sys.stderr)
    for command, what in (("attach", "its screen"), ("status", "how it stands"), ("stop", "its end")):
        print(f"    launch {command} {run.id}".ljust(36) + what, file=sys.stderr)
    print(run.id)


def show_more(log: Path, shown: int) -> int:
    """Shows what a file has beyond so many bytes; returns how many more that were."""
    try:
        data = log.read_bytes()[shown:]
    except OSError:
        return 0
    sys.stderr.write(data.decode(errors="replace"))
    sys.stderr.flush()
    return len(data)


def tell_end(run: Run, code: int, as_json: bool) -> int:
    """A run that has no result could not begin, and has said why."""
    if as_json:
        print(json.dumps({"run": run.id, "folder": str(run.folder), "exit_code": code, **read_json(run.result)}))
    if code < 0:
        print(f"launch: the supervisor was killed by signal {-code} before the processes had started", file=sys.stderr)
    return code if code >= 0 else 128 - code
