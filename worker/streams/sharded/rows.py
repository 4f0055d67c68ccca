"""The rows of a stream that is sharded already: each process fills the rows that its devices hold."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from jax.sharding import Sharding

from hostmesh.worker.assembly.layout import RowSet
from hostmesh.worker.errors import DataError, DisagreementError
from hostmesh.worker.ordering.schedule import Schedule
from hostmesh.worker.process.coordination import name_processes
from hostmesh.worker.reading.transforms import Transforms
from hostmesh.worker.streams.row_shards import RowShards
from hostmesh.worker.streams.sharded.groups import find_groups
from hostmesh.worker.streams.sharded.overlap import OverlapCheck
from hostmesh.worker.streams.sharded.reader import ShardedReader
from hostmesh.worker.streams.sharded.replicas import ReplicaCheck, require_same_in_groups
from hostmesh.worker.streams.state import SHARDED, LoaderState, split_state
from hostmesh.worker.streams.stream import Stream
from hostmesh.worker.streams.stream_rows import StreamRows, group_by


class ShardedRows(StreamRows):
    """One shard for each group of processes that hold the same rows; a process reads its own only."""

    def __init__(
        self,
        stream: Stream,
        schedule: Schedule,
        transforms: Transforms,
        shardings: Sequence[Sharding],
        loading: str,
        verify: bool,
    ) -> None:
        if stream.shards != 1:
            wanted = "wanted one: every process has a stream of its own"
            raise DataError(f"{stream.name} has {stream.shards} shards, with sharded=True {wanted}")
        self._groups = find_groups(shardings, schedule.batch_size, loading)
        self._prepare(_as_own_shard(stream, len(self._groups)), schedule, transforms, shardings[0])
        self._row_shards = RowShards.of([group.rows for group in self._groups])
        self._verify = verify
        has_replicas = any(len(group.processes) > 1 for group in self._groups)
        self._replicas = ReplicaCheck(self._groups, shardings[0], stream.name) if has_replicas else None
        self.compares_replicas = has_replicas
        differ = verify and len(self._groups) > 1
        self._overlap = OverlapCheck(self._groups, stream.name) if differ else None

    def describe(self) -> dict[str, Any]:
        """The number of shards is part of it: the rows of a shard come from a stream that no other process has."""
        found = super().describe()
        shards = found.pop("shards")
        return {**found, SHARDED: f"{shards} shards, each read by the processes that hold its rows"}

    def has_next(self) -> bool:
        if self._replicas is not None:
            self._replicas.check()
        return super().has_next()

    def note_taken(self, has_next: bool) -> None:
        super().note_taken(has_next)
        assert isinstance(self._reader, ShardedReader)
        if self._replicas is not None:
            self._replicas.send(self._reader.upcoming.popleft())
        if self._overlap is not None:
            self._overlap.note_taken(self._reader.hashes)

    def state(self, step: int) -> LoaderState:
        found = super().state(step)
        assert isinstance(found, Mapping)
        return {**found, SHARDED: len(self._groups)}

    def step_of(self, state: LoaderState) -> Any:
        if isinstance(state, Mapping) and (saved := state.get(SHARDED)) != len(self._groups):
            found = "of a loader without sharded=True" if saved is None else f"of {saved} shards"
            wanted = f"wanted one of {len(self._groups)}, as many as there are processes that hold different rows"
            raise DataError(f"{self.stream.name}: the state is {found}; {wanted}: each shard is a stream of its own")
        return split_state(state)[0]

    def _make_reader(self, row_sets: Sequence[RowSet], ahead: int) -> ShardedReader:
        schedule = self.schedule
        options = self._row_shards, schedule.epochs, schedule.tail, self._transforms
        compares, hashed = self._replicas is not None, 0
        if self._overlap is not None:
            self._overlap.begin()
            hashed = self._overlap.most
        return ShardedReader(self.stream, *options, row_sets, ahead, compares=compares, hashed=hashed)

    def _check_first(self, found: Sequence[Mapping[str, Any]]) -> None:
        fingerprints = ["".join(value["fingerprints"].values()) for value in found]
        require_same_in_groups(self._groups, fingerprints, self.stream.name)
        if self._verify:
            self._require_different_groups(found, fingerprints)

    def _require_different_groups(self, found: Sequence[Mapping[str, Any]], fingerprints: Sequence[str]) -> None:
        """Those that have come to their end have no records to compare."""
        firsts = [group.processes[0] for group in self._groups]
        firsts = [process for process in firsts if found[process]["has_next"]]
        for processes in group_by([fingerprints[process] for process in firsts], firsts).values():
            if len(processes) > 1:
                raise DisagreementError(
                    f"{self.stream.name}: {name_processes(processes)} give the same records: the stream is not sharded,"
                    " and sharded=True wants one that is. Shard it by process, or leave out sharded=True and let the"
                    " loader shard; where equal records are meant, verify=False"
                )


def _as_own_shard(stream: Stream, shards: int) -> Stream:
    """The stream of this process as one of so many shards, whatever number that has."""
    begin, rewind = stream.open, stream.rewind
    return replace(
        stream,
        open=lambda shard, of: begin(0, 1),
        shards=shards,
        rewind=None if rewind is None else lambda shard: rewind(0),
        part=None,
    )
