"""The agent: one loop that owns a host's processes, hears commands on stdin and sends events on stdout."""

from __future__ import annotations

import errno
import json
import os
import selectors
import signal
import socket
import sys
import time
from collections import deque
from functools import partial
from typing import Any, Callable, Deque, Dict, List, Optional, Tuple

from hostmesh.launcher import wire
from hostmesh.launcher.agent import process_tree
from hostmesh.launcher.agent.flow import OUTPUT, Window
from hostmesh.launcher.agent.guardian import Guardian, guard, remove
from hostmesh.launcher.agent.nursery import Nursery, start_file
from hostmesh.launcher.agent.output import Output
from hostmesh.launcher.agent.segments import Segments
from hostmesh.launcher.agent.spawn import STDIN, explain_start, read_exec_error, spawn
from hostmesh.launcher.agent.startup.duties import Duties
from hostmesh.launcher.agent.startup.ports import list_addresses
from hostmesh.worker.identity import DUMP_SIGNAL, EXIT_PREEMPTED, FACTS_SOCKET, STACKS_FILE

BEAT_EVERY = 1.0
LOOK_EVERY = 0.03
LOOK_FOR_STACKS_EVERY = 0.01
FIRST_LEASE = 30.0
OBEY_TIMEOUT = 0.2
OUTBOX_FULL = 512 << 10
STACKS_TIMEOUT = 0.5
KILL_TIMEOUT = 5.0
# The processes themselves are given a moment to be gone: most leave nothing behind.
KILL_REST_EVERY = 0.05
# More than the socket holds: whoever sends without end cannot keep the agent from its other duties.
FACTS_AT_ONCE = 1000
# What a process says of itself alone: a child that it forked may crash, or compute, without consequences.
OF_ITSELF = ("crash", "ran_separately")
# Deeper ones would end whoever walks through them.
MAX_FACT_DEPTH = 32


def main(folder: str) -> None:
    mark = os.environ[process_tree.MARK]
    segments = Segments(folder)
    guardian = guard(mark, folder, segments)
    agent = Agent(folder, guardian, segments)
    try:
        agent.run()
    except Exception:
        import traceback

        traceback.print_exc()  # the launcher shows what an agent said last
        sys.stderr.flush()
    finally:
        process_tree.kill_all(mark, {guardian.pid}, segments.note_held)
        if os.getppid() != guardian.pid:
            remove(folder)  # nobody is left to do it
        os._exit(0)


class Process:
    def __init__(self, process_id: int, folder: str, is_python: bool = True) -> None:
        self.process_id, self.is_python = process_id, is_python
        self.output = Output(os.path.join(folder, f"output-{process_id}"))
        self.stacks = os.path.join(folder, f"stacks-{process_id}")
        self.pid: Optional[int] = None
        self.code: Optional[int] = None
        self.left_with: Optional[int] = None  # its exit code, while others of its group still have time to end
        self.exec_report: Optional[int] = None
        self.exec_error: Optional[int] = None
        self.has_begun = self.can_dump = False
        self.stacks_size = 0
        self.drained = False
        self.dropped_facts = 0

    @property
    def alive(self) -> bool:
        return self.pid is not None and self.code is None

    def signal(self, number: int) -> None:
        if self.alive:
            assert self.pid is not None
            try:
                os.kill(self.pid, number)
            except ProcessLookupError:
                pass

    def ask_to_stop(self, number: int) -> None:
        """Ctrl-C reaches the whole group, as under a shell. SIGTERM reaches the process alone: it would end a data
        loader's processes while their owner saves."""
        if number == signal.SIGINT and self.is_python and not self.has_begun:
            number = signal.SIGTERM  # Python's own start would only print a traceback
        if self.alive and (number != signal.SIGINT or not self.signal_group(number)):
            self.signal(number)

    def signal_group(self, number: int) -> bool:
        """Of the processes that it leads; False where none of them is left, or it leads none."""
        assert self.pid is not None
        try:
            os.killpg(self.pid, number)
        except OSError:
            return False
        return True

    def stacks_are_whole(self) -> bool:
        """Two looks that find the same, up to the end of a line: faulthandler writes a dump piece by piece."""
        stacks = self.read_stacks()
        whole = stacks.endswith(b"\n") and len(stacks) == self.stacks_size
        self.stacks_size = len(stacks)
        return whole

    def read_stacks(self) -> bytes:
        try:
            with open(self.stacks, "rb") as file:
                return file.read()
        except FileNotFoundError:
            return b""


class Agent:
    def __init__(self, folder: str, guardian: Guardian, segments: Segments) -> None:
        self.folder = folder
        self.guardian = guardian
        self.segments = segments
        self.decoder = wire.Decoder()
        self.commands: Deque[Any] = deque()
        self.outbox = bytearray(wire.MAGIC)
        self.processes: Dict[int, Process] = {}
        self.waiting: List[wire.Spawn] = []
        self.setting: Optional[wire.PrepareWorkers] = None
        self.python = ""
        self.ahead: Optional[float] = None  # how far this host's clock is ahead of the launcher's, at most
        stdin = os.environ.pop(STDIN, None)  # not for the processes to see
        self.stdin = int(stdin) if stdin else None
        if self.stdin is not None:
            os.set_inheritable(self.stdin, False)  # as stdin alone
        self.nursery: Optional[Nursery] = None
        self.nursery_output: Optional[Output] = None
        self.lease = FIRST_LEASE
        self.heard = self.beaten = time.monotonic()
        self.stacks_until: Optional[float] = None
        self.window = Window(OUTPUT)
        self.behind = False
        self.asked: Optional[int] = None  # the signal that asked the processes to stop
        self.stopping = False
        self.stopped_at = self.killed_at = 0.0
        self.leave = False
        self.selector = selectors.DefaultSelector()
        self.preparing = Duties(folder, self.selector, self._send, self._note_ready)
        self.facts = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._open()

    def _open(self) -> None:
        self.facts.bind(os.path.join(self.folder, "facts"))
        woken, self.waker = socket.socketpair()
        for end in (self.facts, woken, self.waker):
            end.setblocking(False)
        for fd in (0, 1):
            os.set_blocking(fd, False)
        self.woken = woken
        signal.set_wakeup_fd(self.waker.fileno(), warn_on_full_buffer=False)
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            signal.signal(number, self._on_end_signal)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        self.selector.register(woken, selectors.EVENT_READ, self._wake)

    def _on_end_signal(self, *_: Any) -> None:
        self.leave = True

    # The loop.

    def run(self) -> None:
        self._send(wire.Hello(os.getpid(), self.guardian.pid, sys.version.split()[0], list_addresses()))
        while not self.leave:
            self._watch_streams()
            for key, _ in self.selector.select(self._pause()):
                # What came before it in this round may have dealt with it, and closed it.
                if self.selector.get_map().get(key.fd) is key:
                    key.data()
            self._obey_some()
            self._forward_output()
            self._flush()
            self._keep_time()

    def _pause(self) -> float:
        if self.commands or self.behind:
            return 0.0
        if self.stacks_until is not None:
            return LOOK_FOR_STACKS_EVERY
        busy = self.preparing.busy or any(not process.drained for process in self.processes.values())
        return LOOK_EVERY if busy else BEAT_EVERY / 2

    def _keep_time(self) -> None:
        now = time.monotonic()
        if now - self.heard > self.lease:
            self.leave = True
        if now - self.beaten >= BEAT_EVERY:
            self.beaten = now
            self._send(wire.Beat())
            self.guardian.reassure(self.lease)
            self.segments.look(lambda: process_tree.find_all(os.environ[process_tree.MARK], os.getpid()))
        self.preparing.keep_time()
        self._end_those_left()
        if self.stacks_until is not None:
            self._collect_stacks()
        elif self.stopping:
            self._end_stop(now)

    def _end_stop(self, now: float) -> None:
        """Until everybody has ended and all is sent; or somebody does not end, and waiting longer would not help."""
        processes = self.processes.values()
        if self.preparing.all_is_sent and all(process.drained for process in processes):
            self._say_bye()
        elif now - self.stopped_at > KILL_TIMEOUT:
            if any(process.alive for process in processes):
                self._say_bye()
            for output, _ in self._list_outputs():
                output.close()  # whoever writes to it cannot be killed; what has been read so far is sent
        elif now - self.killed_at > KILL_REST_EVERY:
            self._kill_rest()

    def _kill_rest(self) -> None:
        """What the processes left behind may print without end, and hold their output open."""
        self.killed_at = time.monotonic()
        # The nursery tells of its workers' ends.
        spare = {self.guardian.pid, self.nursery.pid if self.nursery is not None else self.guardian.pid}
        process_tree.kill_once(os.environ[process_tree.MARK], spare, self.segments.note_held, self.stopped_at)

    # The stream.

    def _hear(self) -> None:
        try:
            data = os.read(0, 1 << 16)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        if not data:
            self.leave = True
            return
        self.heard = time.monotonic()
        self.commands.extend(self.decoder.feed(data))

    def _obey_some(self) -> None:
        """For a moment, so that beats go out however many files of a tree have come."""
        until = time.monotonic() + OBEY_TIMEOUT
        while self.commands and time.monotonic() < until:
            self._obey(self.commands.popleft())
            self.heard = time.monotonic()

    def _obey(self, message: Any) -> None:
        if self.preparing.obey(message):
            return
        if isinstance(message, wire.Lease):
            self.lease = message.seconds
        elif isinstance(message, wire.Spawn):
            self.preparing.stop_listening()
            ahead = time.time() - message.at
            self.ahead = ahead if self.ahead is None else min(self.ahead, ahead)
            self._accept(message)
        elif isinstance(message, wire.Acknowledge):
            self.window.note_acknowledged(message.size)
        elif isinstance(message, wire.Signal):
            self._signal(message.number)
        elif isinstance(message, wire.Stop):
            self._stop(message.stacks)

    def _send(self, message: Any) -> None:
        self.outbox += wire.encode(message)

    def _watch_streams(self) -> None:
        """Facts wait in their socket, and further ones are dropped by who sends them, while the launcher is behind."""
        self._watch(0, selectors.EVENT_READ, self._hear, not self.commands)
        self._watch(1, selectors.EVENT_WRITE, self._flush, bool(self.outbox))
        self._watch(self.facts, selectors.EVENT_READ, self._hear_facts, len(self.outbox) < 2 * OUTBOX_FULL)

    def _watch(self, source: Any, kind: int, act: Any, wanted: bool) -> None:
        watched = source in self.selector.get_map()
        if wanted and not watched:
            self.selector.register(source, kind, act)
        elif watched and not wanted:
            self.selector.unregister(source)

    def _flush(self) -> None:
        try:
            while self.outbox:
                del self.outbox[: os.write(1, self.outbox[: 1 << 18])]
        except BlockingIOError:
            pass
        except OSError:
            self.leave = True

    # Starting.

    def _note_ready(self, setting: wire.PrepareWorkers, python: str) -> None:
        self.setting, self.python = setting, python
        if setting.warm:
            self._start_nursery()

    def _env(self, own: Dict[str, str]) -> Dict[str, str]:
        assert self.setting is not None
        env = {**os.environ, **self.setting.env, **own}
        code = os.path.join(self.folder, "code")
        env["PYTHONPATH"] = os.pathsep.join(filter(None, (code, env.get("PYTHONPATH"))))
        return env

    def _workdir(self) -> Optional[str]:
        assert self.setting is not None
        return self.setting.workdir and os.path.expanduser(self.setting.workdir)

    def _start_nursery(self) -> None:
        assert self.setting is not None
        output = self.nursery_output = Output(os.path.join(self.folder, "output-nursery"))
        start, env = start_file(self.folder), self._env({})
        try:
            self.nursery = Nursery(self.python, start, env, self._workdir(), output.path, self.setting.preload)
        except OSError as error:
            self._send(wire.Fact("nursery_failed", detail={"problem": explain_start(error, env)}))
            return
        self.selector.register(self.nursery.channel, selectors.EVENT_READ, self._hear_nursery)

    def _accept(self, order: wire.Spawn) -> None:
        self.waiting.append(order)
        self._start_waiting()

    def _start_waiting(self) -> None:
        if self.nursery is not None and self.nursery.state == "importing":
            return
        while self.waiting and not self.stopping:
            self._start(self.waiting.pop(0))

    def _start(self, order: wire.Spawn) -> None:
        process = self.processes[order.process_id] = Process(order.process_id, self.folder, order.is_python)
        own = {
            **order.env,
            FACTS_SOCKET: os.path.join(self.folder, "facts"),
            STACKS_FILE: process.stacks,
        }
        if order.is_python and self.nursery is not None and self.nursery.state == "ready":
            self.nursery.order(order.process_id, order.argv, own, process.output.path)
            return
        argv = [self.python, start_file(self.folder), *order.argv] if order.is_python else order.argv
        try:
            process.pid, process.exec_report = spawn(
                argv, self._env(own), self._workdir(), process.output.path, stdin=self.stdin
            )
        except OSError as error:
            self._note_exec_error(process, argv[0], own, error)
            self._ended(process, 127)
            return
        hear = partial(self._hear_exec, process, argv[0], own)
        self.selector.register(process.exec_report, selectors.EVENT_READ, hear)

    def _hear_exec(self, process: Process, program: str, own: Dict[str, str]) -> None:
        assert process.exec_report is not None and process.pid is not None
        self.selector.unregister(process.exec_report)
        error, process.exec_report = read_exec_error(process.exec_report), None
        if error is None:
            self._send(wire.Started(process.process_id, process.pid, warm=False))
        else:
            self._note_exec_error(process, program, own, error)

    def _note_exec_error(self, process: Process, program: str, own: Dict[str, str], error: OSError) -> None:
        process.exec_error = error.errno
        process.output.add(f"launch: cannot start {program}: {explain_start(error, self._env(own))}\n".encode())

    def _hear_nursery(self) -> None:
        assert self.nursery is not None
        messages = self.nursery.hear()
        if messages is None:
            self.selector.unregister(self.nursery.channel)
            return
        for message in messages:
            if "ready" in message:
                self.nursery.state = "ready"
                self._send(wire.Fact("nursery_ready", detail={"seconds": message["ready"]}))
                self._start_waiting()
            elif "failed" in message:
                self._lose_nursery(message["failed"])
            elif "started" in message:
                process_id, pid = message["started"]
                self.processes[process_id].pid = pid
                self._send(wire.Started(process_id, pid, warm=True))
                if self.asked is not None:
                    self.processes[process_id].ask_to_stop(self.asked)
            elif "exited" in message:
                self._reaped(*message["exited"])

    def _lose_nursery(self, problem: str) -> None:
        """Before it was ready: start cold instead. After: its workers died with it."""
        assert self.nursery is not None
        was_ready = self.nursery.state == "ready"
        if self.nursery.state == "failed":
            return
        if self.nursery.channel in self.selector.get_map():
            self.selector.unregister(self.nursery.channel)
        self.nursery.fail()
        assert self.nursery_output is not None
        detail = {"problem": problem, "said": self.nursery_output.last().decode(errors="replace")}
        self._send(wire.Fact("nursery_died" if was_ready else "nursery_failed", detail=detail))
        if not was_ready:
            self._start_waiting()

    # Ending.

    def _wake(self) -> None:
        try:
            self.woken.recv(4096)
        except BlockingIOError:
            pass
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return
            if pid == 0:
                return
            self._reaped(pid, os.waitstatus_to_exitcode(status))

    def _reaped(self, pid: int, code: int) -> None:
        if self.nursery is not None and pid == self.nursery.pid:
            while self.nursery.state != "failed" and self.nursery.channel in self.selector.get_map():
                self._hear_nursery()
            self._lose_nursery(self.nursery.explain_end(code))
            for process in self.processes.values():
                if process.pid is None and process.code is None:
                    self._ended(process, code or 1)
            return
        for process in self.processes.values():
            if process.pid == pid and process.code is None and process.left_with is None:
                if process.exec_report is not None:
                    self.selector.get_key(process.exec_report).data()
                self._note_left(process, code)

    def _note_left(self, process: Process, code: int) -> None:
        """A shell dies of SIGTERM and leaves the program that it runs behind: that is asked then, and has its time."""
        was_abandoned = self.asked == signal.SIGTERM == -code and process.signal_group(signal.SIGTERM)
        if was_abandoned and not self.stopping:
            process.left_with = code
        else:
            self._ended(process, code)

    def _end_those_left(self) -> None:
        for process in self.processes.values():
            if process.left_with is None or process.code is not None:
                continue
            if self.stopping or not process.signal_group(0):
                self._ended(process, process.left_with)

    def _ended(self, process: Process, code: int) -> None:
        self._hear_facts()
        process.code = 126 if process.exec_error == errno.EACCES else code
        tail = process.output.last()
        self._send(wire.Exited(process.process_id, process.code, time.time(), self.ahead, tail))

    def _hear_facts(self) -> None:
        for _ in range(FACTS_AT_ONCE):
            try:
                data = self.facts.recv(1 << 17)
            except (BlockingIOError, InterruptedError):
                return
            try:
                self._note_fact(**json.loads(data))
            except (ValueError, KeyError, TypeError, RecursionError):
                continue  # any process of the run may write here, in any way it likes

    def _note_fact(self, name: str, process_id: int, pid: int, detail: Dict[str, Any], dropped: int = 0) -> None:
        """`dropped` is how many the process has given up sending so far."""
        process = self.processes[process_id]
        is_its_own = process.pid in (pid, None)
        if is_its_own:
            process.dropped_facts = max(process.dropped_facts, int(dropped))
        if name == "hello":
            process.has_begun, process.can_dump = True, is_its_own
        elif name == "leaving":
            pass  # said only for the sake of `dropped`
        elif is_its_own or name not in OF_ITSELF:
            if is_deeper(detail, MAX_FACT_DEPTH):
                detail = {"problem": f"what it said was nested more than {MAX_FACT_DEPTH} deep"}
            self._send(wire.Fact(str(name), process_id, dict(detail)))

    def _forward_output(self) -> None:
        """A chunk of each program in turn, so that a chatty one holds no other up, until the link has enough to do.

        What the link does not take is collected all the same: a program must not wait for it.
        """
        sources = self._list_outputs()
        if self.nursery_output is not None:
            self.nursery_output.skim()
        while sources and len(self.outbox) < OUTBOX_FULL and self.window.room:
            for source in list(sources):
                output, make_message = source
                if data := output.read(self.window.room):
                    self._send(make_message(data))
                    self.window.note_sent(len(data))
                else:
                    sources.remove(source)
        for output, _ in sources:
            output.collect()
        self.behind = any(output.has_more for output, _ in sources)
        self._note_drained()

    def _list_outputs(self) -> List[Tuple[Output, Callable[[bytes], Any]]]:
        """What is printed, and the message that takes a chunk of it to the launcher."""
        found: List[Tuple[Output, Callable[[bytes], Any]]] = [
            (process.output, partial(wire.Output, process.process_id))
            for process in self.processes.values()
            if not process.drained
        ]
        if self.preparing.setup_output is not None:
            found.append((self.preparing.setup_output, wire.SetupOutput))
        return found

    def _note_drained(self) -> None:
        """What an ended process left behind may still print; until the run ends this is followed as well."""
        for process in self.processes.values():
            output = process.output
            is_over = process.code is not None and output.is_sent and not (output.has_more or output.has_writer)
            if is_over and not process.drained:
                process.drained = True
                if process.dropped_facts or output.dropped:
                    detail = {"facts": process.dropped_facts, "bytes": output.dropped}
                    self._send(wire.Fact("dropped", process.process_id, detail))
                self._send(wire.Drained(process.process_id))

    def _signal(self, number: int) -> None:
        self.asked = number
        self._cancel_waiting()
        for process in self.processes.values():
            process.ask_to_stop(number)

    def _cancel_waiting(self) -> None:
        """What has not started yet, because the nursery is not ready, need not start any more."""
        for order in self.waiting:
            self.processes[order.process_id] = Process(order.process_id, self.folder)
            self._ended(self.processes[order.process_id], -signal.SIGTERM)
        self.waiting.clear()

    def _stop(self, stacks: bool) -> None:
        self.stopping = True
        self.stopped_at = time.monotonic()
        if all(process.code in (0, EXIT_PREEMPTED) for process in self.processes.values()):
            self.segments.forget()
        self._cancel_waiting()
        self._end_those_left()
        for process in self.processes.values():
            if process.pid is None and process.code is None:
                self._ended(process, -signal.SIGKILL)
            if stacks and process.can_dump:
                process.signal(DUMP_SIGNAL)
        self.stacks_until = time.monotonic() + (STACKS_TIMEOUT if stacks else 0)
        self._collect_stacks()

    def _collect_stacks(self) -> None:
        """Wait for the dumps that were asked for, send them, and kill."""
        assert self.stacks_until is not None
        asked = [p for p in self.processes.values() if p.can_dump and p.alive]
        if time.monotonic() < self.stacks_until and not all([p.stacks_are_whole() for p in asked]):
            return
        self.stacks_until = None
        if self.segments.any_new:
            self._kill_rest()  # and with it these, which then can still be asked what they hold
        for process in self.processes.values():
            if data := process.read_stacks():
                self._send(wire.Stacks(process.process_id, data))
            process.signal(signal.SIGKILL)
        self.killed_at = time.monotonic()

    def _say_bye(self) -> None:
        survivors = process_tree.kill_all(os.environ[process_tree.MARK], {self.guardian.pid}, self.segments.note_held)
        self._send(wire.Bye(survivors))
        os.set_blocking(1, True)
        self._flush()
        self.leave = True


def is_deeper(value: Any, depth: int) -> bool:
    if not isinstance(value, (dict, list)):
        return False
    inner = value.values() if isinstance(value, dict) else value
    return depth == 0 or any(is_deeper(each, depth - 1) for each in inner)
