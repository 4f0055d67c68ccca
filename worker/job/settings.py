"""The built-in job's command line, read and checked once."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NoReturn

from hostmesh.worker.errors import SettingsError
from hostmesh.worker.loading.schedule import TAILS

SOURCE = "digits:train"
EVAL_SOURCES = {"digits:train": "digits:test"}
NAN = ("stop", "warn", "ignore")
LOADING = ("per_process", "per_device", "global", "reshard")
RESERVED = ("span_processes", "batch_axes", "devices")  # what make_mesh takes beside axes


@dataclass(frozen=True)
class Settings:
    """What the parser below gives; its defaults are there."""

    source: str
    eval_source: str | None
    batch_size: int
    mesh: str | None
    span_processes: bool
    loading: str
    epochs: int | None
    steps: int | None
    lr: float
    seed: int
    checkpoint_dir: str | None
    checkpoint_every: int
    eval_every: int
    tail: str
    nan: str
    no_verify: bool

    def __post_init__(self) -> None:
        for name in ("batch_size", "checkpoint_every", "epochs", "steps"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise SettingsError(f"--{name.replace('_', '-')} wants a number of 1 or more, found {value}")
        if self.eval_every < 0:
            raise SettingsError(f"--eval-every wants a number of steps, or 0 for the end only; found {self.eval_every}")
        if not 0 < self.lr < float("inf"):
            raise SettingsError(f"--lr wants a number above 0, found {self.lr}")

    @property
    def axes(self) -> dict[str, int] | None:
        """`data=-1,model=2` as a dict; None where the mesh is left to the job."""
        if self.mesh is None:
            return None
        axes: dict[str, int] = {}
        for part in self.mesh.split(","):
            name, equals, size = part.strip().partition("=")
            is_name = name.isidentifier() and name not in RESERVED and name not in axes
            if not equals or not is_name or not size.removeprefix("-").isdigit():
                raise SettingsError(f"--mesh wants axes like data=-1,model=2; found {self.mesh!r}")
            axes[name] = int(size)
        return axes


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise SettingsError(message)


def make_parser() -> argparse.ArgumentParser:
    parser = _Parser(
        prog="python -m hostmesh.worker", description="Train a classifier, with any source, mesh and loading."
    )
    add = parser.add_argument
    add("--source", default=SOURCE, metavar="SPEC", help=f"records with image and label (default {SOURCE})")
    add(
        "--eval-source",
        metavar="SPEC",
        help="records to evaluate on (default: the test split of digits, else --source)",
    )
    add("--batch-size", type=int, default=128, metavar="N", help="rows of a global batch (default 128)")
    add("--mesh", metavar="AXES", help="data=-1,model=2; the first axis splits the batch")
    add("--span-processes", action="store_true", help="let a model replica span processes")
    add("--loading", default="per_process", choices=LOADING, help="who reads which rows (default per_process)")
    add("--epochs", type=int, metavar="N", help="passes over the records (default 15, unless --steps is given)")
    add("--steps", type=int, metavar="N", help="steps at most")
    add("--lr", type=float, default=0.1, metavar="X", help="learning rate (default 0.1)")
    add("--seed", type=int, default=0, metavar="N", help="of the weights and of the order of records (default 0)")
    add("--checkpoint-dir", metavar="DIR", help="save here, and go on from what is saved here; all hosts must see it")
    add("--checkpoint-every", type=int, default=100, metavar="N", help="steps between saves (default 100)")
    add("--eval-every", type=int, default=0, metavar="N", help="steps between evaluations (default: at the end only)")
    add("--tail", default="carry", choices=TAILS, help="what becomes of the end of an epoch (default carry)")
    add("--nan", default="stop", choices=NAN, help="what to do about a loss that is not finite (default stop)")
    add("--no-verify", action="store_true", help="do not compare all of the data between hosts, only a few records")
    return parser


def read_settings(argv: Sequence[str] | None = None) -> Settings:
    return Settings(**vars(make_parser().parse_args(argv)))
