"""The `launch` command: parse, pick, nothing else."""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from hostmesh import __version__
from hostmesh.launcher.command_line.options import USAGE_HINT, build_check_parser, build_parser, parse, parse_check
from hostmesh.launcher.errors import EXIT_INTERRUPTED, HostmeshError, UsageError

# Cluster files are read by functions that import what reads them: a question about a run is answered sooner without.
if TYPE_CHECKING:
    from hostmesh.launcher.cluster.model import Cluster

OF_RUNS = ("runs", "status", "attach", "logs", "stop", "stacks", "exec")


def main() -> None:
    fill_standard_streams()
    sys.exit(launch(sys.argv[1:]))


def fill_standard_streams() -> None:
    """Opens standard streams that are closed, as under `>&-`: else the next file would get what is printed."""
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, mode))  # noqa: SIM115


def launch(argv: list[str]) -> int:
    cluster: Cluster | None = None
    try:
        if argv[:1] == ["check"]:
            check_options = parse_check(argv[1:])
            cluster = pick_cluster(check_options)
            return check(check_options, cluster)
        if argv and argv[0] in OF_RUNS:
            from hostmesh.launcher.runs.options import run_command

            return run_command(argv[0], argv[1:])
        line = parse(argv)
        if line.options.version or line.options.completion:
            print(version_text() if line.options.version else completion_text(line.options.completion), end="")
            return 0
        cluster = override(pick_cluster(line.options, line.options.devices), line.options)
        from hostmesh.launcher.start import start

        return start(line, cluster, ["launch", *argv])
    except HostmeshError as error:
        from hostmesh.launcher.output.redact import hide_in_urls, redact_text, redact_variables
        from hostmesh.launcher.planning.environment import find_credentials

        said = redact_variables(hide_in_urls(str(error)), cluster.secrets if cluster else ())
        for text in redact_text(said, find_credentials(cluster.env if cluster else {}).values()).splitlines():
            print(f"launch: {text}", file=sys.stderr)
        return error.exit_code
    except KeyboardInterrupt:
        return EXIT_INTERRUPTED


def pick_cluster(options: argparse.Namespace, devices: int | None = None) -> Cluster:
    if options.hosts is not None and options.local is not None:
        raise UsageError("found both --hosts and --local, wanted one of them")
    if options.hosts is None and options.local is None:
        raise UsageError(f"wanted --hosts FILE or --local N\n{USAGE_HINT}")
    from dataclasses import replace

    if options.hosts is not None:
        from hostmesh.launcher.cluster.file import read_cluster

        cluster = read_cluster(options.hosts, devices)
    else:
        from hostmesh.launcher.cluster.local import local_cluster

        cluster = local_cluster(options.local, devices)
    if options.python is None:
        return cluster
    return replace(cluster, hosts=tuple(replace(host, python=options.python) for host in cluster.hosts))


def override(cluster: Cluster, options: argparse.Namespace) -> Cluster:
    """The cluster with what the command line sets instead of the file."""
    from dataclasses import replace

    from hostmesh.launcher.cluster.model import HangTimeout

    keep_going = options.keep_going or cluster.keep_going
    restarts = cluster.restarts if options.restarts is None else options.restarts
    going_on = replace(cluster, restarts=restarts)
    if keep_going and going_on.goes_on:
        found = "restarts" if restarts else "a setting for lost hosts or preemptions"
        raise UsageError(
            f"found both {found} and keep_going, wanted one of them: either all start again, or the others go on"
        )
    return replace(
        cluster,
        grace=options.grace or cluster.grace,
        hang_timeout=cluster.hang_timeout if options.hang_timeout is None else HangTimeout(options.hang_timeout),
        keep_going=keep_going,
        restarts=restarts,
        programs=options.programs or cluster.programs,
        guard=options.guard or cluster.guard,
        metrics=options.metrics or cluster.metrics,
    )


def check(options: argparse.Namespace, cluster: Cluster) -> int:
    """`launch check`: starts an agent on every host to inspect it, and nothing else."""
    from hostmesh.launcher.check import TIMEOUT, check_hosts

    return check_hosts(cluster, options.json, options.runs, options.timeout or TIMEOUT)


def version_text() -> str:
    """The version, and for a checkout of the repository its commit."""
    from hostmesh.launcher.output.checkout import find_checkout

    root = Path(__file__).resolve().parent.parent
    checkout = find_checkout(root, timeout=2.0) if (root / ".git").exists() else None
    if checkout is None:
        return f"hostmesh {__version__}\n"
    return f"hostmesh {__version__} (commit {checkout.commit[:12]}{', changed' if checkout.changed else ''})\n"


def completion_text(shell: str) -> str:
    from hostmesh.launcher.command_line.completion import complete
    from hostmesh.launcher.runs.options import build_parser as build_runs_parser

    commands = {name: build_runs_parser(name) for name in OF_RUNS}
    return complete(shell, build_parser(), {"check": build_check_parser(), **commands})
