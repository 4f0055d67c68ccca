"""Take what programs print to the launcher, as fast as the link allows and in turn."""

from __future__ import annotations

from functools import partial
from typing import Any, Callable, List, Tuple

from hostmesh.launcher.agent.link import Link
from hostmesh.launcher.agent.processes.output import Output
from hostmesh.launcher.agent.processes.process import Process, ProcessState
from hostmesh.launcher.agent.processes.registry import Processes
from hostmesh.launcher.agent.processes.starter import Starter
from hostmesh.launcher.agent.startup.duties import Duties
from hostmesh.launcher.protocol import wire

# An output, and what makes a message of a chunk of it.
Source = Tuple[Output, Callable[[bytes], Any]]


class Forwarding:
    """`is_behind` while a program has printed more than was read of it."""

    def __init__(self, link: Link, processes: Processes, starter: Starter, duties: Duties) -> None:
        self._link, self._processes, self._starter, self._duties = link, processes, starter, duties
        self.is_behind = False

    @property
    def any_not_drained(self) -> bool:
        return any(process.state is not ProcessState.DRAINED for process in self._processes)

    @property
    def all_is_sent(self) -> bool:
        return self._duties.setup_output_is_sent and not self.any_not_drained

    def forward(self) -> None:
        """A chunk of each program in turn, so that a chatty one holds no other up, until the link has enough to do.

        What the link does not take is collected all the same: a program must not wait for it.
        """
        sources = self._list_sources()
        if self._starter.nursery_output is not None:
            self._starter.nursery_output.skim()
        while sources and self._link.takes_output:
            for source in list(sources):
                output, make_message = source
                if not self._link.window.room:
                    break  # reading 0 bytes would return nothing, as from a pipe that nobody writes to any more
                if data := output.read(self._link.window.room):
                    self._link.send(make_message(data))
                    self._link.window.note_sent(len(data))
                else:
                    sources.remove(source)
        for output, _ in sources:
            output.collect()
        self.is_behind = any(output.has_more for output, _ in sources)
        for process in self._processes:
            self._note_if_drained(process)

    def close(self) -> None:
        """Whoever still writes cannot be killed: read no more, and send what has been read so far."""
        for output, _ in self._list_sources():
            output.close()

    def _list_sources(self) -> List[Source]:
        found: List[Source] = [
            (process.output, partial(wire.Output, process.process_id))
            for process in self._processes
            if process.state is not ProcessState.DRAINED
        ]
        if self._duties.setup_output is not None:
            found.append((self._duties.setup_output, wire.SetupOutput))
        return found

    def _note_if_drained(self, process: Process) -> None:
        """What an ended process left behind may still print; until the run ends this is followed as well."""
        output = process.output
        if process.state is not ProcessState.ENDED or not output.is_sent or output.has_more or output.has_writer:
            return
        process.state = ProcessState.DRAINED
        if process.dropped_facts or output.dropped:
            detail = {"facts": process.dropped_facts, "bytes": output.dropped}
            self._link.send(wire.Fact("dropped", process.process_id, detail))
        self._link.send(wire.Drained(process.process_id))
