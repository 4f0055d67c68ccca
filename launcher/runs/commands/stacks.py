"""`launch stacks`: where every process of a run is now; they all go on."""

from __future__ import annotations

import json
from pathlib import Path

from hostmesh.launcher.runs.client import ask


def print_stacks(folder: Path, as_json: bool) -> int:
    """1 where some processes did not answer."""
    answers = list(ask(folder, {"ask": "stacks"}, timeout=30.0))
    missing = [number for answer in answers for number in answer.get("missing", ())]
    found = sorted((answer for answer in answers if "stacks" in answer), key=lambda answer: answer["process_id"])
    if as_json:
        print(json.dumps({"run": folder.name, "processes": found, "missing": missing}, indent=2))
        return 1 if missing else 0
    for each in found:
        wait = each["found"].get("wait") or {}
        waits = f" (in {' of '.join(filter(None, (wait.get('function'), wait.get('path'))))})" if wait else ""
        print(f"process {each['process_id']} on {each['host']}{waits}:")
        print("\n".join(f"  {line}" for line in each["stacks"].splitlines()) or "  it cannot dump its stacks")
    for number in missing:
        print(f"process {number}: no answer")
    return 1 if missing else 0
