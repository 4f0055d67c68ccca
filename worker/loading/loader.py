"""The loader: global arrays, batch after batch."""

from __future__ import annotations

import time
from collections.abc import Sequence
from itertools import count
from typing import Any

import jax
import numpy as np
from numpy.typing import NDArray

from hostmesh.worker.assembly.layout import Layout
from hostmesh.worker.assembly.shardings import describe_sharding, make_shardings
from hostmesh.worker.audit.deliveries import Deliveries, is_wanted
from hostmesh.worker.audit.used import NOTHING, to_runs
from hostmesh.worker.distributed import identity_of_itself, require_joined
from hostmesh.worker.guard.loaded import LoadedRows
from hostmesh.worker.guard.mode import choose_mode, find_wanted_mode
from hostmesh.worker.guard.telling import TELLER
from hostmesh.worker.loading import tampering
from hostmesh.worker.loading.ahead.batches import Batches, Closer, Reader, close_with, read_ahead
from hostmesh.worker.loading.ahead.waiting import Waiting
from hostmesh.worker.loading.choices import STRATEGIES, require_batches, require_choice
from hostmesh.worker.loading.first_batch import compare_first_batch
from hostmesh.worker.loading.lengths import LENGTHS, Lengths, as_lengths
from hostmesh.worker.loading.opening import open_rows
from hostmesh.worker.loading.padding import PaddingTransforms, find_one_thread
from hostmesh.worker.ordering.schedule import check_step
from hostmesh.worker.process.coordination import require_same, share_failure
from hostmesh.worker.process.freed_memory import keep_freed_memory
from hostmesh.worker.reading.choice import choose_workers
from hostmesh.worker.reading.spread import SpreadReading
from hostmesh.worker.reading.transforms import Collate, Map
from hostmesh.worker.recording.recorder import RECORDER
from hostmesh.worker.streams.reader import StreamReader
from hostmesh.worker.streams.state import LoaderState
from hostmesh.worker.verify.comparison import Comparison
from hostmesh.worker.verify.known_data import KnownData

_numbers = count()  # of loaders; the same on processes that do the same


class Loader:
    """Global batches, the same for every number of processes and devices and every loading strategy.

    `for batch in loader` goes on from `loader.step`; after the last batch the next `for` begins again, as over a list.

    - `source`: a spec string, arrays, an object with `__len__` and `read(ids)` or `__getitem__`, a library's dataset,
      what `mix` or `concatenate` made of several, or a `hostmesh.Stream`.
    - `mesh`: the axes named in `spec` split the rows of a batch, by default the first axis. Or a sharding instead of a
      mesh. A tree of specs or of shardings is for rows whose arrays are split differently.
    - `map(block)` or `map(block, ids, rng)` changes a block of rows; `rng` depends on the global position only.
    - `collate(records)` or `collate(records, ids, rng)` makes a block of a list of records: for rows that need padding
      to one length.
    - `loading`: `per_process` reads what this process's devices need; `per_device` reads for each device, in threads;
      `global` reads all rows everywhere; `reshard` reads an equal share, and the devices exchange rows.
    - `tail`: `carry`, the remainder of an epoch begins the next; `pad`, with a boolean `mask`; or `drop`. The records
      that are in no batch are counted by `loader.left_out`.
    - `lengths`: for records of varying length: each batch is padded to the smallest of these that holds it, so a step
      compiles once for each; `hostmesh.Lengths` says more. Dicts get the field `lengths`.
    - `prefetch`: how many batches a thread reads ahead; `device_prefetch`: how many it puts on the devices ahead.
    - `workers`: how many threads read, collate and map the records of a source; by default as many as this process has
      cores, if that is safe and faster; 0 is one thread. `processes`: so many processes do it instead, for work in pure
      Python; `workers="processes"` is one for each core.
    - `verify`: compare all of the data between processes, not only a few records, in a thread beside training.
    - `sharded`: the source or stream of each process has its own records only, which fill the rows of its devices.
    - `guard`: how much of what processes load is compared between them: `sample`, some rows of some steps; `every`, all
      rows of all steps; or `off`. By default what `launch --guard` says, or `sample`.
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
        workers: int | str | None = None,
        processes: int = 0,
        verify: bool = True,
        lengths: Sequence[int] | Lengths | None = None,
        sharded: bool = False,
        guard: str | None = None,
    ) -> None:
        require_joined("make a loader")
        self.step = 0
        self._waiting = Waiting()
        self._batches: Batches | None = None
        self._closer: Closer | None = None
        self._ended = False
        self._checked: set[int] = set()  # the lengths whose structures were compared
        with share_failure("make a loader"):
            require_choice("loading", loading, STRATEGIES)
            require_batches("prefetch", prefetch)
            require_batches("device_prefetch", device_prefetch)
            wanted_guard, guard = find_wanted_mode(guard), choose_mode(guard)
            choice = choose_workers(workers, processes)
            if identity_of_itself() is not None:
                keep_freed_memory()  # in a process that `launch` started; any other may have its own ideas
            shardings = make_shardings(mesh, spec)
            all_shardings = jax.tree_util.tree_leaves(shardings)
            self._tiers = prefetch, device_prefetch
            self.source, self._rows, transforms = open_rows(
                source,
                all_shardings,
                batch_size=batch_size,
                seed=seed,
                shuffle=shuffle,
                epochs=epochs,
                steps=steps,
                map=map,
                collate=collate,
                loading=loading,
                tail=tail,
                verify=verify,
                lengths=as_lengths(lengths),
                sharded=sharded,
            )
            self.schedule, self._total = self._rows.schedule, self._rows.total
            self._padding = transforms if isinstance(transforms, PaddingTransforms) else None
            self._spread = SpreadReading(self.source.name, choice, find_one_thread(self.source, transforms))
            ahead, added = sum(self._tiers) + self._spread.extra, (LENGTHS,) if self._padding else ()
            self._layout = Layout(
                shardings, self.batch_size, loading, tail == "pad", ahead, added, self._spread.allocate
            )
            self.data_spec = self._rows.describe()
            content = self._rows.find_content(self.data_spec) if verify else None
            self._data = KnownData(self.source.name, content)
            self._comparison = Comparison(self.source.name, content, self._data.sections)
        cut = [describe_sharding(sharding) for sharding in all_shardings]
        ends = {"epochs": self.schedule.epochs, "steps": self.schedule.steps}
        options = {"sharding": cut, "loading": loading, **ends, "guard": wanted_guard}
        if self._padding is not None:
            options |= self._padding.describe()
        require_same("make a loader", {**self.data_spec, **options, **self._comparison.at_once})
        self.data_spec = self._data.complete(self.data_spec)
        self._comparison.begin()
        self._data.reading = self._comparison.reading
        self._content = content  # what is known of the data only refers to it, so that arrays end with their loader
        self._used = NOTHING  # of the batch that was taken last
        self._number = next(_numbers)
        self._guard = None
        changed_by = [name for name, given in (("map", map), ("collate", collate)) if given is not None]
        if guard != "off" and (changed_by or not self._rows.compares_replicas):
            self._guard = LoadedRows(guard, self._number, self.source.name, self._layout, self._rows, changed_by)
        self._deliveries = self._begin_account() if is_wanted() else None

    @property
    def batch_size(self) -> int:
        return self.schedule.batch_size

    @property
    def waited(self) -> float:
        """Seconds in which the next batch was not there yet."""
        return self._waiting.total

    @property
    def waited_for(self) -> dict[str, float]:
        """Those seconds by what the loader was at: `reading` records, `mapping` them, their `transfer` to devices."""
        return self._waiting.by_cause()

    def __len__(self) -> int:
        """Steps in total."""
        if self._total is None:
            raise TypeError("this loader has no end; give it epochs= or steps=, or stop at a step of your own")
        return self._total

    @property
    def left_out(self) -> int | None:
        """Records of the epochs asked for, each counted once an epoch, that would not fill a batch and so are in none.

        None where that is not known: of a stream, and with `drop` of a loader that has no end.
        """
        return self._rows.left_out

    def __iter__(self) -> Loader:
        if self._ended:
            self._go_to(0, is_again=True)
        return self

    def __next__(self) -> Any:
        if self._ended:  # until it is iterated anew: asking a stream again would be a collective
            raise StopIteration
        before = RECORDER.begin_loading()
        try:
            batch = self._take()
        except BaseException:
            RECORDER.end_loading(before, None)
            raise
        RECORDER.end_loading(before, self.step)
        if tampering.skip_batch:
            tampering.skip_batch = False
            return next(self)
        if self._deliveries is not None:
            self._deliveries.note(self.step, self._used)
        return batch

    def _take(self) -> Any:
        began = time.perf_counter()
        batches = self._batches or self._begin()
        self._comparison.check()
        if (self._total is not None and self.step >= self._total) or not self._rows.has_next():
            self._end_pass()
            self._ended = True
            if self._deliveries is not None:
                self._deliveries.tell()
            self._comparison.finish()
            raise StopIteration
        arrays, has_next, self._used, length = batches.take()
        self._waiting.note_wait(time.perf_counter() - began)
        if length not in self._checked:
            self._check_structure(length)
            if self._guard is not None:
                self._guard.note_compared(length)
        self._rows.note_taken(has_next)
        self.step += 1
        if self._guard is not None:
            self._guard.note_taken()
        else:
            TELLER.last = None
        return self._layout.finish(arrays, length)

    def state(self) -> LoaderState:
        """What to save: the number of batches delivered so far. Of a stream also the positions that this process knows,
        from which it goes on without reading everything again; `Checkpoint.save` merges those of all processes."""
        if self._deliveries is not None:
            self._deliveries.keep()
        return self._rows.state(self.step)

    def restore(self, state: LoaderState) -> None:
        """Go on, or back, to just after that many batches. A stream is read again where the state is a number alone."""
        self._go_to(state, is_again=False)

    def _go_to(self, state: LoaderState, is_again: bool) -> None:
        step = check_step(self._rows.step_of(state), self._total)
        if self._batches is not None:
            self.close()
        self.step, self._ended = step, False
        self._rows.restore(state)
        if self._guard is not None:
            self._guard.go_to()
        if self._deliveries is not None:
            self._deliveries.begin_anew(step, is_again)

    def record_ids(self, step: int) -> NDArray[np.int64]:
        """Which records a step uses, in the order of the rows; padding has none."""
        return self._rows.record_ids(step)

    def close(self) -> None:
        """Stop reading ahead, and end data processes; the next batch starts them again."""
        if self._batches is not None:
            self._rows.close(self.step)
        if self._closer is not None:
            self._closer()
        self._batches = None

    def _end_pass(self) -> None:
        if self._batches is None or not self._spread.has_processes:
            return self.close()
        self._batches.close()  # its data processes wait for the next pass
        self._batches = None

    def _begin(self) -> Batches:
        RECORDER.name_source(self.source.name)
        reader = self._open_reader()
        steps = count(self.step) if self._total is None else iter(range(self.step, self._total))
        guard = None if self._guard is None else self._guard.begin(self.step)
        self._batches = read_ahead(reader, self._layout, self._padding, guard, self._waiting, steps, *self._tiers)
        self._closer = close_with(self, self._batches, reader, self._closer)
        return self._batches

    def _open_reader(self) -> Reader:
        ahead = sum(self._tiers)
        # One more is held while processes agree on its length.
        reader = self._rows.reader(self._layout.row_sets, self.step, ahead + 1)
        if isinstance(reader, StreamReader):
            return reader  # a stream comes in order, through one thread
        return self._spread.reader(reader, self._layout, ahead, self._total)

    def _begin_account(self) -> Deliveries:
        rows = to_runs(self._layout.claim_rows())
        describe_data = self._data.tell if jax.process_index() == 0 else None
        return Deliveries(self._rows.describe_steps(), rows, self.data_spec, describe_data)

    def _check_structure(self, length: int) -> None:
        """Before the rows of all processes meet in a computation, their arrays must be alike."""
        compare_first_batch(self._number, self.source.name, self._layout.structure(length).describe())
        self._checked.add(length)
