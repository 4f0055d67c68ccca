"""Start one program as a child that dies with the agent, and say why when it cannot be started."""

from __future__ import annotations

import errno
import os
import signal
from typing import Dict, List, Mapping, Optional, Tuple

from hostmesh.launcher.agent.children.fresh_child import HANDLED, leave_parent
from hostmesh.worker.identity import PID

# Python ignores these, and a program must not inherit that.
IGNORED = (signal.SIGPIPE, signal.SIGXFSZ)
MAX_SHOWN = 3


def spawn(
    argv: List[str],
    env: Dict[str, str],
    folder: Optional[str],
    output: str,
    keep: Optional[int] = None,
    stdin: Optional[int] = None,
) -> Tuple[int, int]:
    """Fork and exec in a process group of its own, with input from `stdin` or from nowhere and output to the pipe at
    `output`; `keep` is a descriptor to pass on. Returns the pid and the descriptor for `read_exec_error`.

    This does not wait for the exec, since entering `folder` takes for ever when its disk is hung.
    """
    agent = os.getpid()
    exec_report, report = os.pipe()
    try:
        pid = os.fork()
    except OSError:
        os.close(exec_report)
        os.close(report)
        raise
    if pid == 0:
        try:
            _become(agent, folder, output, keep, stdin)
            os.execvpe(argv[0], argv, {**env, PID: str(os.getpid())})
        except OSError as error:
            os.write(report, str(error.errno).encode())
        finally:
            os._exit(127)
    os.close(report)
    return pid, exec_report


def read_exec_error(fd: int) -> Optional[OSError]:
    """Why an exec failed; None if it did not. The descriptor must be ready, which it is once exec has succeeded or
    failed, or the child is dead."""
    try:
        number = os.read(fd, 16)
    finally:
        os.close(fd)
    return OSError(int(number), os.strerror(int(number))) if number else None


def _become(agent: int, folder: Optional[str], output: str, keep: Optional[int], stdin: Optional[int]) -> None:
    os.setpgid(0, 0)  # not setsid: who leads a session cannot change its group, and the agent has a session
    leave_parent(agent, (*HANDLED, *IGNORED))
    source_of_input = os.open(os.devnull, os.O_RDONLY) if stdin is None else stdin
    pipe = os.open(output, os.O_WRONLY)
    for source, target in ((source_of_input, 0), (pipe, 1), (pipe, 2)):
        os.dup2(source, target)
    if keep is not None:
        os.set_inheritable(keep, True)
    if folder is not None:
        os.chdir(folder)


def explain_start(error: OSError, env: Mapping[str, str]) -> str:
    """In words. Of the environment it shows names and sizes only, since a value may be a secret."""
    if error.errno != errno.E2BIG:
        return error.strerror or str(error)
    sizes = {name: len(os.fsencode(name)) + len(os.fsencode(value)) + 2 for name, value in env.items()}
    largest: List[str] = sorted(sizes, key=lambda name: -sizes[name])[:MAX_SHOWN]
    shown = ", ".join(f"{name} with {sizes[name]:,} bytes" for name in largest)
    return f"its environment of {sum(sizes.values()):,} bytes is too large for Linux; the largest are {shown}"
