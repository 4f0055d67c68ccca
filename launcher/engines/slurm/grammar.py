"""What each key of `hosts: {slurm: …}` may hold."""

from __future__ import annotations

from hostmesh.launcher.cluster.yaml_values import (
    TEXT,
    WHOLE,
    Check,
    Value,
    boolean,
    scalar,
    seconds,
    sequence,
    whole_number,
)
from hostmesh.launcher.engines.slurm.settings import Slurm

MAX_NODES = 10_000
# What the launcher itself sets: the job would not be the one it follows.
OWN_OPTIONS = {
    *("-N", "--nodes", "-o", "--output", "-e", "--error", "-D", "--chdir", "-a", "--array", "-W", "--wait", "--wrap"),
    *(
        "--signal",
        "--export",
        "--open-mode",
        "--parsable",
        "--requeue",
        "--no-requeue",
        "--test-only",
        "-n",
        "--ntasks",
    ),
}
OWN_KEYS = {"-p": "partition", "--partition": "partition", "-t": "time", "--time": "time"} | {
    "-A": "account",
    "--account": "account",
}

# minutes, minutes:seconds, hours:minutes:seconds, and with days before a dash: days-hours and so on
_time = scalar(
    (TEXT, WHOLE),  # YAML takes 1:00:00 for a number
    r"[0-9]+(:[0-5]?[0-9]){0,2}|[0-9]+-[0-9]{1,2}(:[0-5]?[0-9]){0,2}|UNLIMITED|infinite",
    "a time as Slurm writes it: minutes such as 90, hours:minutes:seconds such as 1:30:00, or days-hours such as 2-12",
)
# They stand in the batch script's #SBATCH lines, one on each.
_name = scalar((TEXT,), r"(?!-)[\w.,@+:/-]+", "a name without spaces that does not begin with '-'")
_dashed = scalar((TEXT,), r"""--?[A-Za-z][^\s'"\\#\0]*""", "an option of sbatch in one word, such as --qos=high")


def _option(value: Value) -> str | None:
    text: str | None = _dashed(value)
    if text is None:
        return None
    name = text.partition("=")[0] if text.startswith("--") else text[:2]
    if name in OWN_KEYS:
        value.reject(f"the key {OWN_KEYS[name]} instead")
    elif name in OWN_OPTIONS:
        value.reject("no option that launch itself gives to sbatch")
    else:
        return text
    return None


_KEYS: dict[str, Check] = {
    "nodes": whole_number(1, MAX_NODES, f"from 1 to {MAX_NODES} nodes"),
    "partition": _name,
    "time": _time,
    "account": _name,
    "options": sequence(_option, "a list of options of sbatch"),
    "warning": whole_number(0, 65535, "a whole number of seconds, 0 (no warning) to 65535"),
    "requeue": boolean,
    "exclusive": boolean,
    "wait": seconds(lambda seconds: seconds > 0, "more than 0 seconds"),
}


def read_slurm(value: Value) -> Slurm | None:
    """An empty value asks for all nodes of the allocation that we are in."""
    if value.kind == "nothing":
        return Slurm()
    before = len(value.problems.entries)
    settings = value.read(_KEYS)
    if settings.get("requeue") and settings.get("warning") == 0:
        value.under("requeue").reject("a warning above 0 beside it: without one nothing is saved ahead", "warning: 0")
    return Slurm(**settings) if len(value.problems.entries) == before else None
