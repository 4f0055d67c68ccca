"""`python -m hostmesh.launcher.audit RUNFOLDER`: the audit of a run, made again from its events."""

from __future__ import annotations

import json
import sys
from pathlib import Path

from hostmesh.launcher.audit.asking import Recounter
from hostmesh.launcher.audit.audit import audit_events


def main(folder: str) -> None:
    with Path(folder, "events.jsonl").open("rb") as events, Recounter(timeout=None) as recounter:
        print(json.dumps(audit_events(events, recounter), indent=2))


if __name__ == "__main__":
    main(sys.argv[1])
