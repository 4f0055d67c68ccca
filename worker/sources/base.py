"""What every source does, and two implementations: one reads whole blocks, one reads records."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

import numpy as np

from hostmesh.worker.loading.rows import Block, Ids, Record, check_ids, split_block, stack_records, take_rows
from hostmesh.worker.verify.content import Content


@runtime_checkable
class Source(Protocol):
    """Random-access records. What `read` returns is a fresh copy.

    A source may also have `content`: the arrays or files behind it, where processes can compare all of their bytes; and
    `lengths(ids)`, or `lengths(ids, field)`: how long the arrays of these records are that vary in length.
    """

    @property
    def name(self) -> str: ...

    def __len__(self) -> int: ...

    def read(self, ids: Ids) -> Block: ...

    def records(self, ids: Ids) -> list[Record]: ...


@dataclass(frozen=True)
class BlockSource:
    """`gather(ids)` returns a fresh block."""

    name: str
    length: int
    gather: Callable[[Ids], Block]
    content: Content | None = None
    lengths: Callable[..., Any] | None = None

    def __len__(self) -> int:
        return self.length

    def read(self, ids: Ids) -> Block:
        check_ids(ids, self.length, self.name)
        return self.gather(ids)

    def records(self, ids: Ids) -> list[Record]:
        return split_block(self.read(ids), len(ids))


@dataclass(frozen=True)
class RecordSource:
    """`fetch(ids)` returns one record for each id."""

    name: str
    length: int
    fetch: Callable[[Ids], Sequence[Record]]
    content: Content | None = None
    lengths: Callable[..., Any] | None = None

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
