"""The words of the command line: options of `launch` and `launch check`, and what is to run."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any, NamedTuple

from hostmesh.launcher.cluster.model import AT_DISAGREEMENT, GUARDS, METRICS_OF, Job
from hostmesh.launcher.errors import UsageError
from hostmesh.worker.job.options import JOB_OPTIONS

USAGE = "launch [options] [SCRIPT.py [ARGS…] | -m MODULE [ARGS…] | -- COMMAND…]"
OTHER_USAGE = "launch runs | status RUN | attach RUN | logs RUN | stop RUN | stacks RUN | exec RUN -- COMMAND…"
USAGE_HINT = f"usage: {USAGE}; launch --help says more"
EPILOG = """examples:
  launch --local 4 --devices 2                       the built-in job, on four processes with two CPU devices each
  launch --local 4 --devices 2 --mesh data=-1,model=2 --steps 50
                                                     the same with options of its own
  launch --local 4 --devices 2 examples/hello.py     a script; what follows it is its own
  launch --local 2 -m my.training --steps 100        a module
  launch --local 2 -- ./simulate --fast              any program; it finds its identity in HOSTMESH_* variables
  launch --hosts cluster_configs/local.yaml          what the file's run: says, else the built-in job
  launch --local 4 --show 0 train.py                 what process 0 prints; logs have everything
  launch --hosts tpu-pod.yaml --dry-run train.py     who would run where, and start nothing
  launch --local 4 --chaos faults.yaml train.py      a rehearsal, with faults such as {kind: kill, process: 2, step: 5}
  launch --detach --hosts tpu-pod.yaml train.py      the run outlives this terminal; launch attach last comes back
  launch runs                                        all runs; also status, attach, logs, stop, stacks, exec RUN
  launch check --hosts tpu-pod.yaml                  what would keep these hosts from training, and how to fix it

The exit code is 0 only when every process succeeded, else the culprit's (128+n for signal n); 69 when a host was lost,
75 when the run was preempted and saved, 124 when it stood still, 130 after Ctrl-C, 2 for a bad command line or cluster
file.

Ctrl-C and SIGTERM stop a run in order. Ctrl-C reaches the processes as it does under a shell (KeyboardInterrupt,
finally and exit handlers run), SIGTERM as SIGTERM; a job that can save saves. What has not ended after --grace seconds,
or the time that a saving job asked for, is killed; a second Ctrl-C kills at once.

With --local and without --devices the GPUs of this machine are split among the processes; without GPUs, or with
--devices, accelerators are simulated on CPU. JAX_PLATFORMS holds where you set it."""
HANG_HELP = (
    "end the run when nothing has moved for S seconds, and say who holds the others up; 0 never does (default: 300 "
    "where every process tells its steps)"
)
SHELLS = ("bash", "zsh", "fish")
WITH_VALUE = {
    *("--hosts", "--local", "--devices", "--grace", "--hang-timeout", "--python", "--show", "--runs", "--programs"),
    *("--guard", "--metrics", "--chaos", "--completion", "--restarts", "--notify"),
    *(name for name, option in JOB_OPTIONS.items() if option.value),
}


class CommandLine(NamedTuple):
    """What a command line of `launch` says."""

    options: argparse.Namespace
    job: Job | None  # None where it names nothing to run
    job_options: list[str]  # those of the built-in job, as they were written


def parse(argv: list[str]) -> CommandLine:
    own, job_options, rest = split_words(argv)
    options, unknown = build_parser().parse_known_args([*own, *job_options])
    if unknown:
        raise UsageError(f"unknown option {unknown[0]}{nearest_text(unknown[0])}\n{USAGE_HINT}")
    return CommandLine(options, parse_job(rest), job_options)


def parse_job(words: list[str]) -> Job | None:
    if not words:
        return None
    kind, *rest = words
    if kind == "--" and rest:
        return Job(command=tuple(rest))
    if kind == "-m" and rest:
        return Job(module=rest[0], args=tuple(rest[1:]))
    if kind in ("--", "-m"):
        raise UsageError(f"found nothing after {kind}, wanted {'a COMMAND' if kind == '--' else 'a MODULE'}")
    return Job(script=kind, args=tuple(rest))


def split_words(argv: list[str]) -> tuple[list[str], list[str], list[str]]:
    """The launcher's own options, those of the built-in job, and from the first other word on what is to run."""
    own: list[str] = []
    job_options: list[str] = []
    position = 0
    while position < len(argv) and argv[position].startswith("-") and argv[position] not in ("-m", "--"):
        word = argv[position]
        end = position + (2 if word in WITH_VALUE else 1)
        (job_options if word.partition("=")[0] in JOB_OPTIONS else own).extend(argv[position:end])
        position = end
    return own, job_options, argv[position:]


def nearest_text(option: str) -> str:
    from difflib import get_close_matches

    known = [name for action in build_parser()._actions for name in action.option_strings]
    near = get_close_matches(option.partition("=")[0], known, 1)
    return f"; nearest is {near[0]}" if near else ""


class Parser(argparse.ArgumentParser):
    def error(self, message: str) -> None:  # type: ignore[override]
        raise UsageError(f"{message}\n{USAGE_HINT}")


def build_parser() -> Parser:
    parser = Parser(
        prog="launch",
        usage=f"{USAGE}\n       launch check --hosts FILE\n       {OTHER_USAGE}",
        description="Start one JAX program on many hosts, or as many processes here, and say what became of it.",
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    add = parser.add_argument
    add("--hosts", metavar="FILE", help="a cluster YAML: hosts, how to reach them, what they run")
    add("--local", metavar="N", type=count, help="N processes on this machine instead")
    add("--devices", metavar="D", type=count, help="CPU devices per process, to simulate accelerators")
    add("--grace", metavar="S", type=seconds, help="seconds to stop in when asked to, before SIGKILL (default: 3)")
    add("--keep-going", action="store_true", help="let the others go on when a process fails or a host is lost")
    add("--restarts", metavar="K", type=count_or_zero, help="start the processes again when some fail, up to K times")
    add("--hang-timeout", metavar="S", type=seconds_or_never, help=HANG_HELP)
    add("--python", metavar="PATH", help="the Python of the processes, on every host, instead of the cluster file's")
    add("--cold", action="store_true", help="start each process from scratch instead of forking it with jax imported")
    add("--dry-run", action="store_true", help="print the plan and start nothing")
    add("--show", metavar="IDS", help="only these processes, such as 0 or 0,2 or 0-3; or all, and every line of each")
    add("--quiet", action="store_true", help="show only what the launcher itself has to say, not what processes print")
    add("--json", action="store_true", help="events (or, with --dry-run, the plan) as JSON on stdout")
    add("--runs", metavar="DIR", type=Path, default=Path("runs"), help="where run folders go (default: ./runs)")
    whose = "whose reports (hostmesh.report) events.jsonl keeps: of process 0 (the default), or all"
    unlike = "when processes run different programs on the same devices: stop (the default), warn, or off"
    add("--programs", choices=AT_DISAGREEMENT, help=unlike)
    rows = "how much of the rows that processes load is compared: sample (the default), every, or off (docs/guard.md)"
    add("--guard", choices=GUARDS, help=rows)
    add("--metrics", choices=METRICS_OF, help=whose)
    add("--chaos", metavar="FILE", help="a rehearsal: do to the processes what this YAML says (docs/chaos.md)")
    add("--detach", action="store_true", help="return once all processes run; launch attach RUN comes back")
    add("--notify", metavar="WHOM", help="a URL to POST the result to, or a command that reads it, when the run ends")
    add("--version", action="store_true", help="say which hostmesh this is")
    add("--completion", choices=SHELLS, metavar="SHELL", help=f"print completion for a shell: {', '.join(SHELLS)}")
    job = parser.add_argument_group("the built-in job (when no script is given)")
    for name, option in JOB_OPTIONS.items():
        # Only names are checked here; the job checks the values.
        takes: dict[str, Any] = {"metavar": option.value} if option.value else {"action": "store_true"}
        job.add_argument(name, help=option.full_help, **takes)
    return parser


def count(text: str) -> int:
    return whole_number(text, 1, "a whole number of at least 1")


def count_or_zero(text: str) -> int:
    return whole_number(text, 0, "a whole number, 0 or more")


def whole_number(text: str, least: int, wanted: str) -> int:
    if not text.isdecimal() or int(text) < least:
        raise argparse.ArgumentTypeError(f"found {text}, wanted {wanted}")
    return int(text)


def seconds(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = 0.0
    if not 0 < value < float("inf"):
        raise argparse.ArgumentTypeError(f"found {text}, wanted a number of seconds above 0")
    return value


def seconds_or_never(text: str) -> float:
    try:
        return 0.0 if text == "0" else seconds(text)
    except argparse.ArgumentTypeError:
        raise argparse.ArgumentTypeError(f"found {text}, wanted a number of seconds, or 0 for never") from None


def parse_check(argv: list[str]) -> argparse.Namespace:
    options, unknown = build_check_parser().parse_known_args(argv)
    if unknown:
        raise UsageError(f"unknown option {unknown[0]}\nusage: launch check --hosts FILE [--json]")
    return options


def build_check_parser() -> Parser:
    parser = Parser(
        prog="launch check",
        description="Look at every host of a cluster: a table of host × check, and how to fix each failure.",
        epilog="The exit code is 0 when the hosts can train, 1 when one cannot, 69 when one cannot be reached.",
        allow_abbrev=False,
    )
    parser.add_argument("--hosts", metavar="FILE", help="a cluster YAML")
    parser.add_argument("--local", metavar="N", type=count, help="N processes on this machine instead")
    python = "the Python of the processes, on every host, instead of the cluster file's"
    parser.add_argument("--python", metavar="PATH", help=python)
    parser.add_argument("--json", action="store_true", help="the findings as JSON")
    runs = "where run folders go, which are no code (default: ./runs)"
    parser.add_argument("--runs", metavar="DIR", type=Path, default=Path("runs"), help=runs)
    limit = "seconds for all hosts together (default: 120)"
    parser.add_argument("--timeout", metavar="S", type=seconds, help=limit)
    return parser
