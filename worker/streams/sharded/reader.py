"""The rows that a process gives of one step after another, with a fingerprint of those to come and of each record."""

from __future__ import annotations

from collections import deque
from typing import Any

from hostmesh.worker.loading.rows import leaves, split_block, take_rows
from hostmesh.worker.streams.reader import ShardRows, StreamReader
from hostmesh.worker.streams.sharded.overlap import hash_records
from hostmesh.worker.verify.fingerprint import fingerprint_records

MAX_BYTES = 4 << 20  # of a step's records that are part of a fingerprint: a few milliseconds


class ShardedReader(StreamReader):
    """`upcoming` has, for each step that was read, the fingerprint of the one after it, or None where that cannot be
    read. One thread appends, another takes. `hashes` has for each step that was read those of its records, of the first
    ones only."""

    def __init__(self, *args: Any, compares: bool, hashed: int) -> None:
        """`compares` is whether anybody asks for the fingerprints; so many records are to be hashed."""
        super().__init__(*args)
        self._compares, self._to_hash = compares, hashed
        self.upcoming: deque[str | None] = deque()
        self.hashes: list[list[int]] = []

    def _take(self) -> ShardRows:
        taken = super()._take()
        if self._to_hash:
            (rows, count), *_ = taken.values()
            first = min(count, self._to_hash)
            self._to_hash -= first
            self.hashes.append(hash_records(split_block(rows, first) if self._in_blocks else rows[:first]))
        return taken

    def _peek_for_later(self) -> bool:
        has_next = super()._peek_for_later()
        if self._compares:
            self.upcoming.append(None if isinstance(self._ahead, Exception) else self._fingerprint_ahead())
        return has_next

    def _fingerprint_ahead(self) -> str:
        (rows, count), *_ = self._peek().values()
        records = self._listed(rows, count)
        every = max(1, sum(_count_bytes(record) for record in records) // MAX_BYTES)
        sampled = [take_rows(record, slice(None, None, every)) for record in records] if self._in_blocks else records
        return fingerprint_records(sampled if self._in_blocks else records[::every])


def _count_bytes(record: Any) -> int:
    return sum(int(getattr(leaf, "nbytes", 0)) for _, leaf in leaves(record))
