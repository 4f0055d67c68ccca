"""The agent's duties before processes start: sync, setup, inspection, the coordinator's port, a Python to run."""

from __future__ import annotations

import os
import selectors
import time
from typing import Any, Callable, Dict, List, Optional

from launcher import wire
from launcher.agent import hunt, ports
from launcher.agent.aside import Aside
from launcher.agent.tail import Tail
from launcher.agent.unpack import unpack

SETUP_PATIENCE = 6 * 3600.0
INSPECT_PATIENCE = 30.0
REACH_PATIENCE = 15.0


class Preparing:
    """`ready` is called with the settings and the Python of the workers, before Ready is sent."""

    def __init__(
        self,
        folder: str,
        selector: selectors.BaseSelector,
        send: Callable[[Any], None],
        ready: Callable[[wire.Prepare, str], None],
    ) -> None:
        self.folder, self.selector, self.send, self.ready = folder, selector, send, ready
        self.ports = ports.Ports()
        self.asides: List[Aside] = []
        self.sync: Any = None
        self.usage: Optional[int] = None  # holds the workdir for this run, until the agent ends
        self.setup_output: Optional[Tail] = None
        self._duties: Dict[type, Callable[[Any], None]] = {
            wire.Code: self._unpack_code,
            wire.Sync: self._sync,
            wire.Piece: self._pass_on,
            wire.Leave: self._pass_on,
            wire.Setup: self._set_up,
            wire.Inspect: self._inspect,
            wire.Prepare: self._prepare,
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
        return self.setup_output is not None

    def keep_time(self) -> None:
        now = time.monotonic()
        for aside in self.asides:
            if now > aside.deadline:
                aside.deadline = now + 60
                aside.expire()
        if self.sync is not None and self.sync.is_stalled():
            self._refuse(explain_stalled(self.sync.workdir))

    def _do_aside(self, work: Callable[[], Any], then: Callable[[Any], None], limit: float, what: str) -> None:
        def finish(result: Any, problem: Optional[str]) -> None:
            if problem is None:
                then(result)
            else:
                self._refuse(problem)

        aside = Aside(work, finish, limit, what)
        self.asides.append(aside)
        self.selector.register(aside.fd, selectors.EVENT_READ, lambda: self._hear(aside))

    def _hear(self, aside: Aside) -> None:
        if aside.hear():
            self.selector.unregister(aside.fd)
            self.asides.remove(aside)
            aside.finish()

    def _refuse(self, problem: str) -> None:
        self.forward_setup_output()
        self.close()
        self.send(wire.Refused(problem))

    def close(self) -> None:
        self.setup_output = None
        self._end_sync()

    # The code.

    def _unpack_code(self, order: wire.Code) -> None:
        try:
            unpack(order.data, os.path.join(self.folder, "code"))
        except OSError as error:
            self._refuse(f"cannot write the workers' code to {self.folder}: {error.strerror}")

    def _sync(self, order: wire.Sync) -> None:
        from launcher.agent.sync_child import SyncChild

        try:
            self.sync = SyncChild(order, os.environ[hunt.MARK])
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

    def _set_up(self, order: wire.Setup) -> None:
        from launcher.agent.setup import set_up

        output = os.path.join(self.folder, "output-setup")
        self.setup_output = Tail(output)
        env = {**os.environ, **order.env}
        self._do_aside(
            lambda: set_up(order.commands, order.key, order.workdir, env, output),
            self._is_set_up,
            SETUP_PATIENCE,
            "setup",
        )

    def _is_set_up(self, seconds: float) -> None:
        self.forward_setup_output()
        self.setup_output = None
        self.send(wire.SetUp(ran=seconds > 0, seconds=round(seconds, 3)))

    def forward_setup_output(self) -> None:
        while self.setup_output is not None and (data := self.setup_output.read()):
            self.send(wire.SetupOutput(data))

    def _inspect(self, order: wire.Inspect) -> None:
        from launcher.agent.inspect import inspect

        self._do_aside(
            lambda: inspect(order.python, order.workdir, order.env, order.thorough, self.folder, names=order.names),
            lambda found: self.send(wire.Inspected(found)),
            INSPECT_PATIENCE,
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
            REACH_PATIENCE,
            "trying the coordinator's port",
        )

    # The workers' Python.

    def _prepare(self, setting: wire.Prepare) -> None:
        found = find_program(os.path.expanduser(setting.python), {**os.environ, **setting.env}.get("PATH", ""))
        if found is None:
            self.send(wire.Refused(f"python: found no executable {setting.python}"))
            return
        if setting.workdir is not None and not os.path.isdir(os.path.expanduser(setting.workdir)):
            self.send(wire.Refused(f"workdir: found no folder {setting.workdir}"))
            return
        python = os.path.abspath(found)
        self.ready(setting, python)
        self.send(wire.Ready(python=python))


def explain_stalled(workdir: str) -> str:
    from launcher.agent.sync_child import STALLED

    return f"the disk under {workdir} has not answered for {STALLED:g} s; is it a network disk whose server is gone?"


def find_program(name: str, path: str) -> Optional[str]:
    """What shutil.which does, without the 5 ms that importing shutil takes."""
    places = [""] if os.sep in name else path.split(os.pathsep)
    found = (os.path.join(place, name) for place in places)
    return next((file for file in found if os.path.isfile(file) and os.access(file, os.X_OK)), None)
