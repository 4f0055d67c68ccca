"""The agent's duties before processes start: sync, setup, inspection, the coordinator's port, the workers' Python.

What may block is done in children. Modules that only some runs need are imported when a duty needs them.
"""

from __future__ import annotations

import os
import selectors
import socket
import sys
import time
from typing import Any, Callable, Dict, List, Optional

from hostmesh.launcher.agent.children import process_tree
from hostmesh.launcher.agent.children.child_task import ChildTasks
from hostmesh.launcher.agent.processes.output import Output
from hostmesh.launcher.agent.startup import ports
from hostmesh.launcher.agent.startup.code_folder import make_code_folder
from hostmesh.launcher.agent.unpack import unpack_first, write_files
from hostmesh.launcher.protocol import wire

SETUP_TIMEOUT = 6 * 3600.0
INSPECT_TIMEOUT = 90.0
REACH_TIMEOUT = 15.0
FIND_TIMEOUT = 60.0
TRIAL_TIMEOUT = 15.0
UNPACK_TIMEOUT = 60.0


class Duties:
    """`ready` is called with the settings and the Python of the workers, before Ready is sent."""

    def __init__(
        self,
        folder: str,
        selector: selectors.BaseSelector,
        send: Callable[[Any], None],
        ready: Callable[[wire.PrepareWorkers, str], None],
        memory: Optional[str] = None,
    ) -> None:
        """`memory` is a folder for files that need not be on a disk."""
        self.memory = memory
        self.folder, self.selector, self.send, self.ready = folder, selector, send, ready
        self.ports = ports.Ports()
        self.tasks = ChildTasks(selector, self._refuse)
        # What is to be done once all of the workers' code is there; None when it is.
        self._waiting_for_code: Optional[List[Callable[[], None]]] = None
        self.sync: Any = None  # a SyncChild while a sync is under way
        self._trial_listener: Optional[socket.socket] = None
        self._trial_ends_at = 0.0
        self.usage: Optional[int] = None  # while the agent has this descriptor, it counts as a user of the workdir
        self.setup_output: Optional[Output] = None
        self._setup_commands: Optional[List[str]] = None  # while they run
        self._duties: Dict[type, Callable[[Any], None]] = {
            wire.Code: self._unpack_code,
            wire.Sync: self._begin_sync,
            wire.FileChunk: self._give_to_sync,
            wire.SkipFile: self._give_to_sync,
            wire.RunSetup: self._run_setup,
            wire.Inspect: self._inspect,
            wire.Reserve: self._reserve,
            wire.Reach: self._reach,
            wire.PrepareWorkers: self._prepare_workers,
            wire.Listen: self._listen,
            wire.Connect: self._connect,
        }

    def obey(self, message: Any) -> None:
        """Other messages than commands to these duties are ignored."""
        duty = self._duties.get(type(message))
        if duty is not None:
            duty(message)

    def keep_time(self) -> None:
        self.tasks.keep_time()
        if self._trial_listener is not None and time.monotonic() > self._trial_ends_at:
            self._end_trial()
        if self.sync is not None and self.sync.is_stalled():
            self._refuse(self.sync.explain_stalled())

    def _refuse(self, problem: str, said: str = "") -> None:
        """A run that is refused anything ends, so a sync that is under way ends, too."""
        self._end_sync()
        self.send(wire.Refused(problem, said))

    # Code and sync.

    def _unpack_code(self, order: wire.Code) -> None:
        """Most of it is written by a child, while the nursery is busy with importing jax."""
        try:
            code = make_code_folder(self.folder, self.memory)
            rest = unpack_first(order.data, code)
        except OSError as error:
            self._refuse(f"cannot write the workers' code to {self.folder}: {error.strerror}")
            return
        self._waiting_for_code = []
        self.tasks.begin(
            lambda: write_files(code, rest),
            self._note_code,
            UNPACK_TIMEOUT,
            "writing the workers' code",
            lambda problem: self._refuse(f"cannot write the workers' code to {self.folder}: {problem}"),
        )

    def _note_code(self, _: Any) -> None:
        waiting, self._waiting_for_code = self._waiting_for_code or [], None
        for act in waiting:
            act()

    def _with_code(self, act: Callable[[], None]) -> None:
        """Once all of the workers' code is there."""
        if self._waiting_for_code is None:
            act()
        else:
            self._waiting_for_code.append(act)

    def _begin_sync(self, order: wire.Sync) -> None:
        from hostmesh.launcher.agent.sync.child import SyncChild

        try:
            self.sync = SyncChild(order, os.environ[process_tree.MARK])
        except OSError as error:
            self._refuse(f"sync: cannot start a process for it: {error.strerror}")
            return
        self.selector.register(self.sync.socket, selectors.EVENT_READ, self._serve_sync)

    def _give_to_sync(self, message: Any) -> None:
        if self.sync is not None:  # it has ended if it was refused, and the launcher sends until it hears of that
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

    # Setup.

    @property
    def setup_is_busy(self) -> bool:
        """Setup commands run, or what they started still prints."""
        output = self.setup_output
        return self._setup_commands is not None or (output is not None and (output.has_writer or not output.is_sent))

    @property
    def setup_output_is_sent(self) -> bool:
        return self.setup_output is None or self.setup_output.is_sent

    def _run_setup(self, order: wire.RunSetup) -> None:
        from hostmesh.launcher.agent.startup.setup import set_up

        if self.setup_output is None:
            self.setup_output = Output(os.path.join(self.folder, "output-setup"))
        output, self._setup_commands = self.setup_output.path, order.commands
        env = {**os.environ, **order.env}
        self.tasks.begin(
            lambda: set_up(order.commands, order.key, order.workdir, env, output),
            self._note_setup_done,
            SETUP_TIMEOUT,
            "setup",
            self._refuse_setup,
        )

    def _note_setup_done(self, seconds: float) -> None:
        self._setup_commands = None
        self.send(wire.SetupDone(ran=seconds > 0, seconds=round(seconds, 3)))

    def _refuse_setup(self, problem: str) -> None:
        from hostmesh.launcher.agent.startup.setup import find_last

        assert self.setup_output is not None and self._setup_commands is not None
        commands, self._setup_commands = self._setup_commands, None
        self._refuse(problem, find_last(self.setup_output.last(), commands))

    # Inspection.

    def _inspect(self, order: wire.Inspect) -> None:
        from hostmesh.launcher.agent.inspect.host import inspect

        self.tasks.begin(
            lambda: inspect(order.python, order.workdir, order.env, order.thorough, self.folder, names=order.names),
            lambda found: self.send(wire.Inspected(found)),
            INSPECT_TIMEOUT,
            "looking at the host",
        )

    # The coordinator's port.

    def _reserve(self, order: wire.Reserve) -> None:
        self.stop_listening()
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
        self.tasks.begin(
            lambda: ports.reach(order.targets),
            lambda problems: self.send(wire.Reached(problems)),
            REACH_TIMEOUT,
            "trying the coordinator's port",
        )

    # Whether other hosts can be reached, when a run stands still.

    def _listen(self, _: wire.Listen) -> None:
        self._end_trial()
        try:
            self._trial_listener = listener = ports.listen_anywhere()
        except OSError:
            return  # the launcher waits for this answer no longer than for any other
        self._trial_ends_at = time.monotonic() + TRIAL_TIMEOUT
        self.selector.register(listener, selectors.EVENT_READ, lambda: ports.answer(listener))
        self.send(wire.Listening(listener.getsockname()[1]))

    def _end_trial(self) -> None:
        if self._trial_listener is not None:
            self.selector.unregister(self._trial_listener)
            self._trial_listener.close()
            self._trial_listener = None

    def _connect(self, order: wire.Connect) -> None:
        self.tasks.begin(
            lambda: ports.connect(order.targets, order.services),
            lambda problems: self.send(wire.Connected(problems)),
            REACH_TIMEOUT,
            "trying to reach the other hosts",
            lambda problem: None,
        )

    # The workers' Python.

    def _prepare_workers(self, settings: wire.PrepareWorkers) -> None:
        """In a child, because the disk of the Python or of the workdir may be hung; a local run's own Python needs no
        search."""
        if settings.python == sys.executable and settings.workdir is None:
            self._note_python(settings, sys.executable)
            return
        from hostmesh.launcher.agent.startup.find_python import find_python

        self.tasks.begin(
            lambda: find_python(settings),
            lambda python: self._note_python(settings, python),
            FIND_TIMEOUT,
            f"looking for {settings.python}" + (f" and {settings.workdir}" if settings.workdir else ""),
        )

    def _note_python(self, settings: wire.PrepareWorkers, python: str) -> None:
        if settings.preload:  # these modules may import any of the workers' code
            self._with_code(lambda: self.ready(settings, python))
        else:
            self.ready(settings, python)
        self._with_code(lambda: self.send(wire.Ready(python=python)))
