"""`python -m hostmesh checkpoint FOLDER`: which data the saved steps were trained on, and how much of it."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn, Protocol

from hostmesh.worker.errors import CheckpointError, SettingsError, WorkerError
from hostmesh.worker.saving.stores.steps import POSITION, InBucket
from hostmesh.worker.saving.stores.url import is_url
from hostmesh.worker.specs.paths import find_lost_slash

BAD_INPUT = 2
# What is said of data that were changed since.
BEFORE = {"source": "source", "content": "content", "all_bytes": "all bytes"}
DESCRIPTION = """\
Show the newest saved step of a folder of hostmesh.Checkpoint, or of --checkpoint-dir: the data that it was trained on,
their order, and how many records were used. Nothing is changed; a run may be saving there."""


def main(argv: Sequence[str]) -> int:
    try:
        options = build_parser().parse_args(argv)
        found = describe_step(open_steps(options.folder), options.step)
        print(json.dumps(found, indent=2) if options.json else "\n".join(list_lines(found)))
    except WorkerError as error:
        print(f"checkpoint: {error}", file=sys.stderr)
        return BAD_INPUT
    return 0


class Steps(Protocol):
    """Where steps were saved. What goes wrong is an OSError."""

    def list(self) -> Iterable[int]: ...

    def read_position(self, step: int) -> str: ...


@dataclass(frozen=True)
class InFolder:
    folder: Path

    def list(self) -> Iterable[int]:
        return [int(each.name) for each in self.folder.iterdir() if each.name.isdecimal()]

    def read_position(self, step: int) -> str:
        return (self.folder / str(step) / POSITION).read_text()

    def __str__(self) -> str:
        return str(self.folder)


def open_steps(folder: str) -> Steps:
    if is_url(folder):
        return InBucket.open(folder)
    if (meant := find_lost_slash(folder)) is not None:
        raise CheckpointError(f"found {folder}, wanted a folder or {meant}")
    return InFolder(Path(folder))


def describe_step(folder: Steps, step: int | None) -> dict[str, Any]:
    """`step` is the newest one if None."""
    try:
        steps = sorted(folder.list())
    except OSError as error:
        raise CheckpointError(f"{folder} cannot be read: {error.strerror}") from error
    if not steps:
        raise CheckpointError(f"{folder} has no saved step; wanted a folder of hostmesh.Checkpoint")
    if step is not None and step not in steps:
        raise CheckpointError(f"{folder} has no step {step}; found {', '.join(map(str, steps))}")
    wanted = steps[-1] if step is None else step
    try:
        position: dict[str, Any] = json.loads(folder.read_position(wanted))
        return {"step": wanted, "steps": steps, **describe_position(position)}
    except CheckpointError:  # of a bucket, which names itself
        raise
    except (OSError, ValueError, KeyError) as error:
        raise CheckpointError(f"step {wanted} in {folder} cannot be read: {type(error).__name__}: {error}") from error


def describe_position(position: Mapping[str, Any]) -> dict[str, Any]:
    spec, state = position["data_spec"], position["loader_state"]
    data = position.get("data") or {"records": spec.get("records"), "content": spec.get("content")}
    order = data.get("order") or {key: spec[key] for key in ("seed", "shuffle", "batch_size", "tail") if key in spec}
    batches = state["step"] if isinstance(state, dict) else state
    return {
        "data": {key: data[key] for key in data if key not in ("order", "stored", "every")},
        "files": [{"name": each["name"], "size": each["size"]} for each in data.get("stored", [])],
        "order": order,
        "batches": batches,
        "records_used": count_records(batches, data.get("records"), order),
        "before": position.get("data_history", []),
    }


def count_records(batches: Any, length: Any, order: Mapping[str, Any]) -> int | None:
    """What so many batches hold, without padding; None of a stream that pads, whose length nobody knows."""
    size, tail = order.get("batch_size"), order.get("tail")
    if not isinstance(batches, int) or not isinstance(size, int):
        return None
    if tail != "pad":
        return batches * size
    if not isinstance(length, int):
        return None
    epochs, rest = divmod(batches, -(-length // size))
    return epochs * length + rest * size


def list_lines(found: Mapping[str, Any]) -> list[str]:
    """For people, a name and a value in each line."""
    data, order = found["data"], dict(found["order"])
    of = f", of {data['content_of']}" if "content_of" in data else ""
    weights = order.pop("weights", {})
    used, length = found["records_used"], data.get("records")
    epochs = f", {used / length:.2f} epochs" if used and length else ""
    files = found["files"]
    size = sum(each["size"] for each in files)
    lines = [
        ("step", f"{found['step']} (saved: {', '.join(map(str, found['steps']))})"),
        ("source", data.get("source")),
        ("records", f"{length:,}" if length else None),
        ("content", f"{data['content']}{of}" if data.get("content") else None),
        ("all bytes", data.get("all_bytes")),
        (
            "stored",
            f"{files[0]['name']}{f' and {len(files) - 1} more' * (len(files) > 1)}: {size:,} bytes" if files else None,
        ),
        ("order", ", ".join(f"{key} {value}" for key, value in order.items())),
        ("weights", ", ".join(f"{name} {weight}" for name, weight in weights.items())),
        ("used", f"{found['batches']:,} batches" + (f", {used:,} records{epochs}" if used is not None else "")),
    ]
    if found["before"]:
        lines.append(("since", f"step {data.get('from_step')}; the steps before were trained on other data:"))
    for each in found["before"]:
        named = [f"{name} {each[key]}" for key, name in BEFORE.items() if key in each]
        lines.append(("", f"from step {each.get('from_step')}: {', '.join(named)}"))
    return [f"{name:9}  {value}" for name, value in lines if value]


class Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise SettingsError(f"{message}; python -m hostmesh checkpoint --help shows how")


def build_parser() -> argparse.ArgumentParser:
    usage = "python -m hostmesh checkpoint FOLDER [options]"
    parser = Parser(prog="python -m hostmesh checkpoint", usage=usage, description=DESCRIPTION, allow_abbrev=False)
    parser.add_argument("folder", metavar="FOLDER", help="where steps were saved; s3:// and gs:// too")
    parser.add_argument("--step", metavar="N", type=int, help="this one instead of the newest")
    parser.add_argument("--json", action="store_true", help="one JSON object instead of text")
    return parser
