"""The options of the built-in job, as data: the job's parser and `launch --help` are made of them."""

from __future__ import annotations

from typing import NamedTuple

from hostmesh.worker.loading.choices import DATA_CHANGED, REFUSE, STRATEGIES, TAILS

SOURCE = "digits:train"
NAN = ("stop", "warn", "ignore")


class JobOption(NamedTuple):
    """`value` is what the help calls the option's value, None for a flag; `choices` are all values it may have."""

    name: str
    value: str | None
    help: str
    type: type[str] | type[int] | type[float] = str
    default: str | int | float | None = None
    choices: tuple[str, ...] = ()

    @property
    def full_help(self) -> str:
        """With the choices and the default, where there are any."""
        *others, last = self.choices or ("",)
        choices = f": {', '.join(others)} or {last}" if others else ""
        return f"{self.help}{choices}{'' if self.default is None else f' (default {self.default})'}"


_OPTIONS = (
    JobOption("--source", "SPEC", "records with image and label to train on", default=SOURCE),
    JobOption("--eval-source", "SPEC", "records to evaluate on (default: the test split of digits, else --source)"),
    JobOption("--batch-size", "N", "rows of a global batch", int, 128),
    JobOption("--mesh", "AXES", "such as data=-1,model=2; a -1 is inferred, and the first axis splits the batch"),
    JobOption("--span-processes", None, "let a replica of the model span processes"),
    JobOption("--loading", "HOW", "who reads which rows", default="per_process", choices=STRATEGIES),
    JobOption("--workers", "N", "threads that read and map records (default: as many as pay)", int),
    JobOption("--epochs", "N", "how often each record is used (default 15, unless --steps is given)", int),
    JobOption("--steps", "N", "how many batches at most", int),
    JobOption("--lr", "RATE", "the learning rate", float, 0.1),
    JobOption("--seed", "N", "of the order of the records and of the first parameters", int, 0),
    JobOption(
        "--checkpoint-dir", "DIR", "a folder that every host sees, gs://… or s3://…: to save in, and to go on from"
    ),
    JobOption("--checkpoint-every", "N", "steps between two saves", int, 100),
    JobOption(
        "--data-changed",
        "HOW",
        "what to do about data that have changed since the saved step",
        default=REFUSE,
        choices=DATA_CHANGED,
    ),
    JobOption("--memory-every", "N", "steps between two snapshots in memory, for --restarts; 0 takes none", int, 0),
    JobOption("--eval-every", "N", "steps between two evaluations; 0 evaluates at the end only", int, 0),
    JobOption("--tail", "HOW", "what becomes of the last rows of an epoch", default="carry", choices=TAILS),
    JobOption("--nan", "HOW", "what to do about a loss that is not finite", default="stop", choices=NAN),
    JobOption("--no-verify", None, "do not compare all of the data between hosts, only a few records"),
)
JOB_OPTIONS = {option.name: option for option in _OPTIONS}
