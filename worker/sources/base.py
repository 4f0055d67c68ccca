"""What every source does, and two implementations: one reads whole blocks, one reads records."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol, runtime_checkable

import numpy as np

from hostmesh.worker.loading.rows import Block, Ids, Record, check_ids, split_block, stack_records, take_rows
from hostmesh.worker.verify.content import Content


@runtime_checkable
class Source(Protocol):
    """Random-access records. What `read` returns is a fresh copy.

    A source may also have `content`: the arrays or files behind it, where processes can compare all of their bytes; and
    `lengths(ids)`, or `lengths(ids, field)`: how long the arrays of these records are that vary in length; and
    `make_order(seed, shuffle)`: an order of its own, as a mixture has; then `numbers` says how many ids there are.
    """

    @property
    def name(self) -> str: ...

    def __len__(self) -> int: ...

    def read(self, ids: Ids) -> Block: ...

    def records(self, ids: Ids) -> list[Record]: ...


class BaseSource(ABC):
    """What all sources of ours are: records by number, of which parts can be taken. Nothing is read or copied for that
    but by `filter`, which looks at every record."""

    # The views need this module, so they are imported where they are used.

    name: str

    @abstractmethod
    def __len__(self) -> int: ...

    @abstractmethod
    def read(self, ids: Ids) -> Block: ...

    @abstractmethod
    def records(self, ids: Ids) -> list[Record]: ...

    def identity(self) -> Mapping[str, str]:
        """What tells it from others beside its length and a few records."""
        return {}

    def take(self, count: int) -> BaseSource:
        """The first records, so many."""
        from hostmesh.worker.mixing.views import take

        return take(self, count)

    def skip(self, count: int) -> BaseSource:
        """All but the first records, so many."""
        from hostmesh.worker.mixing.views import skip

        return skip(self, count)

    def filter(self, predicate: Callable[[Record], bool]) -> BaseSource:
        """The records for which the predicate is true. They are looked for here and now: all processes call this
        together, each looks at its share, and all get the same."""
        from hostmesh.worker.mixing.views import filter_records

        return filter_records(self, predicate)

    def map(self, function: Callable[[Block], Block]) -> BaseSource:
        """`function(block)` changes a block of stacked rows, row by row, whenever one is read."""
        from hostmesh.worker.mixing.views import Mapped

        return Mapped(self, function)


@dataclass(frozen=True)
class BlockSource(BaseSource):
    """`gather(ids)` returns a fresh block."""

    name: str
    length: int
    gather: Callable[[Ids], Block] = field(repr=False)
    content: Content | None = field(default=None, repr=False)
    lengths: Callable[..., Any] | None = field(default=None, repr=False)

    def __len__(self) -> int:
        return self.length

    def read(self, ids: Ids) -> Block:
        check_ids(ids, self.length, self.name)
        return self.gather(ids)

    def records(self, ids: Ids) -> list[Record]:
        return split_block(self.read(ids), len(ids))


@dataclass(frozen=True)
class RecordSource(BaseSource):
    """`fetch(ids)` returns one record for each id."""

    name: str
    length: int
    fetch: Callable[[Ids], Sequence[Record]] = field(repr=False)
    content: Content | None = field(default=None, repr=False)
    lengths: Callable[..., Any] | None = field(default=None, repr=False)

    def __len__(self) -> int:
        return self.length

    def read(self, ids: Ids) -> Block:
        if not len(ids):
            # The shape of an empty block is that of any record.
            return take_rows(self.read(np.zeros(1, np.int64)), ids)
        return stack_records(self.records(ids), ids)

    def records(self, ids: Ids) -> list[Record]:
        check_ids(ids, self.length, self.name)
        return list(self.fetch(ids))
