"""The recount of records, in a Python of its own: it needs numpy, which the launcher itself never imports."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from typing import Any

PROGRAM = "import sys; sys.path.append(sys.argv[1]); from hostmesh.worker.audit.recount import main; main()"
# Records that are recounted at the end of a run, which takes some ten seconds, and how long that may take.
MAX_RECORDS = 1 << 26
# Of a table with a byte for each record of the data.
MAX_LENGTH = 1 << 28
TIMEOUT = 60.0
LATER = "`python -m hostmesh.launcher.audit RUNFOLDER` recounts it however long that takes"


def ask_recount(question: dict[str, Any]) -> dict[str, Any] | str:
    """The answer, or why there is none: so much is recounted that nobody waits long for the end of a run."""
    return find_excess(question) or ask_without_limit(question, TIMEOUT)


def ask_without_limit(question: dict[str, Any], timeout: float | None = None) -> dict[str, Any] | str:
    package = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
    command = [sys.executable, "-P", "-c", PROGRAM, os.path.dirname(package)]
    try:
        done = subprocess.run(command, input=json.dumps(question), capture_output=True, text=True, timeout=timeout)
        if done.returncode == 0:
            answer: dict[str, Any] = json.loads(done.stdout)
            return answer
    except subprocess.TimeoutExpired:
        return f"the recount took longer than {timeout:g} s; {LATER}"
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
        return f"{steps * spec['batch_size']:,} records are more than the {MAX_RECORDS:,} recounted at once; {LATER}"
    length = sum(spec["mixture"]["lengths"]) if "mixture" in spec else spec["length"]
    if length > MAX_LENGTH:
        return f"a table of {length:,} records has more than {MAX_LENGTH:,} bytes; {LATER}"
    return ""
