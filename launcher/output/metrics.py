"""The metrics that processes report: kept as events up to a limit, and which of them were not finite."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from hostmesh.launcher.protocol import wire

# Bytes kept of the metrics of all processes but the first. They send so little that this lasts most of a day at least.
MAX_BYTES_OF_OTHERS = 1 << 30
MAX_NAMED = 3
MAX_NAME = 60


@dataclass
class NotFinite:
    """When a metric of one process was not finite: first, and since when without end; None if it recovered."""

    first: int
    since: int | None


class Metrics:
    def __init__(self, keep_all: bool, add: Callable[..., int], note: Callable[[str], None]) -> None:
        self._keep_all, self._add, self._note = keep_all, add, note
        self._left = MAX_BYTES_OF_OTHERS
        self._not_finite: dict[str, dict[int, NotFinite]] = {}

    def note_fact(self, host: str, fact: wire.Fact) -> bool:
        """Keeps a report; returns whether the fact was one."""
        match fact.name, fact.process_id, fact.detail:
            case "metrics", int(process_id), {"reports": list(reports), "changes": list(changes)}:
                for each in filter(is_report, reports):
                    self._keep(host, process_id, each)
                for each in filter(is_change, changes):
                    self._note_change(host, process_id, each)
                return True
            case "metrics thinned", int(process_id), {"refused": int(refused)} if refused:
                self._note(f"launch: process {process_id} reported too many names: {refused:,} values were dropped")
        return fact.name == "metrics" and fact.process_id != 0  # such a report makes no sense and is dropped

    def _keep(self, host: str, process_id: int, detail: dict[str, Any]) -> None:
        if process_id == 0:
            self._add("metrics", host=host, process_id=process_id, detail=detail)
        elif self._keep_all and self._left > 0:
            self._left -= self._add("metrics", host=host, process_id=process_id, detail=detail)
            if self._left <= 0:
                most = f"{MAX_BYTES_OF_OTHERS >> 20} MiB"
                self._note(f"launch: {most} of metrics are kept; from here on only those of process 0 are")

    def _note_change(self, host: str, process_id: int, change: dict[str, Any]) -> None:
        event = "finite again" if change["finite"] else "not finite"
        detail = {key: change[key] for key in ("metric", "step", "value")}
        self._add(event, host=host, process_id=process_id, detail=detail)
        name, step = change["metric"], change["step"]
        if not change["finite"]:
            self._not_finite.setdefault(name, {}).setdefault(process_id, NotFinite(step, step)).since = step
        elif process_id in self._not_finite.get(name, {}):
            self._not_finite[name][process_id].since = None

    def remarks(self) -> list[str]:
        """A sentence for each of the first few names."""
        summaries = sorted(self.not_finite, key=lambda summary: summary["step"])
        texts = [not_finite_text(summary) for summary in summaries[:MAX_NAMED]]
        more = len(summaries) - MAX_NAMED
        return [*texts, f"{more} other metrics were not finite either"] if more > 0 else texts

    @property
    def not_finite(self) -> list[dict[str, Any]]:
        """By name, and by the first process that has it."""
        return [summarise(name, by_process) for name, by_process in self._not_finite.items()]


def is_report(value: Any) -> bool:
    """Whether a value is a report as it should be; a process may send anything."""
    match value:
        case {"step": int(), "values": dict()}:
            return True
    return False


def is_change(value: Any) -> bool:
    match value:
        case {"metric": str(), "step": int(), "value": int() | float() | str(), "finite": bool()}:
            return True
    return False


def summarise(name: str, by_process: dict[int, NotFinite]) -> dict[str, Any]:
    process_id = min(by_process)
    times = by_process[process_id]
    is_so_to_the_end = times.since is not None
    return {
        "metric": name,
        "step": times.since if is_so_to_the_end else times.first,
        "until_the_end": is_so_to_the_end,
        "process_id": process_id,
        "processes": len(by_process),
    }


def not_finite_text(summary: dict[str, Any]) -> str:
    """`loss was not finite from step 37 on`; the process is named unless it is the first one."""
    name = " ".join(summary["metric"].split())
    name = name if len(name) <= MAX_NAME else name[:MAX_NAME] + "…"
    who = f" of process {summary['process_id']}" if summary["process_id"] else ""
    step = summary["step"]
    when = f"from step {step} on" if summary["until_the_end"] else f"at times, first at step {step}"
    return f"{name}{who} was not finite {when}"
