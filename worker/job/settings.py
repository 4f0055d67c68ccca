"""The built-in job's command line, read and checked once."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NoReturn

from hostmesh.worker.errors import SettingsError
from hostmesh.worker.job.options import JOB_OPTIONS

EVAL_SOURCES = {"digits:train": "digits:test"}
RESERVED = ("span_processes", "batch_axes", "devices")  # what make_mesh takes beside axes


@dataclass(frozen=True)
class Settings:
    """What the parser below gives; the defaults are in worker/job/options.py."""

    source: str
    eval_source: str | None
    batch_size: int
    mesh: str | None
    span_processes: bool
    loading: str
    workers: int | None
    epochs: int | None
    steps: int | None
    lr: float
    seed: int
    checkpoint_dir: str | None
    checkpoint_every: int
    data_changed: str
    memory_every: int
    eval_every: int
    tail: str
    nan: str
    no_verify: bool

    def __post_init__(self) -> None:
        for name in ("batch_size", "checkpoint_every", "epochs", "steps"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise SettingsError(f"--{name.replace('_', '-')} wants a number of 1 or more, found {value}")
        if self.workers is not None and self.workers < 0:
            raise SettingsError(f"--workers wants a number of threads, or 0 for one; found {self.workers}")
        if self.eval_every < 0:
            raise SettingsError(f"--eval-every wants a number of steps, or 0 for the end only; found {self.eval_every}")
        if self.memory_every < 0:
            raise SettingsError(f"--memory-every wants a number of steps, or 0 for none; found {self.memory_every}")
        if self.memory_every and self.checkpoint_dir is None:
            raise SettingsError("--memory-every wants --checkpoint-dir too: what is in memory is lost with its host")
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
    for option in JOB_OPTIONS.values():
        if option.value is None:
            parser.add_argument(option.name, action="store_true", help=option.full_help)
        else:
            parser.add_argument(
                option.name,
                type=option.type,
                default=option.default,
                choices=option.choices or None,
                metavar=option.value,
                help=option.full_help,
            )
    return parser


def read_settings(argv: Sequence[str] | None = None) -> Settings:
    return Settings(**vars(make_parser().parse_args(argv)))
