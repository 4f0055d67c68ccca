"""`launch runs`: a table of all runs, and how old ones are removed."""

from __future__ import annotations

import shutil
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from hostmesh.launcher.errors import HostmeshError
from hostmesh.launcher.output.run_folder import Run
from hostmesh.launcher.runs.find import list_runs, when_begun
from hostmesh.launcher.runs.owner import find_owner, hold_run
from hostmesh.launcher.runs.queued import find_queued_job
from hostmesh.launcher.runs.reading import read_json
from hostmesh.launcher.words import count_things

DAY = 86400.0
MAX_VERDICT = 70
COLUMNS = ("run", "since", "state", "hosts", "step", "verdict")


def list_all(runs: Path, as_json: bool) -> int:
    folders = sorted(list_runs(runs), key=when_begun, reverse=True)
    with ThreadPoolExecutor(8) as pool:  # those that live are asked, and one that does not answer holds up no other
        rows = list(pool.map(describe, folders))
    if as_json:
        import json

        print(json.dumps(rows, indent=2))
    elif rows:
        print(draw(rows))
    else:
        print(f"no runs in {runs}")
    return 0


def describe(folder: Path) -> dict[str, Any]:
    row: dict[str, Any] = {"run": folder.name, "since": round(when_begun(folder), 3), "folder": str(folder)}
    result = read_json(folder / "result.json")
    if result:
        step = result.get("step", result.get("saved_step"))
        return {
            **row,
            "state": result.get("outcome", "ended"),
            "hosts": result.get("hosts"),
            "step": step,
            "exit_code": result.get("exit_code"),
            "verdict": str(result.get("message", "")).partition("\n")[0],
        }
    if (owner := find_owner(folder)) is None and (job := find_queued_job(folder)) is not None:
        return {**row, "hosts": None, "step": None, **ask_queue(job)}
    if owner is None:
        return {**row, "state": "died", "hosts": None, "step": None, "verdict": "its supervisor died without a word"}
    if not owner.is_me:
        return {**row, "state": "lives", "hosts": None, "step": None, "verdict": f"of {owner.user}"}
    return {**row, **ask_status(folder)}


def ask_queue(job: str) -> dict[str, Any]:
    from hostmesh.launcher.engines.slurm.queued import describe_queued

    try:
        state, message = describe_queued(job)
    except HostmeshError as error:
        state, message = "queued", f"Slurm job {job}: {error}"
    return {"state": state, "verdict": message}


def ask_status(folder: Path) -> dict[str, Any]:
    from hostmesh.launcher.runs.client import ask

    try:
        status = next(iter(ask(folder, {"ask": "status"}, timeout=1.0)))
    except (HostmeshError, StopIteration):
        return {"state": "lives", "hosts": None, "step": None, "verdict": "it does not answer"}
    attempt = f"attempt {status['attempt']}" if status["attempt"] > 1 else ""
    return {"state": status["state"], "hosts": len(status["hosts"]), "step": status["step"], "verdict": attempt}


def draw(rows: list[dict[str, Any]]) -> str:
    shown = [[show(row, column) for column in COLUMNS] for row in rows]
    widths = [max(map(len, column)) for column in zip(COLUMNS, *shown, strict=True)]
    lines = (
        "  ".join(cell.ljust(width) for cell, width in zip(each, widths, strict=True)) for each in [COLUMNS, *shown]
    )
    return "\n".join(line.rstrip() for line in lines)


def show(row: dict[str, Any], column: str) -> str:
    value = row.get(column)
    if value is None:
        return "-"
    if column == "since":
        return time.strftime("%Y-%m-%d %H:%M", time.localtime(value))
    text = str(value)
    return text if len(text) <= MAX_VERDICT else f"{text[: MAX_VERDICT - 1]}…"


def prune(runs: Path, days: float) -> int:
    """Removes runs that began so many days ago, and have no supervisor any more."""
    old = [folder for folder in list_runs(runs) if when_begun(folder) < time.time() - days * DAY]
    removed = sum(remove(folder) for folder in sorted(old))
    kept = f"; {count_things(len(old) - removed, 'old run')} could not be removed, or still live" * (removed < len(old))
    print(f"launch: removed {count_things(removed, 'run')} that began more than {days:g} days ago{kept}")
    return 0


def remove(folder: Path) -> bool:
    """Whether it is gone. Its lock is held meanwhile, so it is no run that lives."""
    job = find_queued_job(folder)
    lock = hold_run(Run(folder))
    if lock is None or job is not None and ask_queue(job)["state"] == "queued":
        return False
    with lock:
        shutil.rmtree(folder, ignore_errors=True)
    return not folder.exists()
