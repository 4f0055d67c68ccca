"""The data that a run was trained on, as its processes told it, and how much of it was used; pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from hostmesh.launcher.audit.told import Told

# What is told of the records that were used, from the audit of the loader.
USED = ("steps", "first_step", "records", "epochs")
WHOSE = ("source", "records", "content")


def describe_data(told: Told, audits: Mapping[int, dict[str, Any]]) -> dict[str, Any] | None:
    """For result.json: of each loader that was audited; None where none was, or none said what it loads."""
    found = [each for loader in audits if (each := describe_loader(told, loader, audits[loader])) is not None]
    if len(found) < 2:
        return found[0] if found else None
    return {**found[0], "loaders": found}


def describe_loader(told: Told, loader: int, audit: Mapping[str, Any]) -> dict[str, Any] | None:
    """The data of its last attempt. Those of earlier ones are under `before` where they were other ones."""
    versions: list[dict[str, Any]] = []
    for attempt in told.attempts:
        accounts = attempt.loaders.get(loader, {}).values()
        data = next((account.data for account in accounts if account.data is not None and account.stretches), None)
        if data is not None and (not versions or name_data(versions[-1]) != name_data(data)):
            versions.append({**data, "attempt": attempt.number})
    if not versions:
        return None
    *before, last = versions
    now = {key: value for key, value in last.items() if key != "attempt"}
    changed = {"before": [{"attempt": each["attempt"], **name_data(each)} for each in before]} if before else {}
    return {**now, "used": {key: audit[key] for key in USED}, **changed}


def name_data(data: Mapping[str, Any]) -> dict[str, Any]:
    return {key: data[key] for key in WHOSE if key in data}
