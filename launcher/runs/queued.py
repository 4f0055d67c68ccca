"""Runs that were submitted to Slurm and have not begun: their folder says which job they are."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from hostmesh.launcher.runs.reading import read_json


def find_job_of(folder: Path) -> str | None:
    """The Slurm job that a run is in; None if it is in no job."""
    engine: dict[str, Any] = read_json(folder / "engine.json")
    return str(engine["job"]) if engine.get("engine") == "slurm" and engine.get("job") else None


def find_queued_job(folder: Path) -> str | None:
    """The Slurm job of a run that has not begun; None if it has begun, or is in no job."""
    has_begun = (folder / "plan.json").exists() or (folder / "result.json").exists()
    return None if has_begun else find_job_of(folder)
