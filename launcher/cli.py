"""The `launch` command: parse, pick, nothing else."""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import sys
from pathlib import Path

from launcher.cluster import Cluster, Job, local_cluster, read_cluster
from launcher.errors import EXIT_INTERRUPTED, HostmeshError, UsageError

USAGE = "launch [options] [SCRIPT.py [ARGS…] | -m MODULE [ARGS…] | -- COMMAND…]"
EPILOG = """examples:
  launch --local 4 --devices 2 examples/hello.py     four processes with two CPU devices each, on this machine
  launch --local 2 -m my.training --steps 100        a module; what follows it is its own
  launch --local 2 -- ./simulate --fast              any program; it finds its identity in HOSTMESH_* variables
  launch --hosts cluster_configs/local.yaml          what the file's run: says
  launch --hosts tpu-pod.yaml --dry-run train.py     who would run where, and start nothing

The exit code is 0 only when every process succeeded, else the culprit's (128+n for signal n); 69 when a host was lost,
130 after Ctrl-C, 2 for a bad command line or cluster file. Ctrl-C stops a run in order, a second one at once."""
WITH_VALUE = ("--hosts", "--local", "--devices", "--runs")


def main() -> None:
    fill_standard_streams()
    sys.exit(launch(sys.argv[1:]))


def fill_standard_streams() -> None:
    """Under `>&-` the next file that is opened would get the number of stdout, and everything printed with it."""
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, mode))  # noqa: SIM115


def launch(argv: list[str]) -> int:
    try:
        options, job = parse(argv)
        cluster = pick_cluster(options)
        return start(options, cluster, job)
    except HostmeshError as error:
        for line in str(error).splitlines():
            print(f"launch: {line}", file=sys.stderr)
        return error.exit_code
    except KeyboardInterrupt:
        return EXIT_INTERRUPTED


def parse(argv: list[str]) -> tuple[argparse.Namespace, Job | None]:
    own, rest = split(argv)
    options = build_parser().parse_args(own)
    if not rest:
        return options, None
    kind, *words = rest
    if kind == "--" and words:
        return options, Job(command=tuple(words))
    if kind == "-m" and words:
        return options, Job(module=words[0], args=tuple(words[1:]))
    if kind in ("--", "-m"):
        raise UsageError(f"found nothing after {kind}, wanted {'a COMMAND' if kind == '--' else 'a MODULE'}")
    return options, Job(script=kind, args=tuple(words))


def split(argv: list[str]) -> tuple[list[str], list[str]]:
    """The launcher's own options, and from the first other word on what is to run, untouched."""
    position = 0
    while position < len(argv):
        word = argv[position]
        if word in ("-m", "--") or not word.startswith("-"):
            return argv[:position], argv[position:]
        position += 2 if word in WITH_VALUE else 1
    return argv, []


class Parser(argparse.ArgumentParser):
    def error(self, message: str) -> None:  # type: ignore[override]
        raise UsageError(f"{message}\nusage: {USAGE}; launch --help says more")


def build_parser() -> Parser:
    parser = Parser(
        prog="launch",
        usage=USAGE,
        description="Start one JAX program on many hosts, or as many processes here, and say what became of it.",
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    add = parser.add_argument
    add("--hosts", metavar="FILE", help="a cluster YAML: hosts, how to reach them, what they run")
    add("--local", metavar="N", type=count, help="N processes on this machine instead")
    add("--devices", metavar="D", type=count, help="CPU devices per process, to simulate accelerators")
    add("--cold", action="store_true", help="start each process from scratch instead of forking it with jax imported")
    add("--dry-run", action="store_true", help="print the plan and start nothing")
    add("--json", action="store_true", help="events (or, with --dry-run, the plan) as JSON on stdout")
    add("--runs", metavar="DIR", type=Path, default=Path("runs"), help="where run folders go (default: ./runs)")
    return parser


def count(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"found {text}, wanted a whole number of at least 1")
    return int(text)


def pick_cluster(options: argparse.Namespace) -> Cluster:
    if options.hosts is not None and options.local is not None:
        raise UsageError("found both --hosts and --local, wanted one of them")
    if options.hosts is not None:
        return read_cluster(options.hosts)
    if options.local is not None:
        return local_cluster(options.local)
    raise UsageError(f"wanted --hosts FILE or --local N\nusage: {USAGE}; launch --help says more")


def without_effect(cluster: Cluster) -> list[str]:
    wishes = {"restarts": cluster.restarts, "hang_timeout": cluster.hang_timeout, "setup": cluster.setup}
    return [name for name, value in wishes.items() if value]


def check_own_worker() -> None:
    """A PYTHONPATH that leads to another `worker` would break the launcher itself."""
    found = importlib.util.find_spec("worker")
    ours = Path(__file__).resolve().parent.parent / "worker" / "__init__.py"
    # Another file with the same text is the copy that was shipped to a worker which launches something itself.
    if found is not None and (not found.origin or Path(found.origin).read_bytes() != ours.read_bytes()):
        raise UsageError(
            f"{found.origin} would hide hostmesh's own package 'worker'; take it off PYTHONPATH or rename it"
        )


def start(options: argparse.Namespace, cluster: Cluster, given: Job | None) -> int:
    check_own_worker()
    from launcher.plan import make_plan, plan_json, plan_table
    from launcher.program import check_job, pick_job

    job = pick_job(given, cluster)
    if cluster.transport == "local":
        check_job(job, Path(cluster.workdir or ".").expanduser().absolute())
    plan = make_plan(cluster, job, options.devices, options.cold)
    if options.dry_run:
        from launcher.redact import redact_text

        hidden = [os.environ.get(name, "") for name in cluster.secrets]
        print(redact_text(json.dumps(plan_json(plan), indent=2) if options.json else plan_table(plan), hidden))
        return 0
    for setting in without_effect(cluster):
        print(f"launch: {setting} is read and checked, but has no effect yet", file=sys.stderr)
    from launcher.launch import launch_plan

    return launch_plan(plan, options.runs, options.json)
