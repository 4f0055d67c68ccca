"""The recount of records, in a Python of its own: it needs numpy, which the launcher itself never imports."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from typing import Any

MODULE = "hostmesh.worker.audit.recount"
# Records that are recounted, which takes some ten seconds; and as many seconds as that may take.
MAX_RECORDS = 1 << 27
# One byte for each record of the data.
MAX_LENGTH = 1 << 28
TIMEOUT = 60.0


def ask_recount(question: dict[str, Any]) -> dict[str, Any] | str:
    """The answer, or why there is none."""
    if why := find_excess(question):
        return why
    package = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
    path = os.pathsep.join(filter(None, [os.path.dirname(package), os.environ.get("PYTHONPATH")]))
    try:
        done = subprocess.run(
            [sys.executable, "-P", "-m", MODULE],
            input=json.dumps(question),
            capture_output=True,
            text=True,
            timeout=TIMEOUT,
            env={**os.environ, "PYTHONPATH": path},
        )
        if done.returncode == 0:
            answer: dict[str, Any] = json.loads(done.stdout)
            return answer
    except subprocess.TimeoutExpired:
        return f"the recount took longer than {TIMEOUT:g} s"
    except (OSError, ValueError) as error:
        return f"the recount failed: {error}"
    said = done.stderr.strip().splitlines()
    return f"the recount failed: {said[-1] if said else f'exit code {done.returncode}'}"


def find_excess(question: dict[str, Any]) -> str:
    """What is too much to recount, or nothing."""
    spec = question["spec"]
    ranges = [*question["passes"], *(segment for share in question["shares"] for segment in share["segments"])]
    steps = max(last for _, last in ranges) - min(first for first, _ in ranges) + 1
    if steps * spec["batch_size"] > MAX_RECORDS:
        return f"{steps * spec['batch_size']:,} records are too many to recount; up to {MAX_RECORDS:,} are"
    if spec["length"] > MAX_LENGTH:
        return f"the data has {spec['length']:,} records; up to {MAX_LENGTH:,} are looked up"
    return ""
