"""Every error a user can meet, arranged by what the caller can do about it.

HostmeshError
├── UsageError          the command line, the cluster file or the machine asks for the impossible: exit code 2
│   └── ClusterError    problems in a cluster file or a file of faults, all of them at once
└── Unreachable         no agent can be started on a host: exit code 69
"""

from __future__ import annotations

EXIT_USAGE = 2
EXIT_HOST_LOST = 69
EXIT_HANG = 124
EXIT_INTERRUPTED = 130


class HostmeshError(Exception):
    """A problem with a message that is ready to be shown."""

    exit_code = 1


class UsageError(HostmeshError):
    exit_code = EXIT_USAGE


class ClusterError(UsageError):
    """One line per problem, in the order they stand in the file."""

    def __init__(self, problems: list[str]) -> None:
        super().__init__("\n".join(problems))
        self.problems = problems


class Unreachable(HostmeshError):
    """One host's: what was found, and how to fix it."""

    exit_code = EXIT_HOST_LOST
