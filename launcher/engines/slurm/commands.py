"""Slurm's own programs, asked with a limit on their time, and what `scontrol` tells of jobs and nodes."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from hostmesh.launcher.engines.program import run_program
from hostmesh.launcher.errors import UsageError
from hostmesh.launcher.words import last_lines

ASK_TIMEOUT = 30.0
LAST_LINES = 6


class ProgramResult(NamedTuple):
    code: int
    out: str
    err: str

    @property
    def error_text(self) -> str:
        lines = last_lines(self.err or self.out, LAST_LINES)
        return "\n  ".join(lines) or f"it exited with {self.code} and said nothing about why"


def ask(argv: Sequence[str], stdin: str = "", timeout: float = ASK_TIMEOUT) -> ProgramResult:
    """Raises UsageError where the program cannot be started, or gives no answer."""
    try:
        done = run_program(argv, stdin, timeout)
    except FileNotFoundError:
        fix = "is this a login node of a Slurm cluster, with Slurm's programs on PATH?"
        raise UsageError(f"found no program {argv[0]} on this machine; {fix}") from None
    except OSError as error:
        raise UsageError(f"{argv[0]} cannot be started: {error.strerror}") from None
    except subprocess.TimeoutExpired:
        raise UsageError(f"{argv[0]} gave no answer within {timeout:g} s; does slurmctld answer? try sinfo") from None
    return ProgramResult(done.returncode, done.stdout, done.stderr)


@dataclass(frozen=True)
class JobInfo:
    state: str  # PENDING, RUNNING, COMPLETED, CANCELLED …
    reason: str = "None"
    nodes: str = ""
    exit_code: int = 0
    signal: int = 0
    partition: str = ""

    @property
    def is_waiting(self) -> bool:
        return self.state in ("PENDING", "REQUEUED", "REQUEUE_HOLD", "SPECIAL_EXIT")

    @property
    def is_over(self) -> bool:
        """COMPLETING is the end too, but not all of it has been cleaned up."""
        return self.state in OVER


OVER = (
    *("COMPLETED", "FAILED", "CANCELLED", "TIMEOUT", "NODE_FAIL", "PREEMPTED", "OUT_OF_MEMORY", "DEADLINE"),
    *("BOOT_FAIL", "REVOKED"),
)


def ask_job(job: str) -> JobInfo | None:
    """None where Slurm does not know the job, any more or at all."""
    answer = ask(["scontrol", "--oneliner", "show", "job", job])
    if answer.code == 0:
        return parse_job(answer.out)
    if "Invalid job id" in answer.err:
        return None
    raise UsageError(f"scontrol show job {job}: {answer.error_text}")


def parse_job(text: str) -> JobInfo:
    fields = parse_fields(text)
    code, _, signal = fields.get("ExitCode", "0:0").partition(":")
    return JobInfo(
        fields.get("JobState", "UNKNOWN"),
        fields.get("Reason", "None"),
        fields.get("NodeList", "").replace("(null)", ""),
        int(code or 0),
        int(signal or 0),
        fields.get("Partition", ""),
    )


def parse_fields(text: str) -> dict[str, str]:
    """`JobId=7 JobName=a JobState=PENDING …`: of names that appear twice the first, which no user can set."""
    fields: dict[str, str] = {}
    for name, value in re.findall(r"(?:^|\s)(\w+)=(\S*)", text):
        fields.setdefault(name, value)
    return fields


def ask_limits(partition: str) -> str:
    """What a partition grants to one job, such as `MaxTime=05:00:00 MaxNodes=4`; empty where that is unknown."""
    answer = ask(["scontrol", "--oneliner", "show", "partition", partition])
    fields = parse_fields(answer.out) if answer.code == 0 else {}
    kept = ("MaxTime", "MaxNodes", "TotalNodes", "State")
    return " ".join(f"{name}={fields[name]}" for name in kept if name in fields)


def explain_node(node: str) -> str | None:
    """A node that Slurm itself finds wanting, with its reason: `State=DOWN* Reason=Not responding [root@…]`."""
    answer = ask(["scontrol", "--oneliner", "show", "node", node])
    if answer.code != 0:
        return f"scontrol show node {node}: {answer.error_text}"
    state = parse_fields(answer.out).get("State", "")
    if not re.search(r"DOWN|FAIL|DRAIN|NOT_RESPONDING|POWER|REBOOT|NO_RESPOND|UNKNOWN|\*", state):
        return None
    reason = re.search(r"\bReason=(.*?)\s*$", answer.out, re.MULTILINE)
    return f"node {node} is {state}" + (f", Reason={reason[1]}" if reason else "")
