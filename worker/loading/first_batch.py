"""Before the rows of all processes meet in a computation: they take a batch of the same loader, of the same arrays."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from hostmesh.worker.errors import DisagreementError
from hostmesh.worker.process.coordination import exchange, name_processes, refuse_differences

WHAT = "load a first batch"


def compare_first_batch(number: int, name: str, arrays: Mapping[str, str]) -> None:
    """`number` counts the loaders of a process; their names may differ, as those of files on different hosts do."""
    found = exchange(WHAT, {"loader": number, "name": name, "arrays": dict(arrays)})
    require_one_loader(found)
    refuse_differences(WHAT, [each["arrays"] for each in found])


def require_one_loader(found: Sequence[Mapping[str, Any]]) -> None:
    """The arrays of different loaders have nothing to do with each other, so they are not compared."""
    by_loader: dict[int, list[int]] = {}
    for process, each in enumerate(found):
        by_loader.setdefault(each["loader"], []).append(process)
    if len(by_loader) > 1:
        asked = [
            f"{name_processes(ids)} {'asks' if len(ids) == 1 else 'ask'} for loader {number + 1} "
            f"({found[ids[0]]['name']})"
            for number, ids in by_loader.items()
        ]
        raise DisagreementError(
            f"wanted all processes to {WHAT} of the same loader, counted as they were made; found {', '.join(asked)}: "
            "no process takes the first batch of a loader alone"
        )
