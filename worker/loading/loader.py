"""The one way rows become global arrays."""

from __future__ import annotations

import time
import weakref
import zlib
from collections import defaultdict
from itertools import count
from typing import Any

import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec, Sharding
from numpy.typing import NDArray

from hostmesh.worker.coordination import exchange, name_processes, require_same, share_failure
from hostmesh.worker.distributed import identity_of_itself, require_joined
from hostmesh.worker.errors import DataError, DisagreementError
from hostmesh.worker.loading.layout import STRATEGIES, Layout
from hostmesh.worker.loading.order import Order
from hostmesh.worker.loading.pipeline import Pipeline
from hostmesh.worker.loading.reader import Collate, Map, SourceFeed, Transforms
from hostmesh.worker.loading.schedule import Schedule
from hostmesh.worker.mesh import make_mesh
from hostmesh.worker.process.freed_memory import keep_freed_memory
from hostmesh.worker.sources import as_source
from hostmesh.worker.streams.reader import StreamFeed
from hostmesh.worker.streams.state import LoaderState, bound_places, split_state
from hostmesh.worker.streams.stream import Stream
from hostmesh.worker.streams.vote import Vote
from hostmesh.worker.verify.comparison import Comparison
from hostmesh.worker.verify.content import Content
from hostmesh.worker.verify.fingerprint import describe_source

# Seconds that a process waits for one whose shards take longer to be read again.
SKIPPING_TIMEOUT = 24 * 3600.0


class Loader:
    """Global batches, the same for every number of processes and devices and every loading strategy.

    `for batch in loader` goes on from `loader.step`; after the last batch the next `for` begins again, as over a list.

    - `source`: a spec string, arrays, an object with `__len__` and `read(ids)` or `__getitem__`, a library's dataset,
      or a `hostmesh.Stream`.
    - `mesh`: its axes in `spec` split the batch, the first unless told; or a sharding. A tree of either is for rows
      whose arrays are cut differently.
    - `map(block)` or `map(block, ids, rng)` changes a block of rows; `rng` depends on the global position only.
    - `collate(records)` or `collate(records, ids, rng)` makes a block of a list of records: for rows that need padding
      to one length.
    - `loading`: `per_process` reads what this process's devices need; `per_device` reads for each device, in threads;
      `global` reads all rows everywhere; `reshard` reads an equal share, and the devices exchange rows.
    - `tail`: `carry`, the remainder of an epoch begins the next; `pad`, with a boolean `mask`; or `drop`. What the last
      epoch leaves over, or with `drop` each, is in no batch: `loader.left_out` records.
    - `prefetch`: batches read ahead by a thread, 0 for none; `device_prefetch`: those put on the devices ahead.
    - `verify`: compare all of the data between processes, not only a few records; a thread does it beside training.
    """

    def __init__(
        self,
        source: Any,
        mesh: Any = None,
        batch_size: int = 128,
        *,
        spec: Any = None,
        seed: int = 0,
        shuffle: bool = True,
        epochs: int | None = None,
        steps: int | None = None,
        map: Map | None = None,
        collate: Collate | None = None,
        loading: str = "per_process",
        tail: str = "carry",
        prefetch: int = 2,
        device_prefetch: int = 1,
        verify: bool = True,
    ) -> None:
        require_joined("make a loader")
        self.step = 0
        self.waited = 0.0  # seconds in which the next batch was not there yet
        self._pipeline: Pipeline | None = None
        self._stream_feed: StreamFeed | None = None
        self._places: dict[str, Any] = {}  # in the shards of a stream, on the way to `step`
        self._answers_for: set[str] = set()  # those whose places this process knows and saves
        self._settled = self._ended = False
        with share_failure("make a loader"):
            _check_choices(loading, prefetch, device_prefetch)
            if identity_of_itself() is not None:
                keep_freed_memory()  # in a process that `launch` started; any other may have its own ideas
            self.source = as_source(source)
            is_stream = isinstance(self.source, Stream)
            self._shardings = _shardings(mesh, spec)
            self._tiers = prefetch, device_prefetch
            self._work = Transforms(map, collate, seed)
            length = batch_size if isinstance(self.source, Stream) else len(self.source)
            self.schedule = Schedule(length, batch_size, tail, epochs, steps)
            self._layout = Layout(self._shardings, batch_size, loading, tail == "pad", prefetch + device_prefetch)
            self._order = None if is_stream else Order(length, seed, shuffle)
            self._vote = self._make_vote()
            self.data_spec = self._describe()
            self._comparison = Comparison(self.source.name, self._content() if verify else None)
        cut = [_describe_sharding(sharding) for sharding in jax.tree_util.tree_leaves(self._shardings)]
        options = {"sharding": cut, "loading": loading, "epochs": epochs, "steps": steps}
        require_same("make a loader", {**self.data_spec, **options, **self._comparison.at_once})
        self._comparison.begin()

    @property
    def batch_size(self) -> int:
        return self.schedule.batch_size

    def __len__(self) -> int:
        """Steps in total."""
        total = self._total
        if total is None:
            raise TypeError("this loader has no end; give it epochs= or steps=, or stop at a step of your own")
        return total

    @property
    def left_out(self) -> int | None:
        """Records of the epochs asked for, each counted once an epoch, that would not fill a batch and so are in none.

        None where that is not known: of a stream, and with `drop` of a loader that has no end.
        """
        return None if self._order is None else self.schedule.left_out

    def __iter__(self) -> Loader:
        if self._ended:
            self.restore(0)
        return self

    def __next__(self) -> Any:
        if self._ended:  # until it is iterated anew: to look again would be a collective, of a stream
            raise StopIteration
        began = time.perf_counter()
        if self._pipeline is None:
            self._begin()
        self._comparison.check()
        if not self._has_next():
            self.close()
            self._ended = True
            self._comparison.finish()
            raise StopIteration
        assert self._pipeline is not None
        ready = self._pipeline.take()
        self.waited += time.perf_counter() - began
        self._settle()
        if self._vote is not None:
            self._vote.ask(ready.has_next)
        self.step += 1
        return self._layout.finish(ready.arrays)

    def state(self) -> LoaderState:
        """Batches delivered so far: all there is to save. Of a stream, also how to get there without reading it all:
        what this process knows of that, which `Checkpoint.save` puts together for all."""
        return self.step if self._order is not None else {"step": self.step, "shards": self._own_places()}

    def restore(self, state: LoaderState) -> None:
        """Go on, or back, to just after that many batches; a stream that is only told how many is read again."""
        total = self._total
        step, places = split_state(state) if self._order is None else (state, {})
        if isinstance(step, bool) or not isinstance(step, int) or step < 0 or (total is not None and step > total):
            upto = "" if total is None else f" to {total}"
            raise DataError(f"a loader's state wants a number of batches from 0{upto}, found {step!r}")
        self.close()
        self.step, self._places, self._ended = step, places, False
        self._answers_for = set(places) if jax.process_index() == 0 else set()

    def record_ids(self, step: int) -> NDArray[np.int64]:
        """Which records a step uses, in the order of the rows; padding has none."""
        if self._order is None:
            raise TypeError("the records of a stream have no ids")
        return self._order.ids(*self.schedule.positions(step))

    def close(self) -> None:
        """Stop reading ahead; the next batch starts it again."""
        if self._pipeline is not None:
            self._places, self._stream_feed = self._find_places(), None
            self._closer()
            self._pipeline = None

    @property
    def _total(self) -> int | None:
        return self.schedule.steps if self._order is None else self.schedule.total

    def _has_next(self) -> bool:
        if self._total is not None and self.step >= self._total:
            return False
        return self._vote is None or self._vote.answer()

    def _begin(self) -> None:
        feed = self._make_feed()
        if isinstance(feed, StreamFeed):
            self._ask_first(feed)
        steps = count(self.step) if self._total is None else iter(range(self.step, self._total))
        self._pipeline = Pipeline(feed, self._layout, steps, *self._tiers)
        self._closer = weakref.finalize(self, self._pipeline.close)

    def _make_feed(self) -> SourceFeed | StreamFeed:
        parts, schedule = self._layout.parts, self.schedule
        if isinstance(self.source, Stream):
            settings = self.batch_size, schedule.epochs, schedule.tail, self._work
            return StreamFeed(self.source, *settings, parts, ahead=sum(self._tiers))
        assert self._order is not None
        return SourceFeed(self.source, self._order, schedule, self._work, parts)

    def _ask_first(self, feed: StreamFeed) -> None:
        """Who reads the same shard must read the same records: an unseeded shuffle shows here."""
        assert self._vote is not None
        with share_failure("skip to a later batch of a stream", SKIPPING_TIMEOUT):
            feed.skip(self.step, self._places)
        with share_failure("load the first batch of a stream"):
            has_next, marks = feed.has_next(), feed.mark_next()
            if self.step == 0 and not has_next:
                raise DataError(f"{feed.stream.name} gives no full batch of {self.batch_size}; wanted a smaller one")
        said = exchange("load the first batch of a stream", {"has_next": has_next, "marks": marks})
        _check_marks(feed.stream.name, [value["marks"] for value in said])
        self._vote.begin([value["has_next"] for value in said])
        # Of the processes that read a shard the first one answers for it.
        self._answers_for = set(marks).difference(*(value["marks"] for value in said[: jax.process_index()]))
        self._stream_feed = feed

    def _find_places(self) -> dict[str, Any]:
        return self._places if self._stream_feed is None else self._stream_feed.find_places(self.step)

    def _own_places(self) -> dict[str, Any]:
        assert isinstance(self.source, Stream)
        found = self._find_places()
        return bound_places({shard: found[shard] for shard in found if shard in self._answers_for}, self.source)

    def _settle(self) -> None:
        """Every process knows its own rows by now; before they meet in a computation, they must be alike."""
        if self._settled:
            return
        assert self._layout.structure is not None
        require_same("load a first batch", self._layout.structure.describe())
        self._settled = True

    def _make_vote(self) -> Vote | None:
        if not isinstance(self.source, Stream):
            return None
        if self.batch_size % self.source.shards:
            raise DataError(
                f"{self.source.name} has {self.source.shards} shards: wanted a batch_size that is a multiple,"
                f" found {self.batch_size}"
            )
        return Vote(jax.tree_util.tree_leaves(self._shardings)[0], need_all=self.schedule.tail != "pad")

    def _content(self) -> Content | None:
        """Where it can be compared, by all processes or by none."""
        if isinstance(self.source, Stream) or self.data_spec["content"] == "varies":
            return None
        found = getattr(self.source, "content", None)
        return found if isinstance(found, Content) else None

    def _describe(self) -> dict[str, Any]:
        """What gives a position its meaning: equal on all processes, and saved with it."""
        about: dict[str, Any] = {"batch_size": self.batch_size, "tail": self.schedule.tail}
        if isinstance(self.source, Stream):
            return {**about, "stream": self.source.name, "shards": self.source.shards}
        assert self._order is not None
        order = {"seed": self._order.seed, "shuffle": self._order.shuffle}
        return {**describe_source(self.source), **about, **order}


def _check_marks(name: str, by_process: list[dict[str, str]]) -> None:
    for shard in sorted({shard for marks in by_process for shard in marks}, key=int):
        holders: defaultdict[str, list[int]] = defaultdict(list)
        for process, marks in enumerate(by_process):
            if shard in marks:
                holders[marks[shard]].append(process)
        if len(holders) > 1:
            apart = " and ".join(map(name_processes, holders.values()))
            raise DisagreementError(
                f"{name}: {apart} read different records in shard {shard}, where they need the same ones:"
                " give every shuffle a seed that is the same on all processes"
            )


def _describe_sharding(sharding: Sharding) -> str:
    """With the devices in their order: another order means other rows."""
    if not isinstance(sharding, NamedSharding):
        return str(sharding)
    axes = ",".join(f"{name}={size}" for name, size in sharding.mesh.shape.items())
    devices = ",".join(str(device.id) for device in sharding.mesh.devices.ravel())
    return f"{sharding.spec} over {axes}, devices {zlib.crc32(devices.encode()):08x}"


def _check_choices(loading: str, prefetch: int, device_prefetch: int) -> None:
    if loading not in STRATEGIES:
        raise ValueError(f"loading wants one of {', '.join(STRATEGIES)}; found {loading!r}")
    for name, value in (("prefetch", prefetch), ("device_prefetch", device_prefetch)):
        if isinstance(value, bool) or not isinstance(value, int) or value < 0:
            raise ValueError(f"{name} wants a number of batches, 0 or more; found {value!r}")


def _shardings(mesh: Any, spec: Any) -> Any:
    """A tree of shardings, from a mesh and a tree of specs or as given."""
    if mesh is None:
        mesh = make_mesh(data=-1)
    if not isinstance(mesh, Mesh):
        if spec is not None:
            raise ValueError("spec goes with a mesh; a sharding has its own")
        if not all(isinstance(leaf, Sharding) for leaf in jax.tree_util.tree_leaves(mesh)):
            raise ValueError(f"mesh wants a Mesh, a Sharding or a tree of Shardings; found {mesh!r}")
        return mesh
    spec = PartitionSpec(mesh.axis_names[0]) if spec is None else spec
    return jax.tree_util.tree_map(
        lambda part: NamedSharding(mesh, part), spec, is_leaf=lambda part: isinstance(part, PartitionSpec)
    )
