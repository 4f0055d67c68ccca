"""The agent's duties before processes start: sync, setup, inspection, the coordinator's port, a Python to run."""

from __future__ import annotations

import os
import selectors
import sys
import time
from typing import Any, Callable, Dict, List, Optional

from hostmesh.launcher import wire
from hostmesh.launcher.agent import process_tree
from hostmesh.launcher.agent.output import Output
from hostmesh.launcher.agent.startup import ports
from hostmesh.launcher.agent.startup.child_task import ChildTask
from hostmesh.launcher.agent.unpack import unpack

SETUP_TIMEOUT = 6 * 3600.0
INSPECT_TIMEOUT = 90.0
REACH_TIMEOUT = 15.0
FIND_TIMEOUT = 60.0


class Duties:
    """`ready` is called with the settings and the Python of the workers, before Ready is sent."""

    def __init__(
        self,
        folder: str,
        selector: selectors.BaseSelector,
        send: Callable[[Any], None],
        ready: Callable[[wire.PrepareWorkers, str], None],
    ) -> None:
        self.folder, self.selector, self.send, self.ready = folder, selector, send, ready
        self.ports = ports.Ports()
        self.asides: List[ChildTask] = []
        self.sync: Any = None
        self.usage: Optional[int] = None  # holds the workdir for this run, until the agent ends
        self.setup_output: Optional[Output] = None
        self._setup_commands: Optional[List[str]] = None
        self._duties: Dict[type, Callable[[Any], None]] = {
            wire.Code: self._unpack_code,
            wire.Sync: self._sync,
            wire.FileChunk: self._pass_on,
            wire.SkipFile: self._pass_on,
            wire.RunSetup: self._set_up,
            wire.Inspect: self._inspect,
            wire.PrepareWorkers: self._prepare,
            wire.Reserve: self._reserve,
            wire.Reach: self._reach,
        }

    def obey(self, message: Any) -> bool:
        """False for what is no duty of this part."""
        duty = self._duties.get(type(message))
        if duty is not None:
            duty(message)
        return duty is not None

    @property
    def busy(self) -> bool:
        output = self.setup_output
        return self._setup_commands is not None or (output is not None and (output.has_writer or not output.is_sent))

    @property
    def all_is_sent(self) -> bool:
        return self.setup_output is None or self.setup_output.is_sent

    def keep_time(self) -> None:
        now = time.monotonic()
        for aside in [aside for aside in self.asides if now > aside.deadline]:
            aside.expire()
            self._finish(aside)
        if self.sync is not None and self.sync.is_stalled():
            self._refuse(explain_stalled(self.sync.workdir))

    def _do_aside(
        self,
        work: Callable[[], Any],
        then: Callable[[Any], None],
        limit: float,
        what: str,
        refuse: Optional[Callable[[str], None]] = None,
    ) -> None:
        def finish(result: Any, problem: Optional[str]) -> None:
            if problem is None:
                then(result)
            else:
                (refuse or self._refuse)(problem)

        aside = ChildTask(work, finish, limit, what)
        self.asides.append(aside)
        self.selector.register(aside.fd, selectors.EVENT_READ, lambda: self._hear(aside))

    def _hear(self, aside: ChildTask) -> None:
        if aside.hear():
            self._finish(aside)

    def _finish(self, aside: ChildTask) -> None:
        self.selector.unregister(aside.fd)
        self.asides.remove(aside)
        aside.finish()

    def _refuse(self, problem: str, said: str = "") -> None:
        self._end_sync()
        self.send(wire.Refused(problem, said))

    # The code.

    def _unpack_code(self, order: wire.Code) -> None:
        try:
            unpack(order.data, os.path.join(self.folder, "code"))
        except OSError as error:
            self._refuse(f"cannot write the workers' code to {self.folder}: {error.strerror}")

    def _sync(self, order: wire.Sync) -> None:
        from hostmesh.launcher.agent.sync.child import SyncChild

        try:
            self.sync = SyncChild(order, os.environ[process_tree.MARK])
        except OSError as error:
            self._refuse(f"sync: cannot start a process for it: {error.strerror}")
            return
        self.selector.register(self.sync.socket, selectors.EVENT_READ, self._serve_sync)

    def _pass_on(self, message: Any) -> None:
        if self.sync is not None:  # else refused by now, and the launcher has not heard of it yet
            self.sync.give(message)
            self._watch_sync()

    def _serve_sync(self) -> None:
        if self.sync is None:
            return  # something else was refused in the same turn of the loop
        for answer in self.sync.serve():
            if isinstance(answer, wire.Refused):
                self._refuse(answer.problem)
                return
            self.send(answer)
            self.usage = self.sync.usage
            if isinstance(answer, wire.Synced):
                self._end_sync()
                return
        self._watch_sync()

    def _watch_sync(self) -> None:
        wanted = selectors.EVENT_READ | (selectors.EVENT_WRITE if self.sync.has_more else 0)
        if self.selector.get_key(self.sync.socket).events != wanted:
            self.selector.modify(self.sync.socket, wanted, self._serve_sync)

    def _end_sync(self) -> None:
        if self.sync is not None:
            self.selector.unregister(self.sync.socket)
            self.sync.close()
            self.sync = None

    # The host.

    def _set_up(self, order: wire.RunSetup) -> None:
        from hostmesh.launcher.agent.startup.setup import set_up

        if self.setup_output is None:
            self.setup_output = Output(os.path.join(self.folder, "output-setup"))
        output, self._setup_commands = self.setup_output.path, order.commands
        env = {**os.environ, **order.env}
        self._do_aside(
            lambda: set_up(order.commands, order.key, order.workdir, env, output),
            self._is_set_up,
            SETUP_TIMEOUT,
            "setup",
            self._refuse_setup,
        )

    def _is_set_up(self, seconds: float) -> None:
        self._setup_commands = None
        self.send(wire.SetupDone(ran=seconds > 0, seconds=round(seconds, 3)))

    def _refuse_setup(self, problem: str) -> None:
        from hostmesh.launcher.agent.startup.setup import find_last

        assert self.setup_output is not None and self._setup_commands is not None
        commands, self._setup_commands = self._setup_commands, None
        self._refuse(problem, find_last(self.setup_output.last(), commands))

    def _inspect(self, order: wire.Inspect) -> None:
        from hostmesh.launcher.agent.inspect.host import inspect

        self._do_aside(
            lambda: inspect(order.python, order.workdir, order.env, order.thorough, self.folder, names=order.names),
            lambda found: self.send(wire.Inspected(found)),
            INSPECT_TIMEOUT,
            "looking at the host",
        )

    # The coordinator's port.

    def _reserve(self, order: wire.Reserve) -> None:
        held, problems = self.ports.reserve(order.addresses, order.listen)
        if not held:
            self._refuse("; ".join(problems))
            return
        for listener in self.ports.listening:
            self.selector.register(listener, selectors.EVENT_READ, lambda listener=listener: ports.answer(listener))
        self.send(wire.Reserved(held))

    def stop_listening(self) -> None:
        for listener in self.ports.listening:
            self.selector.unregister(listener)
        self.ports.stop_listening()

    def _reach(self, order: wire.Reach) -> None:
        self._do_aside(
            lambda: ports.reach(order.targets),
            lambda problems: self.send(wire.Reached(problems)),
            REACH_TIMEOUT,
            "trying the coordinator's port",
        )

    # The workers' Python.

    def _prepare(self, setting: wire.PrepareWorkers) -> None:
        """ChildTask, because the disk of the Python or of the workdir may be hung; not for a local run's own Python."""
        if setting.python == sys.executable and setting.workdir is None:
            self._note_python(setting, sys.executable)
            return
        self._do_aside(
            lambda: find_python(setting),
            lambda python: self._note_python(setting, python),
            FIND_TIMEOUT,
            f"looking for {setting.python}" + (f" and {setting.workdir}" if setting.workdir else ""),
        )

    def _note_python(self, setting: wire.PrepareWorkers, python: str) -> None:
        self.ready(setting, python)
        self.send(wire.Ready(python=python))


class Missing(Exception):
    """Something of the cluster file is not there; the text is complete."""


def find_python(setting: wire.PrepareWorkers) -> str:
    """The workers' Python by its path; what they need beside it is looked for as well."""
    found = find_program(os.path.expanduser(setting.python), {**os.environ, **setting.env}.get("PATH", ""))
    if found is None:
        raise Missing(f"python: found no executable {setting.python}")
    if setting.workdir is not None and not os.path.isdir(os.path.expanduser(setting.workdir)):
        raise Missing(f"workdir: found no folder {setting.workdir}")
    return os.path.abspath(found)


def explain_stalled(workdir: str) -> str:
    from hostmesh.launcher.agent.sync.child import STALLED

    return f"the disk under {workdir} has not answered for {STALLED:g} s; is it a network disk whose server is gone?"


def find_program(name: str, path: str) -> Optional[str]:
    """What shutil.which does, without the 5 ms that importing shutil takes."""
    places = [""] if os.sep in name else path.split(os.pathsep)
    found = (os.path.join(place, name) for place in places)
    return next((file for file in found if os.path.isfile(file) and os.access(file, os.X_OK)), None)
