"""The rows of a stream as a loader needs them: in order only, with a position in each shard as the state."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Any, NoReturn

import jax
from jax.sharding import Sharding

from hostmesh.worker.assembly.layout import RowSet
from hostmesh.worker.errors import DataError, DisagreementError
from hostmesh.worker.ordering.schedule import Schedule
from hostmesh.worker.process.coordination import exchange, name_processes, share_failure
from hostmesh.worker.reading.transforms import Transforms
from hostmesh.worker.streams.has_next import GlobalHasNext
from hostmesh.worker.streams.reader import StreamReader
from hostmesh.worker.streams.row_shards import RowShards
from hostmesh.worker.streams.state import SHARDED, LoaderState, drop_large_positions, split_state
from hostmesh.worker.streams.stream import Stream, StreamPart

SAY_SHARDED = "give the loader sharded=True"
# Seconds that a process waits for one whose shards take longer to be read again.
SKIPPING_TIMEOUT = 24 * 3600.0


class StreamRows:
    compares_replicas = False  # at every step, and raises on all processes where they differ

    def __init__(self, stream: Stream, schedule: Schedule, transforms: Transforms, sharding: Sharding) -> None:
        if stream.part is not None and not stream.part.may_be_whole:
            raise DataError(f"{stream.name} {_explain_part(stream.part)}")
        if schedule.batch_size % stream.shards:
            wanted = f"wanted a batch_size that is a multiple, found {schedule.batch_size}"
            raise DataError(f"{stream.name} has {stream.shards} shards: {wanted}")
        self._prepare(stream, schedule, transforms, sharding)
        self._row_shards = RowShards.even(schedule.batch_size, stream.shards)

    def _prepare(self, stream: Stream, schedule: Schedule, transforms: Transforms, sharding: Sharding) -> None:
        self.stream, self.schedule, self._transforms = stream, schedule, transforms
        self._global_has_next = GlobalHasNext(sharding, need_all=schedule.tail != "pad")
        self._reader: StreamReader | None = None
        self._positions: dict[str, Any] = {}  # in each shard, on the way to the loader's step
        self._own_shards: set[str] = set()  # those whose positions this process saves

    @property
    def total(self) -> int | None:
        """Steps at most: how many a stream has is known at its end."""
        return self.schedule.steps

    @property
    def left_out(self) -> None:
        return None

    def describe(self) -> dict[str, Any]:
        """What gives a step its meaning: equal on all processes, and saved with it."""
        schedule, stream = self.schedule, self.stream
        return {
            "batch_size": schedule.batch_size,
            "tail": schedule.tail,
            "stream": stream.name,
            "shards": stream.shards,
        }

    def describe_steps(self) -> dict[str, Any]:
        """Its records have no numbers, so that which of them a step has is not known."""
        return {"stream": self.stream.name, "batch_size": self.schedule.batch_size}

    def find_content(self, data_spec: Mapping[str, Any]) -> None:
        return None

    def record_ids(self, step: int) -> NoReturn:
        raise TypeError("the records of a stream have no ids")

    def reader(self, row_sets: Sequence[RowSet], step: int, ahead: int) -> StreamReader:
        """A reader that stands just before this step. All processes call it together.

        Processes that read the same shard must read the same records. An unseeded shuffle is found here.
        """
        schedule, name = self.schedule, self.stream.name
        reader = self._make_reader(row_sets, ahead)
        with share_failure("skip to a later batch of a stream", SKIPPING_TIMEOUT):
            reader.skip(step, self._positions)
        with share_failure("load the first batch of a stream"):
            has_next, fingerprints = reader.has_next(), reader.fingerprint_next()
            if step == 0 and not has_next:
                raise DataError(f"{name} gives no full batch of {schedule.batch_size}; wanted a smaller one")
        said = "" if self.stream.part is None else self.stream.part.said_by
        mine: dict[str, Any] = {"has_next": has_next, "fingerprints": fingerprints, "part": said}
        found = exchange("load the first batch of a stream", mine)
        self._check_first(found)
        self._global_has_next.begin([value["has_next"] for value in found])
        # Of the processes that read a shard the first one saves its position.
        before = [value["fingerprints"] for value in found[: jax.process_index()]]
        self._own_shards = set(fingerprints).difference(*before)
        self._reader = reader
        return reader

    def _make_reader(self, row_sets: Sequence[RowSet], ahead: int) -> StreamReader:
        schedule = self.schedule
        options = self._row_shards, schedule.epochs, schedule.tail, self._transforms
        return StreamReader(self.stream, *options, row_sets, ahead)

    def _check_first(self, found: Sequence[Mapping[str, Any]]) -> None:
        """`found` is what each process tells of its first records."""
        by_process = [value["fingerprints"] for value in found]
        _require_same_records(self.stream.name, by_process, [value["part"] for value in found])

    def has_next(self) -> bool:
        """Whether all processes go on with another step."""
        return self._global_has_next.result()

    def note_taken(self, has_next: bool) -> None:
        """A batch was taken; `has_next` says whether this process has another one."""
        self._global_has_next.reduce(has_next)

    def state(self, step: int) -> LoaderState:
        found = self._find_positions(step)
        own = {shard: found[shard] for shard in found if shard in self._own_shards}
        return {"step": step, "shards": drop_large_positions(own, self.stream)}

    def step_of(self, state: LoaderState) -> Any:
        """The step of a state that fits this loader."""
        if isinstance(state, Mapping) and SHARDED in state:
            raise DataError(f"{self.stream.name}: the state is of a loader with sharded=True; wanted one without")
        return split_state(state)[0]

    def restore(self, state: LoaderState) -> None:
        self._positions = split_state(state)[1]
        self._own_shards = set(self._positions) if jax.process_index() == 0 else set()

    def close(self, step: int) -> None:
        """Forgets the reader, and keeps the positions from which another one reaches this step."""
        self._positions, self._reader = self._find_positions(step), None

    def _find_positions(self, step: int) -> dict[str, Any]:
        return self._positions if self._reader is None else self._reader.find_positions(step)


def _require_same_records(name: str, by_process: Sequence[Mapping[str, str]], parts: Sequence[str]) -> None:
    """`by_process` has the fingerprint of the next records of each shard that a process reads; `parts` the step of each
    pipeline, if there is one, by which it is cut."""
    for shard in sorted({shard for fingerprints in by_process for shard in fingerprints}, key=int):
        readers = [process for process, fingerprints in enumerate(by_process) if shard in fingerprints]
        holders = group_by([by_process[process][shard] for process in readers], readers)
        cuts = group_by([parts[process] for process in readers], readers)
        if len(cuts) > 1:
            said = ", ".join(f"{name_processes(ids)} with {part or 'none'}" for part, ids in cuts.items())
            raise DisagreementError(f"{name} is sharded by process already: {said}; {SAY_SHARDED}, or leave it out")
        if len(holders) > 1:
            apart = " and ".join(map(name_processes, holders.values()))
            raise DisagreementError(
                f"{name}: {apart} read different records in shard {shard}, where they need the same ones. Either give"
                " every shuffle a seed that is the same on all processes; or, if the stream is sharded by process"
                f" already, {SAY_SHARDED}"
            )


def group_by(values: Sequence[str], processes: Sequence[int]) -> dict[str, list[int]]:
    """The processes that have each value."""
    found: defaultdict[str, list[int]] = defaultdict(list)
    for value, process in zip(values, processes, strict=True):
        found[value].append(process)
    return dict(found)


def _explain_part(part: StreamPart) -> str:
    found = f"reads only part {part.index} of {part.count}, as its {part.said_by} says"
    return f"{found}, wanted all records: {SAY_SHARDED}, or {part.how_to_remove} and let the loader shard"
