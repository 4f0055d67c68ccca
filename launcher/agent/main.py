"""The agent: one loop that joins its link to the launcher, its duties before the start, and the processes it owns."""

from __future__ import annotations

import os
import selectors
import signal
import socket
import sys
from typing import Any, Callable, Dict, List, Optional

from hostmesh.launcher.agent.children import process_tree
from hostmesh.launcher.agent.compiled.child import CompiledChild
from hostmesh.launcher.agent.compiled.place import used_path
from hostmesh.launcher.agent.executing import Executing
from hostmesh.launcher.agent.guardian import Guardian, guard, remove
from hostmesh.launcher.agent.leftovers.network import bring_back
from hostmesh.launcher.agent.leftovers.shared_memory import SharedMemory
from hostmesh.launcher.agent.leftovers.snapshots import make_snapshots
from hostmesh.launcher.agent.link import BEAT_EVERY, Link, watch
from hostmesh.launcher.agent.notices import Notices
from hostmesh.launcher.agent.observing.examining import Examining
from hostmesh.launcher.agent.observing.looks import Observing
from hostmesh.launcher.agent.processes.facts import ask
from hostmesh.launcher.agent.processes.forwarding import Forwarding
from hostmesh.launcher.agent.processes.registry import Phase, Processes
from hostmesh.launcher.agent.processes.starter import Starter
from hostmesh.launcher.agent.processes.stopping import Stopping
from hostmesh.launcher.agent.startup.duties import Duties
from hostmesh.launcher.agent.startup.ports import list_addresses
from hostmesh.launcher.protocol import wire

OF_COMPILED = (wire.ShareCompiled, wire.FindCompiled, wire.ReadCompiled, wire.StoreCompiled)
POLL_OUTPUT_EVERY = 0.03
POLL_STACKS_EVERY = 0.01


def main(folder: str) -> None:
    mark = os.environ[process_tree.MARK]
    for earlier in process_tree.list_earlier(mark):
        process_tree.kill_marked(earlier)
    shared_memory = SharedMemory(folder)
    snapshots = make_snapshots(folder)
    try:
        guardian = guard(mark, folder, shared_memory)
    except OSError:
        remove(folder)  # there is no guardian that would do it
        raise
    agent = Agent(folder, guardian, shared_memory, snapshots)
    try:
        agent.run()
    except Exception:
        import traceback

        traceback.print_exc()  # the launcher shows what an agent said last
        sys.stderr.flush()
    finally:
        process_tree.kill_all(mark, {guardian.pid}, shared_memory.note_held)
        bring_back(folder)
        if os.getppid() != guardian.pid:
            remove(folder)  # the guardian, which would do it, is dead
        os._exit(0)


class Agent:
    def __init__(
        self, folder: str, guardian: Guardian, shared_memory: SharedMemory, snapshots: Optional[str] = None
    ) -> None:
        self.guardian, self.shared_memory = guardian, shared_memory
        self.selector = selectors.DefaultSelector()
        self.link = Link(self.selector)
        self.processes = Processes(folder, self.link.send)
        self.starter = Starter(folder, self.selector, self.link.send, self.processes, snapshots)
        self.duties = Duties(folder, self.selector, self.link.send, self.starter.note_ready, snapshots)
        self.forwarding = Forwarding(self.link, self.processes, self.starter, self.duties)
        self.stopping = Stopping(self.link, self.processes, self.starter, self.forwarding, shared_memory, guardian.pid)
        self.notices = Notices(self.duties.tasks, self.link.send)
        self.observing = Observing(self.processes, self.link.send)
        self.examining = Examining(self.processes, self.observing, self.link.send)
        self.compiled = CompiledChild(self.selector, self.link.send, lambda: self.starter.compiled, used_path(folder))
        self.executing = Executing(self.selector, self.link)
        self.processes.before_exit = self.observing.look_last
        self.stopping.on_clear = self.observing.forget_all
        self.commands: Dict[type, Callable[[Any], None]] = {
            wire.Spawn: self._spawn,
            wire.Signal: self._signal,
            wire.Examine: lambda _: self.examining.begin(),
            wire.AskRows: lambda order: ask(folder, order.process_id, order.question),
            wire.Stop: self.stopping.begin,
            wire.WatchNotices: self.notices.begin,
            wire.Execute: self.executing.begin,
            wire.CancelExecute: self.executing.cancel,
            **dict.fromkeys(OF_COMPILED, self.compiled.obey),
        }
        self.end_signals: List[int] = []
        self._handle_signals()

    def _handle_signals(self) -> None:
        """Handlers do nothing but wake the loop."""
        self.woken, self.waker = socket.socketpair()
        for end in (self.woken, self.waker):
            end.setblocking(False)
        signal.set_wakeup_fd(self.waker.fileno(), warn_on_full_buffer=False)
        for number in (signal.SIGTERM, signal.SIGUSR1, signal.SIGINT, signal.SIGHUP):
            signal.signal(number, self._on_end_signal)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        self.selector.register(self.woken, selectors.EVENT_READ, self._wake)

    def _on_end_signal(self, number: int, _: Any) -> None:
        self.end_signals.append(number)

    @property
    def is_over(self) -> bool:
        return self._is_told_to_end() or self.link.is_over or self.processes.phase is Phase.DONE

    def _is_told_to_end(self) -> bool:
        """A host that is shut down, or taken away, sends SIGTERM first. Where processes save when they are asked to,
        that is a notice, and the launcher asks them; a second signal, or the death of the guardian, is meant as it
        is."""
        if not self.end_signals:
            return False
        is_notice = self.end_signals in ([signal.SIGTERM], [signal.SIGUSR1]) and os.getppid() == self.guardian.pid
        if is_notice and self.processes.facts.any_saves:
            self.notices.tell(f"its agent got {signal.Signals(self.end_signals[0]).name}")
            return False
        return True

    def run(self) -> None:
        self.link.send(wire.Hello(os.getpid(), self.guardian.pid, sys.version.split()[0], list_addresses()))
        while not self.is_over:
            self.link.watch()
            facts = self.processes.facts
            watch(self.selector, facts.socket, selectors.EVENT_READ, facts.hear, self.link.takes_facts)
            self.executing.watch()
            for key, _ in self.selector.select(self._pause()):
                # What came before it in this round may have dealt with it, and closed it.
                if self.selector.get_map().get(key.fd) is key:
                    key.data()
            self.link.pass_commands(self._obey)
            self.forwarding.forward()
            self.link.flush()
            self._keep_time()

    def _pause(self) -> float:
        """For how long the loop may wait for something to happen."""
        if self.link.has_commands or self.forwarding.is_behind:
            return 0.0
        if self.processes.phase is Phase.COLLECTING_STACKS or self.examining.is_busy:
            return POLL_STACKS_EVERY
        return POLL_OUTPUT_EVERY if self.duties.setup_is_busy or self.forwarding.any_not_drained else BEAT_EVERY / 2

    def _keep_time(self) -> None:
        if self.link.keep_time():
            self.guardian.reassure(self.link.lease)
            self.processes.look_at_memory()
            self.observing.look_at_all()
            self.shared_memory.note_new(lambda: process_tree.find_all(os.environ[process_tree.MARK], os.getpid()))
        self.duties.keep_time()
        self.notices.keep_time()
        self.starter.keep_time()
        self.processes.end_leaving()
        self.examining.go_on()
        self.stopping.go_on()

    def _obey(self, message: Any) -> None:
        command = self.commands.get(type(message))
        if command is not None:
            command(message)
        else:
            self.duties.obey(message)

    def _spawn(self, order: wire.Spawn) -> None:
        self.duties.stop_listening()
        self.processes.note_launcher_time(order.at)
        self.starter.start(order)

    def _signal(self, order: wire.Signal) -> None:
        self.processes.stop_signal = order.number
        self.starter.cancel_waiting()
        self.processes.ask_to_stop(order.number)

    def _wake(self) -> None:
        """A signal has come; reap whoever has ended."""
        try:
            self.woken.recv(4096)
        except BlockingIOError:
            pass
        for pid, code in process_tree.reap():
            if not self.starter.note_reaped(pid, code) and not self.executing.note_reaped(pid, code):
                self.processes.note_reaped(pid, code)
