"""Start one program as a child that dies with the agent, and say why when it cannot be started."""

from __future__ import annotations

import errno
import os
import signal
from typing import Dict, List, Mapping, Optional

from launcher.agent.linux import die_with_parent

HANDLED = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGCHLD, signal.SIGPIPE, signal.SIGXFSZ)
LARGEST_SHOWN = 3


def spawn(argv: List[str], env: Dict[str, str], folder: Optional[str], output: str, keep: Optional[int] = None) -> int:
    """Fork and exec in a session of its own, output to a file, input from nowhere; `keep` is a descriptor to pass on.

    An exec that fails raises its OSError here, through a pipe that a successful exec closes.
    """
    agent = os.getpid()
    trouble, report = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            _become(agent, folder, output, keep)
            os.execvpe(argv[0], argv, env)
        except OSError as error:
            os.write(report, str(error.errno).encode())
        finally:
            os._exit(127)
    os.close(report)
    with os.fdopen(trouble, "rb") as reader:
        number = reader.read()
    if number:
        os.waitpid(pid, 0)
        raise OSError(int(number), os.strerror(int(number)), argv[0])
    return pid


def _become(agent: int, folder: Optional[str], output: str, keep: Optional[int]) -> None:
    os.setsid()
    die_with_parent(agent)
    signal.set_wakeup_fd(-1)
    for number in HANDLED:
        signal.signal(number, signal.SIG_DFL)
    nothing = os.open(os.devnull, os.O_RDONLY)
    file = os.open(output, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    for source, target in ((nothing, 0), (file, 1), (file, 2)):
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
    largest: List[str] = sorted(sizes, key=lambda name: -sizes[name])[:LARGEST_SHOWN]
    shown = ", ".join(f"{name} with {sizes[name]:,} bytes" for name in largest)
    return f"its environment of {sum(sizes.values()):,} bytes is too large for Linux; the largest are {shown}"
