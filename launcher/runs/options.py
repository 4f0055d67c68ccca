"""The words of `launch runs`, `status`, `attach`, `logs`, `stop`, `stacks` and `exec`, and what each of them calls."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from pathlib import Path

from hostmesh.launcher.command_line.options import Parser, count_or_zero, seconds
from hostmesh.launcher.errors import UsageError
from hostmesh.launcher.runs.find import find_run

COMMANDS = {
    "runs": "all runs: since when, how they stand, what became of them",
    "status": "how a run stands, or what became of it",
    "attach": "the screen of a run, in this terminal; Ctrl-C leaves the run alone",
    "logs": "what the processes of a run have printed",
    "stop": "end a run in order: a job that can save saves",
    "stacks": "where every process of a run is now; they go on",
    "exec": "a command on the hosts of a run, beside its processes",
}
USAGE = {"runs": "launch runs [options]", "exec": "launch exec RUN [options] -- COMMAND…"}
WHICH = "RUN is the id of a run, its beginning, or `last`."


def run_command(name: str, argv: list[str]) -> int:
    command: list[str] = []
    if name == "exec":
        argv, command = split_command(argv)
    options, unknown = build_parser(name).parse_known_args(argv)
    if unknown:
        raise UsageError(f"unknown option {unknown[0]}\nusage: {usage_of(name)}; launch {name} --help says more")
    return CALLS[name](options, command)


def split_command(argv: list[str]) -> tuple[list[str], list[str]]:
    if "--help" in argv or "-h" in argv[: argv.index("--") if "--" in argv else None]:
        return argv, []
    if "--" not in argv or not argv[argv.index("--") + 1 :]:
        raise UsageError(f"found no command, wanted one after --\nusage: {USAGE['exec']}")
    at = argv.index("--")
    return argv[:at], argv[at + 1 :]


def usage_of(name: str) -> str:
    return USAGE.get(name, f"launch {name} RUN [options]")


def build_parser(name: str) -> Parser:
    parser = Parser(
        prog=f"launch {name}",
        usage=usage_of(name),
        description=f"{COMMANDS[name][0].upper()}{COMMANDS[name][1:]}.",
        epilog=None if name == "runs" else WHICH,
        allow_abbrev=False,
    )
    add = parser.add_argument
    if name != "runs":
        add("run", metavar="RUN", help="an id, its beginning, or last")
    if name == "runs":
        add("--prune", action="store_true", help="remove the folders of old runs, never one that lives")
        add(
            "--days",
            metavar="D",
            type=seconds,
            default=30.0,
            help="how old runs are that --prune removes (default: 30)",
        )
    if name == "attach":
        add("--all", action="store_true", help="from the beginning instead of from now on")
        add(
            "--show",
            metavar="IDS",
            help="only these processes, such as 0 or 0,2 or 0-3; or all, and every line of each",
        )
    if name == "logs":
        add("-f", "--follow", action="store_true", help="go on with what they print until the run ends")
        add("--process", metavar="K", type=count_or_zero, help="of this process alone, exactly as it printed it")
        add("--host", metavar="H", help="of the processes on this host")
        add("--tail", metavar="N", type=count_or_zero, help="only the last N lines of each process")
    if name == "stop":
        add("--now", action="store_true", help="kill at once, without time to save")
    if name == "exec":
        add("--host", metavar="H", help="on this host alone")
    add("--json", action="store_true", help="as JSON")
    add("--runs", metavar="DIR", type=Path, default=Path("runs"), help="where run folders are (default: ./runs)")
    return parser


def _runs(options: argparse.Namespace, _: list[str]) -> int:
    from hostmesh.launcher.runs.commands.listing import list_all, prune

    return prune(options.runs, options.days) if options.prune else list_all(options.runs, options.json)


def _status(options: argparse.Namespace, _: list[str]) -> int:
    from hostmesh.launcher.runs.commands.status import tell_status

    return tell_status(find_run(options.runs, options.run), options.json)


def _attach(options: argparse.Namespace, _: list[str]) -> int:
    from hostmesh.launcher.runs.commands.attach import attach

    return attach(find_run(options.runs, options.run), options.all, options.show, options.json)


def _logs(options: argparse.Namespace, _: list[str]) -> int:
    from hostmesh.launcher.runs.commands.logs import print_logs

    folder = find_run(options.runs, options.run)
    return print_logs(folder, options.follow, options.process, options.host, options.tail, options.json)


def _stop(options: argparse.Namespace, _: list[str]) -> int:
    from hostmesh.launcher.runs.commands.stop import stop

    return stop(find_run(options.runs, options.run), options.now, options.json)


def _stacks(options: argparse.Namespace, _: list[str]) -> int:
    from hostmesh.launcher.runs.commands.stacks import print_stacks

    return print_stacks(find_run(options.runs, options.run), options.json)


def _exec(options: argparse.Namespace, command: list[str]) -> int:
    from hostmesh.launcher.runs.commands.execute import execute

    return execute(find_run(options.runs, options.run), options.host, command, options.json)


CALLS: dict[str, Callable[[argparse.Namespace, list[str]], int]] = {
    "runs": _runs,
    "status": _status,
    "attach": _attach,
    "logs": _logs,
    "stop": _stop,
    "stacks": _stacks,
    "exec": _exec,
}
