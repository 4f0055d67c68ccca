"""What is noted of all that is behind a source, so that a change is found later, and told with its place."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import Any

from hostmesh.worker.process.words import count
from hostmesh.worker.verify.content import (
    MAX_AT_ONCE,
    Content,
    Pause,
    Sections,
    Stored,
    combine,
    fingerprint_bytes,
)

# Of a file that is not read at once: so many evenly spread chunks of it, and of all files together.
CHUNK = 1 << 16
CHUNKS, MAX_CHUNKS = 64, 1 << 10
# Files are read by several threads: on a network disk it is the waiting that takes long.
THREADS = 8
MAX_TASKS = 1 << 10  # to hand one to a thread takes longer than to look at a small file
# Of more arrays and files than that some neighbours are noted as one.
MAX_NAMED = 1 << 10
# How a sentence ends about what may be the same or not.
NOT_COMPARED = "its bytes were not compared"


@dataclass(frozen=True)
class Mark:
    """Of one array or file, or of several neighbours: its size, and fingerprints in the order of its bytes.

    `chunks` are of evenly spread chunks, and None where all bytes were read at once. `whole` are of all bytes, as soon
    as they were read. `stored` has no bytes: it says where in it a chunk lies. Where `is_version`, the fingerprints are
    of a store's word for the bytes, which may be another one for the same.
    """

    name: str
    size: int
    chunks: tuple[str, ...] | None
    whole: tuple[str, ...] | None
    stamp: list[Any] | None
    stored: Stored | None = None
    is_version: bool = False

    def to_json(self) -> dict[str, Any]:
        found = {"name": self.name, "size": self.size, "stamp": self.stamp}
        if self.is_version:
            found["by"] = "version"
        crcs = {"chunks": self.chunks, "all": self.whole}
        return {**found, **{key: " ".join(each) for key, each in crcs.items() if each is not None}}

    @classmethod
    def from_json(cls, found: dict[str, Any]) -> Mark:
        chunks, whole = (tuple(found[key].split()) if key in found else None for key in ("chunks", "all"))
        stamp = found.get("stamp")
        is_version = found.get("by") == "version" or _is_old_version(stamp)
        return cls(found["name"], found["size"], chunks, whole, stamp, is_version=is_version)


def _is_old_version(stamp: Any) -> bool:
    """`["version 5f2b…"]`, by which an earlier hostmesh knew a file in a store."""
    return isinstance(stamp, list) and len(stamp) == 1 and str(stamp[0]).startswith("version ")


def mark_content(content: Content, sections: Sections | None) -> list[Mark]:
    """`sections` are of all bytes, where these were read; else files are read in chunks, and small arrays whole."""
    if sections is not None:
        return _group([_mark(one, None, crcs) for one, crcs in zip(content.stored, sections, strict=True)])
    in_memory = sum(one.size for one in content.stored if one.in_memory)
    chunks = max(1, min(CHUNKS, MAX_CHUNKS // len(content.stored)))
    every_file = -(-len(content.stored) // MAX_CHUNKS)  # of very many every second, third, … is read

    def read(number: int) -> Mark:
        one = content.stored[number]
        if number % every_file and not one.in_memory:
            return _mark(one, [], None)
        starts, rows = place_chunks(one, chunks)
        is_small = (one.in_memory and in_memory <= MAX_AT_ONCE) or len(starts) * rows >= one.rows
        if is_small and content.every == 1:
            return _mark(one, None, one.sections(content.max_sections, 1))
        return _mark(one, read_chunks(one, chunks), None)

    numbers = range(len(content.stored))
    if all(one.file for one in content.stored) and len(numbers) > 1:
        size = -(-len(numbers) // MAX_TASKS)
        tasks = [numbers[at : at + size] for at in range(0, len(numbers), size)]
        with ThreadPoolExecutor(THREADS) as pool:
            found = pool.map(lambda task: [read(number) for number in task], tasks)
            return _group([mark for marks in found for mark in marks])
    return _group([read(number) for number in numbers])


def place_chunks(one: Stored, count: int) -> tuple[list[int], int]:
    """The first row of each chunk, and how many rows one has. The last chunk ends with the last row."""
    rows = min(one.rows, max(1, CHUNK // max(1, one.row_size)))
    count = max(1, min(count, CHUNKS * CHUNK // max(1, rows * one.row_size)))
    rest = one.rows - rows
    return ([rest // 2] if count == 1 else [number * rest // (count - 1) for number in range(count)]), rows


def read_chunks(one: Stored, count: int) -> list[str]:
    starts, rows = place_chunks(one, count)
    return [f"{fingerprint_bytes(one.read(start, start + rows)):08x}" for start in starts]


def read_like(one: Stored, saved: Mark, every: int, pause: Pause) -> Mark:
    """Fingerprints of what the saved ones are of. All bytes are read only where no chunk differs."""
    chunks = None if saved.chunks is None else read_chunks(one, len(saved.chunks)) if saved.chunks else []
    is_other = chunks is not None and tuple(chunks) != saved.chunks
    whole = None if saved.whole is None or is_other else one.sections(len(saved.whole), every, pause)
    return _mark(one, chunks, whole)


def digest(marks: Sequence[Mark]) -> str:
    """Of what was read at first. Names are no part of it: the same bytes may have another place."""
    read = [mark.whole if mark.chunks is None else mark.chunks for mark in marks]
    return combine([f"{mark.size} {' '.join(crcs or ())}" for mark, crcs in zip(marks, read, strict=True)] + ["end"])


def with_whole(marks: Sequence[Mark], sections: Sections) -> list[Mark]:
    """`sections` are of all bytes of the content that the marks are of."""
    size = _group_size(len(sections))
    groups = [sections[at : at + size] for at in range(0, len(sections), size)]
    return [replace(mark, whole=join_sections(group)) for mark, group in zip(marks, groups, strict=True)]


def group_stored(content: Content) -> list[tuple[Stored, ...]]:
    """The arrays and files that each mark is of."""
    size = _group_size(len(content.stored))
    return [content.stored[at : at + size] for at in range(0, len(content.stored), size)]


def _group_size(count: int) -> int:
    return -(-count // MAX_NAMED) or 1


def _mark(one: Stored, chunks: list[str] | None, whole: list[str] | None) -> Mark:
    hollow = replace(one, read=_read_nothing, stamp=_no_stamp, behind=None)
    spread, read = (None if each is None else tuple(each) for each in (chunks, whole))
    return Mark(one.name, one.size, spread, read, one.stamp(), hollow, one.behind is not None)


def _group(marks: list[Mark]) -> list[Mark]:
    size = _group_size(len(marks))
    if size == 1:
        return marks
    return [_merge(marks[at : at + size]) for at in range(0, len(marks), size)]


def _merge(marks: list[Mark]) -> Mark:
    name, size = f"{marks[0].name} to {marks[-1].name}", sum(mark.size for mark in marks)
    sizes = combine([str(mark.size) for mark in marks])
    read = [list(mark.chunks or mark.whole or ()) for mark in marks]
    chunks = (sizes, *join_sections(read))
    whole = None
    if all(mark.whole is not None for mark in marks):
        whole = join_sections([list(mark.whole or ()) for mark in marks])
    stamps = [mark.stamp for mark in marks]
    stamp = None if None in stamps else [combine([str(each) for each in stamps])]
    return Mark(name, size, chunks, whole, stamp, is_version=any(mark.is_version for mark in marks))


def join_sections(group: Sequence[Sequence[str]]) -> tuple[str, ...]:
    """Of several neighbours one fingerprint."""
    return tuple(group[0]) if len(group) == 1 else (combine([crc for crcs in group for crc in crcs] or [""]),)


def _read_nothing(start: int, stop: int) -> bytes:
    return b""


def _no_stamp() -> None:
    return None


# What differs, in words.


def compare_marks(saved: Sequence[Mark], now: Sequence[Mark], every: int) -> list[str]:
    """A sentence for each array or file that is not what it was; empty where nothing that is known differs."""
    if len(saved) != len(now):
        then, there = {mark.name for mark in saved}, {mark.name for mark in now}
        gone = [f"{mark.name} is gone" for mark in saved if mark.name not in there]
        new = [f"{mark.name} is new" for mark in now if mark.name not in then]
        if any(mark.is_version for mark in saved) != any(mark.is_version for mark in now):
            return [f"{_tell_kind(saved)} then, {_tell_kind(now)} now; {NOT_COMPARED}"]
        return [*gone, *new] or [f"{len(saved)} arrays or files then, {len(now)} now"]
    pairs = zip(saved, now, strict=True)
    return [said for a, b in pairs if (said := compare_mark(a, b, every)) is not None]


def _tell_kind(marks: Sequence[Mark]) -> str:
    """`3 files in a store`, which may hold the very same records as `8 arrays or files here`."""
    is_there = any(mark.is_version for mark in marks)
    return f"{count(len(marks), 'file')} in a store" if is_there else f"{len(marks)} arrays or files here"


def compare_mark(saved: Mark, now: Mark, every: int) -> str | None:
    """`every` is how many pieces of all bytes there are for each that is read."""
    name = now.name if now.name == saved.name else f"{now.name} (then {saved.name})"
    if saved.size != now.size:
        return f"{name}: {saved.size:,} bytes then, {now.size:,} now"
    if saved.is_version or now.is_version:
        return _compare_versions(name, saved, now)
    for then, there, is_whole in ((saved.whole, now.whole, True), (saved.chunks, now.chunks, False)):
        if then is not None and there is not None and len(then) == len(there) and then != there:
            differing = [number for number, pair in enumerate(zip(then, there, strict=True)) if pair[0] != pair[1]]
            where = _tell_where(now.stored, differing, len(then), is_whole, every)
            return f"{name}: {now.size:,} bytes then and now, but other bytes{where}"
    return None


def _compare_versions(name: str, saved: Mark, now: Mark) -> str | None:
    """Stores have other words for the same bytes when these were uploaded in another way, or lie in another store."""
    if saved.is_version and now.is_version:
        is_same = (saved.whole, saved.chunks) == (now.whole, now.chunks)
        what = f"another version in the store, of {now.size:,} bytes then and now"
        return None if is_same else f"{name}: {what}; {NOT_COMPARED}"
    then, there = ("in a store", "here") if saved.is_version else ("here", "in a store")
    return f"{name}: {then} then and {there} now, {now.size:,} bytes each; {NOT_COMPARED}"


def is_known(saved: Mark, now: Mark) -> bool:
    """Whether both were read in the same way, so that equal fingerprints mean something."""
    if saved.is_version != now.is_version:
        return False
    pairs = (saved.whole, now.whole), (saved.chunks, now.chunks)
    return any(then is not None and there is not None and len(then) == len(there) for then, there in pairs)


def _tell_where(one: Stored | None, numbers: list[int], of: int, is_whole: bool, every: int) -> str:
    """` (found in chunk 12 of 64, rows 11,200 to 12,000)`."""
    if one is None or of == 1:
        return ""
    if is_whole:
        start, stop = one.section_bounds(numbers[0], of, every)
    else:
        starts, rows = place_chunks(one, of)
        start, stop = starts[numbers[0]] * one.row_size, (starts[numbers[0]] + rows) * one.row_size
    place = f"bytes {start:,} to {stop - 1:,}"
    if one.records is not None:
        before, size = one.records
        if stop > before:
            place = f"rows {max(0, start - before) // size:,} to {max(0, stop - before - 1) // size:,}"
    found = f"chunk {numbers[0] + 1} of {of}, {place}"
    more = f"in {len(numbers)} of {of} chunks, the first is " if len(numbers) > 1 else "in "
    return f" (found {more}{found})"
