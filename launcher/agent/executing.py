"""Commands of `launch exec`: each runs beside the processes of this host, and nothing is left of it at its end."""

from __future__ import annotations

import os
import selectors
import signal
from functools import partial
from typing import Dict, Optional

from hostmesh.launcher.agent.children.fresh_child import HANDLED, leave_parent
from hostmesh.launcher.agent.children.spawn import IGNORED
from hostmesh.launcher.agent.files import read_if_there
from hostmesh.launcher.agent.link import Link, watch
from hostmesh.launcher.protocol import wire

CHUNK = 64 << 10
# In the environment of a command, and so of all that it starts.
EXECUTED = "HOSTMESH_EXECUTED"


class Executing:
    """A command is over once it has ended and its output has: what it leaves behind is killed, which closes that."""

    def __init__(self, selector: selectors.BaseSelector, link: Link) -> None:
        self._selector, self._link = selector, link
        self._commands: Dict[int, Command] = {}

    def begin(self, order: wire.Execute) -> None:
        try:
            self._commands[order.number] = Command(order)
        except OSError as error:
            self._link.send(wire.Printed(order.number, f"it cannot be started: {error.strerror}\n".encode()))
            self._link.send(wire.Executed(order.number, 126))

    def cancel(self, order: wire.CancelExecute) -> None:
        command = self._commands.get(order.number)
        if command is not None:
            command.kill_all()

    def watch(self) -> None:
        """While the launcher does not take more, a command that prints has to wait."""
        for command in self._commands.values():
            if command.output >= 0:
                read = partial(self._read, command)
                watch(self._selector, command.output, selectors.EVENT_READ, read, self._link.takes_facts)

    def note_reaped(self, pid: int, code: int) -> bool:
        """Whether it was one of these commands."""
        for command in self._commands.values():
            if command.pid == pid:
                command.code = code
                command.kill_all()
                self._finish(command)
                return True
        return False

    def _read(self, command: Command) -> None:
        try:
            data = os.read(command.output, CHUNK)
        except BlockingIOError:
            return
        if data:
            self._link.send(wire.Printed(command.number, data))
            return
        self._selector.unregister(command.output)
        os.close(command.output)
        command.output = -1
        self._finish(command)

    def _finish(self, command: Command) -> None:
        if command.code is not None and command.output < 0:
            del self._commands[command.number]
            self._link.send(wire.Executed(command.number, command.code))


class Command:
    """It has a process group of its own; `output` is the agent's end of its stdout and stderr, -1 once that ended."""

    def __init__(self, order: wire.Execute) -> None:
        self.number = order.number
        self.code: Optional[int] = None
        self._mark = f"{os.getpid()}.{order.number}"
        agent = os.getpid()
        self.output, theirs = os.pipe()
        os.set_blocking(self.output, False)
        try:
            self.pid = os.fork()
        except OSError:
            os.close(self.output)
            os.close(theirs)
            raise
        if self.pid == 0:
            _become(agent, order, theirs, {**os.environ, **order.env, EXECUTED: self._mark})
        os.close(theirs)

    def kill_all(self) -> None:
        """The command, its group, and whoever has left the group but has its mark."""
        try:
            os.killpg(self.pid, signal.SIGKILL)
        except (ProcessLookupError, PermissionError):
            pass
        mark = f"{EXECUTED}={self._mark}".encode()
        for name in os.listdir("/proc"):
            if name.isdigit() and mark in read_if_there(f"/proc/{name}/environ").split(b"\0"):
                try:
                    os.kill(int(name), signal.SIGKILL)
                except (ProcessLookupError, PermissionError):
                    pass


def _become(agent: int, order: wire.Execute, output: int, env: Dict[str, str]) -> None:
    try:
        os.setpgid(0, 0)
        leave_parent(agent, (*HANDLED, *IGNORED))
        nothing = os.open(os.devnull, os.O_RDONLY)
        for source, target in ((nothing, 0), (output, 1), (output, 2)):
            os.dup2(source, target)
        os.chdir(os.path.expanduser(order.workdir or "."))
        os.execvpe(order.argv[0], order.argv, env)
    except OSError as error:
        os.write(2, f"{order.argv[0]}: {error.strerror}\n".encode())
    finally:
        os._exit(127)
