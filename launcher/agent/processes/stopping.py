"""Stop all processes: collect their stacks, kill them, wait for their ends and their last output; then say Bye, or
stay for another attempt."""

from __future__ import annotations

import os
import signal
import time
from typing import Callable, Set

from hostmesh.launcher.agent.children import process_tree
from hostmesh.launcher.agent.leftovers.shared_memory import SharedMemory
from hostmesh.launcher.agent.link import Link
from hostmesh.launcher.agent.processes.forwarding import Forwarding
from hostmesh.launcher.agent.processes.registry import Phase, Processes
from hostmesh.launcher.agent.processes.starter import Starter
from hostmesh.launcher.protocol import wire
from hostmesh.worker.identity import DUMP_SIGNAL, EXIT_PREEMPTED

STACKS_TIMEOUT = 0.5
KILL_TIMEOUT = 5.0
# The processes themselves are given a moment to be gone: most leave nothing behind.
KILL_REST_EVERY = 0.05


class Stopping:
    """Moves `processes.phase` from RUNNING to DONE, or around to RUNNING, one step with each call of `go_on`."""

    def __init__(
        self,
        link: Link,
        processes: Processes,
        starter: Starter,
        forwarding: Forwarding,
        shared_memory: SharedMemory,
        guardian: int,
    ) -> None:
        self._link, self._processes, self._starter, self._forwarding = link, processes, starter, forwarding
        self._shared_memory, self._guardian = shared_memory, guardian
        self._mark = os.environ[process_tree.MARK]
        self._began = self._killed_at = self._stacks_until = 0.0
        self._stays = False
        self.on_clear: Callable[[], None] = lambda: None

    def begin(self, order: wire.Stop) -> None:
        """The last word counts: a run may end while it clears its hosts for another attempt."""
        self._stays, stacks = order.stays, order.stacks
        if self._processes.phase is not Phase.RUNNING:
            return
        self._began = time.monotonic()
        self._processes.phase = Phase.COLLECTING_STACKS
        if all(process.code in (0, EXIT_PREEMPTED) for process in self._processes):
            self._shared_memory.forget()
        self._starter.cancel_waiting()
        self._processes.end_leaving()
        self._processes.end_ordered(-signal.SIGKILL)
        for process in self._processes:
            process.empty_stacks()
            if stacks and process.can_dump:
                process.signal(DUMP_SIGNAL)
        self._stacks_until = time.monotonic() + (STACKS_TIMEOUT if stacks else 0)
        self._collect_stacks()

    def go_on(self) -> None:
        if self._processes.phase is Phase.COLLECTING_STACKS:
            self._collect_stacks()
        elif self._processes.phase is Phase.KILLING:
            self._await_ends()

    def _collect_stacks(self) -> None:
        """Wait for the dumps that were asked for, send them, and kill."""
        dumping = [process for process in self._processes if process.can_dump and process.is_alive]
        # A list and no generator: every one of them must be looked at each time.
        if time.monotonic() < self._stacks_until and not all([process.stacks_are_whole() for process in dumping]):
            return
        self._processes.phase = Phase.KILLING
        if self._shared_memory.any_new:
            self._kill_rest()  # kills these processes too, and notes first what they hold
        for process in self._processes:
            if data := process.read_stacks():
                self._link.send(wire.Stacks(process.process_id, data))
            process.signal(signal.SIGKILL)
        self._killed_at = time.monotonic()

    def _await_ends(self) -> None:
        """Until everybody has ended and all is sent; or somebody does not end, and waiting longer would not help."""
        now = time.monotonic()
        if self._forwarding.all_is_sent:
            self._finish()
        elif now - self._began > KILL_TIMEOUT:
            if any(process.is_alive for process in self._processes):
                self._say_bye()
            self._forwarding.close()
        elif now - self._killed_at > KILL_REST_EVERY:
            self._kill_rest()

    def _kill_rest(self) -> None:
        """What the processes left behind may print without end, and hold their output open."""
        self._killed_at = time.monotonic()
        process_tree.kill_once(self._mark, self._spared(), self._shared_memory.note_held, self._began)

    def _spared(self) -> Set[int]:
        """The nursery, too: it tells of its workers' ends, and forks those of the next attempt."""
        nursery = self._starter.nursery_pid
        return {self._guardian} if nursery is None else {self._guardian, nursery}

    def _finish(self) -> None:
        if self._stays:
            self._clear()
        else:
            self._say_bye()

    def _clear(self) -> None:
        survivors = process_tree.kill_all(self._mark, self._spared(), self._shared_memory.note_held)
        self._shared_memory.remove()
        self._starter.renew_nursery()
        self._processes.clear()
        self.on_clear()
        self._link.send(wire.Cleared(survivors))

    def _say_bye(self) -> None:
        survivors = process_tree.kill_all(self._mark, {self._guardian}, self._shared_memory.note_held)
        self._link.send(wire.Bye(survivors))
        self._link.flush_all()
        self._processes.phase = Phase.DONE
