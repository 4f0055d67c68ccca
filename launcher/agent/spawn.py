"""Start one program as a child that dies with the agent, and say why when it cannot be started."""

from __future__ import annotations

import errno
import os
import signal
from typing import Dict, List, Mapping, Optional, Tuple

from hostmesh.launcher.agent.linux import die_with_parent
from hostmesh.worker.identity import PID

# In the environment of an agent: the descriptor that is to be the stdin of the one process it starts.
STDIN = "HOSTMESH_STDIN"
HANDLED = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGCHLD, signal.SIGPIPE, signal.SIGXFSZ)
MAX_SHOWN = 3


def spawn(
    argv: List[str],
    env: Dict[str, str],
    folder: Optional[str],
    output: str,
    keep: Optional[int] = None,
    stdin: Optional[int] = None,
) -> Tuple[int, int]:
    """Fork and exec in a group of its own, input from `stdin` or nowhere, output to the pipe at `output`; `keep` is a
    descriptor to pass on. Returns the pid and the descriptor that `read_exec_error` wants.

    Nobody waits for the exec here: entering `folder` takes for ever when its disk is hung.
    """
    agent = os.getpid()
    trouble, report = os.pipe()
    try:
        pid = os.fork()
    except OSError:
        os.close(trouble)
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
    return pid, trouble


def read_exec_error(fd: int) -> Optional[OSError]:
    """Why an exec failed. For a descriptor that is ready, which it is once exec has succeeded or failed,
    or the child is dead."""
    try:
        number = os.read(fd, 16)
    finally:
        os.close(fd)
    return OSError(int(number), os.strerror(int(number))) if number else None


def _become(agent: int, folder: Optional[str], output: str, keep: Optional[int], stdin: Optional[int]) -> None:
    os.setpgid(0, 0)  # a session would keep a program from doing so itself; the agent has one already
    die_with_parent(agent)
    signal.set_wakeup_fd(-1)
    for number in HANDLED:
        signal.signal(number, signal.SIG_DFL)
    source_of_input = os.open(os.devnull, os.O_RDONLY) if stdin is None else stdin
    pipe = os.open(output, os.O_WRONLY)
    for source, target in ((source_of_input, 0), (pipe, 1), (pipe, 2)):
        os.dup2(source, target)
    if keep is not None:
        os.set_inheritable(keep, True)
    if folder is not None:
        os.chdir(folder)


def explain_start(error: OSError, env: Mapping[str, str]) -> str:
    """Names and sizes only: a value may be a secret."""
    if error.errno != errno.E2BIG:
        return error.strerror or str(error)
    sizes = {name: len(os.fsencode(name)) + len(os.fsencode(value)) + 2 for name, value in env.items()}
    largest: List[str] = sorted(sizes, key=lambda name: -sizes[name])[:MAX_SHOWN]
    shown = ", ".join(f"{name} with {sizes[name]:,} bytes" for name in largest)
    return f"its environment of {sum(sizes.values()):,} bytes is too large for Linux; the largest are {shown}"
