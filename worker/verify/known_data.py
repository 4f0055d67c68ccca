"""What is known of the data of a loader: saved with each step, and told to the launcher."""

from __future__ import annotations

import weakref
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import jax

from hostmesh.worker.process.coordination import exchange
from hostmesh.worker.process.progress import Progress
from hostmesh.worker.verify.content import Content, Pause, Sections, Stored, combine
from hostmesh.worker.verify.fingerprint import SAMPLES
from hostmesh.worker.verify.marks import (
    Mark,
    digest,
    group_stored,
    join_sections,
    mark_content,
    read_like,
    with_whole,
)
from hostmesh.worker.verify.slow_reading import SlowReading

BYTES = "bytes"  # the key of a data_spec
ORDER = ("seed", "shuffle", "batch_size", "tail", "stop", "shards", "sharded")
# Texts that are told are cut to that length, and of a mixture so many parts are named as their names fit in the other.
MAX_TEXT, MAX_NAMES = 2000, 8000
MAX_HISTORY = 20
# Seconds after which reading all bytes is told.
QUIET = 2.0

_known: list[KnownData] = []  # the newest last
MAX_KNOWN = 256


class KnownData:
    """Of one loader. Process 0 notes the bytes behind its source, which all processes are to have alike."""

    def __init__(self, name: str, content: Content | None) -> None:
        """`sections` are there at once of what is quick to read."""
        self.name = name
        self._content = None if content is None else weakref.ref(content)
        self.sections: Sections | None = None
        if content is not None and content.is_quick:
            self.sections = content.read_all()
        is_first = content is not None and jax.process_index() == 0
        self.marks = mark_content(content, self.sections) if content is not None and is_first else None
        self.every = 1 if content is None else content.every
        self.reading: SlowReading | None = None
        self.spec: dict[str, Any] = {}
        # Other data that the restored step was trained on before; see TrainedData.
        self.history: list[dict[str, Any]] = []

    def tell(self) -> dict[str, Any]:
        """For the launcher."""
        history = {"data_history": self.history[-MAX_HISTORY:]} if self.history else {}
        return {**describe_data(self, self.spec), **history}

    def complete(self, spec: Mapping[str, Any]) -> dict[str, Any]:
        """The loader's data_spec with a fingerprint of the bytes: that of process 0, on all of them."""
        self.spec = dict(spec)
        if self._content is not None:
            own = None if self.marks is None else digest(self.marks)
            self.spec[BYTES] = exchange("fingerprint the data", own)[0]
        same = [each for each in _known if each.spec == self.spec and each.content is None]
        _known[:] = [each for each in _known if each not in same][1 - MAX_KNOWN :] + [self]
        return self.spec

    def begin_reading(self) -> None:
        """All bytes, slowly, unless they are known or read already."""
        content = self.content
        if self.reading is not None or self.marks is None or content is None or self.has_whole:
            return
        self.reading = SlowReading(content)
        self.reading.begin()

    @property
    def content(self) -> Content | None:
        """None once its loader is gone."""
        return None if self._content is None else self._content()

    @property
    def has_whole(self) -> bool:
        """Whether fingerprints of all bytes are known."""
        return self.marks is not None and all(mark.whole is not None for mark in self.marks)

    def digest_of_whole(self) -> str:
        marks = self.marks or []
        return combine([crc for mark in marks for crc in mark.whole or ()] or [""])

    def current_marks(self) -> list[Mark] | None:
        """With the fingerprints of all bytes, as soon as these were read."""
        if self.marks and not self.has_whole and self.reading is not None and self.reading.found is not None:
            self.marks = with_whole(self.marks, self.reading.found)
        return self.marks

    def read_whole(self, numbers: list[int], why: str) -> dict[int, Mark]:
        """These marks with the fingerprints of all bytes, read at full speed; nothing where the loader is gone."""
        content = self.content
        if content is None or self.marks is None:
            return {}
        groups = group_stored(content)
        note_piece = _count([one for number in numbers for one in groups[number]], self.every, why)

        def read(group: tuple[Stored, ...]) -> Sections:
            return [one.sections(content.max_sections, self.every, note_piece) for one in group]

        marks = {number: self.marks[number] for number in numbers}
        return {n: replace(mark, whole=join_sections(read(groups[n]))) for n, mark in marks.items()}

    def read_behind(self, saved: Mapping[int, Mark], every: int, why: str) -> dict[int, Mark]:
        """Of files that are known by a store's version their bytes, read as they were for the saved marks."""
        content = self.content
        if content is None or not saved:
            return {}
        groups = group_stored(content)
        found = {n: groups[n][0].behind for n in saved if len(groups[n]) == 1}
        behind = {number: one for number, one in found.items() if one is not None}
        note_piece = _count(list(behind.values()), every, why)
        return {number: read_like(one, saved[number], every, note_piece) for number, one in behind.items()}


def _count(stored: Sequence[Stored], every: int, why: str) -> Pause:
    """To be called after each piece that was read of these."""
    progress, done = Progress(max(1, sum(one.count_pieces(every) for one in stored)), why, QUIET), 0

    def note_piece() -> None:
        nonlocal done
        done += 1
        progress.reached(done)

    return note_piece


def find_known(data_spec: Mapping[str, Any]) -> KnownData | None:
    """Of the newest loader with this data_spec, of those that are still there; somebody may have added to it."""
    given = dict(data_spec)
    found = [each for each in reversed(_known) if each.spec and each.spec.items() <= given.items()]
    return max(found, key=lambda each: (len(each.spec), each.content is not None), default=None)


def describe_data(known: KnownData | None, spec: Mapping[str, Any]) -> dict[str, Any]:
    """Source, records, fingerprint and order, short enough to be told and shown."""
    marks = None if known is None else known.marks
    content = spec.get(BYTES, spec.get("content"))
    if BYTES not in spec:
        of = f"{SAMPLES} records" if content not in (None, "varies") else None
    elif marks is None:
        of = "bytes"
    elif all(mark.is_version for mark in marks):
        of = f"the store's word for {sum(mark.size for mark in marks):,} bytes"
    elif all(mark.chunks is None for mark in marks):
        of = f"all {sum(mark.size for mark in marks):,} bytes"
    else:
        chunks = sum(len(mark.chunks or ()) for mark in marks)
        of = f"{chunks:,} chunks of {sum(mark.size for mark in marks):,} bytes"
    name = spec.get("stream") if known is None else known.name
    order = {key: spec[key] for key in ORDER if key in spec}
    weights = {key.removeprefix("weight of "): value for key, value in spec.items() if key.startswith("weight of ")}
    if weights:
        order["weights"] = _take_some(weights)
    is_read = known is not None and known.has_whole and not any(mark.is_version for mark in marks or ())
    whole = known.digest_of_whole() if known is not None and is_read else None
    found = {"source": _cut(name), "records": spec.get("records"), "content": content, "content_of": of}
    found["all_bytes"] = whole
    return {key: value for key, value in found.items() if value is not None} | ({"order": order} if order else {})


def _take_some(weights: Mapping[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name, weight in weights.items():
        if sum(map(len, found)) + len(name) <= MAX_NAMES:
            found[name] = weight
    return found


def _cut(text: Any) -> Any:
    return text if not isinstance(text, str) or len(text) <= MAX_TEXT else text[:MAX_TEXT]
