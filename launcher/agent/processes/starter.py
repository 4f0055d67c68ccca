"""Start processes: cold as programs of their own, or warm from the nursery, and wait for that while it imports."""

from __future__ import annotations

import os
import selectors
import signal
import time
from typing import Any, Callable, Dict, List, Optional

from hostmesh.launcher.agent.children.spawn import explain_start, read_exec_error, spawn
from hostmesh.launcher.agent.compiled.place import find_base, used_path
from hostmesh.launcher.agent.observing.proc import read_status
from hostmesh.launcher.agent.processes.facts import facts_path
from hostmesh.launcher.agent.processes.nursery import Nursery, NurseryState, start_file
from hostmesh.launcher.agent.processes.output import Output
from hostmesh.launcher.agent.processes.process import Process, ProcessState
from hostmesh.launcher.agent.processes.registry import Phase, Processes
from hostmesh.launcher.protocol import wire
from hostmesh.worker.identity import COMPILED, COMPILED_USED, FACTS_SOCKET, RECORD_FILE, SNAPSHOTS, STACKS_FILE, STDIN

# Seconds after the start of a process, which needs the processor itself by then no more than later.
WARM_AFTER = 10.0


class Starter:
    """`nursery_output` is what the nursery prints; there is a nursery only for a warm start."""

    def __init__(
        self,
        folder: str,
        selector: selectors.BaseSelector,
        send: Callable[[Any], None],
        processes: Processes,
        snapshots: Optional[str] = None,
    ) -> None:
        self._snapshots = snapshots
        self._folder, self._selector, self._send, self._processes = folder, selector, send, processes
        self._waiting: List[wire.Spawn] = []  # until the nursery has imported everything
        self._settings: Optional[wire.PrepareWorkers] = None
        self._python = ""
        self._nursery: Optional[Nursery] = None
        self._warm_at: Optional[float] = None
        self.nursery_output: Optional[Output] = None
        stdin = os.environ.pop(STDIN, None)  # removed, so that processes do not see it
        self._stdin = int(stdin) if stdin else None
        if self._stdin is not None:
            os.set_inheritable(self._stdin, False)  # a process gets it as its stdin, under no other number

    @property
    def nursery_pid(self) -> Optional[int]:
        return self._nursery.pid if self._nursery is not None else None

    @property
    def compiled(self) -> str:
        """The folder of the host's compiled programs."""
        return find_base({**os.environ, **(self._settings.env if self._settings is not None else {})})

    @property
    def _has_terminal(self) -> bool:
        """As a process that runs alone may; one of a nursery would not have it."""
        return self._stdin is not None and os.isatty(self._stdin)

    def note_ready(self, settings: wire.PrepareWorkers, python: str) -> None:
        self._settings, self._python = settings, python
        if settings.warm:
            self._start_nursery()

    def start(self, order: wire.Spawn) -> None:
        self._waiting.append(order)
        self._start_waiting()

    def cancel_waiting(self) -> None:
        """A process that still waits for the nursery when it is asked to stop need not start any more."""
        for order in self._waiting:
            self._processes.note_ended(self._processes.add(order.process_id), -signal.SIGTERM)
        self._waiting.clear()

    def note_reaped(self, pid: int, code: int) -> bool:
        """False if it was not the nursery that ended."""
        nursery = self._nursery
        if nursery is None or pid != nursery.pid:
            return False
        while nursery.state is not NurseryState.FAILED and nursery.channel in self._selector.get_map():
            self._hear_nursery()
        self._lose_nursery(nursery.explain_end(code), code)
        self._processes.end_ordered(code or 1)
        return True

    def renew_nursery(self) -> None:
        """Before another attempt: one that died is replaced. It may have been reaped unseen."""
        nursery, settings = self._nursery, self._settings
        if nursery is None or settings is None:
            return
        if nursery.state is not NurseryState.FAILED and read_status(nursery.pid) is None:
            self.note_reaped(nursery.pid, -signal.SIGKILL)
        if nursery.state is NurseryState.FAILED:
            assert self.nursery_output is not None
            self.nursery_output.remove()
            self._start_nursery()

    def keep_time(self) -> None:
        """A single process starts sooner without a nursery; one for the next attempt gets warm while it runs."""
        if self._warm_at is not None and time.monotonic() > self._warm_at:
            self._warm_at = None
            if self._nursery is None and self._processes.phase is Phase.RUNNING:
                self._start_nursery()

    def _start_waiting(self) -> None:
        if self._nursery is not None and self._nursery.state is NurseryState.IMPORTING:
            return
        while self._waiting and self._processes.phase is Phase.RUNNING:
            self._start(self._waiting.pop(0))

    def _start(self, order: wire.Spawn) -> None:
        process = self._processes.add(order.process_id, order.is_python)
        process.record.make()
        if order.is_python and self._settings is not None and self._settings.warms_later and not self._has_terminal:
            self._warm_at = time.monotonic() + WARM_AFTER
        files = {FACTS_SOCKET: facts_path(self._folder), STACKS_FILE: process.stacks, RECORD_FILE: process.record.path}
        if order.process_id == 0:
            files[COMPILED_USED] = used_path(self._folder)
        if self._snapshots is not None:
            files[SNAPSHOTS] = self._snapshots
        own = {COMPILED: self.compiled, **order.env, **files}
        if order.is_python and self._nursery is not None and self._nursery.state is NurseryState.READY:
            self._nursery.order(order.process_id, order.argv, own, process.output.path)
        else:
            self._start_cold(process, order, own)

    def _start_cold(self, process: Process, order: wire.Spawn, own: Dict[str, str]) -> None:
        argv = [self._python, start_file(self._folder), *order.argv] if order.is_python else order.argv
        try:
            process.pid, exec_report = spawn(
                argv, self._env(own), self._workdir(), process.output.path, stdin=self._stdin
            )
        except OSError as error:
            self._note_exec_error(process, argv[0], own, error)
            self._processes.note_ended(process, 127)
            return

        def hear_exec() -> None:
            self._selector.unregister(exec_report)
            process.hear_exec = None
            self._note_exec(process, argv[0], own, read_exec_error(exec_report))

        process.state, process.hear_exec = ProcessState.STARTING, hear_exec
        self._selector.register(exec_report, selectors.EVENT_READ, hear_exec)

    def _note_exec(self, process: Process, program: str, own: Dict[str, str], error: Optional[OSError]) -> None:
        if error is not None:
            self._note_exec_error(process, program, own, error)
            return
        assert process.pid is not None
        process.state = ProcessState.RUNNING
        self._send(wire.Started(process.process_id, process.pid, warm=False))

    def _note_exec_error(self, process: Process, program: str, own: Dict[str, str], error: OSError) -> None:
        process.exec_error = error.errno
        process.output.add(f"launch: cannot start {program}: {explain_start(error, self._env(own))}\n".encode())

    def _env(self, own: Dict[str, str]) -> Dict[str, str]:
        assert self._settings is not None
        env = {**os.environ, **self._settings.env, **own}
        code = os.path.join(self._folder, "code")
        env["PYTHONPATH"] = os.pathsep.join(filter(None, (code, env.get("PYTHONPATH"))))
        return env

    def _workdir(self) -> Optional[str]:
        assert self._settings is not None
        return self._settings.workdir and os.path.expanduser(self._settings.workdir)

    # The nursery.

    def _start_nursery(self) -> None:
        assert self._settings is not None
        output = self.nursery_output = Output(os.path.join(self._folder, "output-nursery"))
        start, env = start_file(self._folder), self._env({})
        try:
            self._nursery = Nursery(self._python, start, env, self._workdir(), output.path, self._settings.preload)
        except OSError as error:
            self._send(wire.Fact("nursery_failed", detail={"problem": explain_start(error, env)}))
            return
        self._selector.register(self._nursery.channel, selectors.EVENT_READ, self._hear_nursery)

    def _hear_nursery(self) -> None:
        assert self._nursery is not None
        messages = self._nursery.hear()
        if messages is None:
            self._selector.unregister(self._nursery.channel)
            return
        for message in messages:
            if "ready" in message:
                self._nursery.state = NurseryState.READY
                self._send(wire.Fact("nursery_ready", detail={"seconds": message["ready"]}))
                self._start_waiting()
            elif "failed" in message:
                self._lose_nursery(message["failed"])
            elif "started" in message:
                self._note_started(*message["started"])
            elif "exited" in message:
                self._processes.note_reaped(*message["exited"])

    def _note_started(self, process_id: int, pid: int) -> None:
        process = self._processes[process_id]
        process.note_started(pid)
        self._send(wire.Started(process_id, pid, warm=True))
        if self._processes.stop_signal is not None:
            process.ask_to_stop(self._processes.stop_signal)

    def _lose_nursery(self, problem: str, code: int = 1) -> None:
        """If it was not ready yet, processes start cold instead. If it was, its workers died with it."""
        nursery = self._nursery
        assert nursery is not None and self.nursery_output is not None
        if nursery.state is NurseryState.FAILED:
            return
        was_ready = nursery.state is NurseryState.READY
        if nursery.channel in self._selector.get_map():
            self._selector.unregister(nursery.channel)
        nursery.fail()
        memory = self._processes.memory.tell(nursery.pid) if self._processes.phase is Phase.RUNNING else {}
        said = self.nursery_output.last().decode(errors="replace")
        detail = {"problem": problem, "code": code, "said": said, "memory": memory}
        self._send(wire.Fact("nursery_died" if was_ready else "nursery_failed", detail=detail))
        if not was_ready:
            self._start_waiting()
