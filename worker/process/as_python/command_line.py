"""What `ps` and sys.orig_argv show of a process: the command with which plain Python would run its script."""

from __future__ import annotations

import os
import sys

# In /proc/PID/stat, counted after the name of the program: where the command line begins and ends in memory.
ARG_START, ARG_END = 45, 46


def show_command(argv: list[str]) -> None:
    """`argv` is what follows the interpreter."""
    command = [sys.orig_argv[0], *argv]
    sys.orig_argv[:] = command
    write_command_line(command)


def write_command_line(command: list[str]) -> None:
    """Writes over the command line of the process, and no further: after it comes the environment, by which the
    processes of a run are found. Where it cannot be written it stays as it is."""
    try:
        with open("/proc/self/stat", "rb") as file:
            fields = file.read().rpartition(b")")[2].split()
        start, end = int(fields[ARG_START]), int(fields[ARG_END])
        memory = os.open("/proc/self/mem", os.O_WRONLY)
    except (OSError, IndexError):
        return
    try:
        text = b"\0".join(map(os.fsencode, command))[: end - start - 1]
        os.pwrite(memory, text.ljust(end - start, b"\0"), start)
    except OSError:
        pass
    finally:
        os.close(memory)
