"""`launch status`: how one run stands, or what became of it."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

from hostmesh.launcher.runs.client import ask
from hostmesh.launcher.runs.find import when_begun
from hostmesh.launcher.runs.owner import find_owner
from hostmesh.launcher.runs.queued import find_queued_job
from hostmesh.launcher.runs.reading import read_json
from hostmesh.launcher.words import count_things

MAX_HOSTS = 20


def tell_status(folder: Path, as_json: bool) -> int:
    status = find_status(folder)
    print(json.dumps(status, indent=2) if as_json else "\n".join(write_status(status)))
    return 0


def find_status(folder: Path) -> dict[str, Any]:
    about = {"run": folder.name, "since": round(when_begun(folder), 3), "folder": str(folder)}
    result = read_json(folder / "result.json")
    if find_owner(folder) is not None and not result:
        return {**about, **next(iter(ask(folder, {"ask": "status"})))}
    if (job := find_queued_job(folder)) is not None:
        from hostmesh.launcher.engines.slurm.queued import describe_queued

        state, message = describe_queued(job)
        return {**about, "state": state, "message": message}
    if not result:
        return {**about, "state": "died"}
    return {
        **about,
        "state": result["outcome"],
        **{name: result.get(name) for name in ("exit_code", "message", "step")},
    }


def write_status(status: dict[str, Any]) -> list[str]:
    since = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(status["since"]))
    head = f"run {status['run']}: {status['state']}, began {since}"
    logs = f"logs in {status['folder']}/logs/"
    if status["state"] == "died" and "message" not in status:
        return [head, "its supervisor died without a word, and its agents have ended its processes", logs]
    if "hosts" not in status:
        return [head, str(status["message"]), logs]
    head += f", attempt {status['attempt']}" if status["attempt"] > 1 else ""
    head += f", step {status['step']}" if status["step"] else ""
    head += f", saved at step {status['saved_step']}" if status["saved_step"] is not None else ""
    processes = {each["process_id"]: each for each in status["processes"]}
    lines = [write_host(host, processes) for host in status["hosts"][:MAX_HOSTS]]
    if more := len(status["hosts"]) - MAX_HOSTS:
        lines += [f"  and {count_things(more, 'more host')}; --json has all"] if more > 0 else []
    return [head, *lines, logs]


def write_host(host: dict[str, Any], processes: dict[int, dict[str, Any]]) -> str:
    waits = f", waiting {host['waiting_for']}" if host["waiting_for"] else ""
    problem = f": {host['problem']}" if host["problem"] else ""
    told = "; ".join(write_process(processes[number]) for number in host["process_ids"] if number in processes)
    return f"  {host['host']}: {host['phase']}{waits}{problem}" + (f"; {told}" if told else "")


def write_process(process: dict[str, Any]) -> str:
    how = f"process {process['process_id']} {process['state']}"
    if "exit_code" in process:
        return f"{how} with {process['exit_code']}"
    return f"{how}, {process['phase']} {process['step']}" if "phase" in process else how
