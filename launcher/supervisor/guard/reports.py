"""What a process says of the rows that it has loaded, checked: it may say anything; pure."""

from __future__ import annotations

import re
from dataclasses import dataclass
from math import prod
from typing import Any

from hostmesh.launcher.words import as_one_line

MAX_PARTS = 10_000
MAX_BLOCKS = 1024
MAX_PROCESSES = 100_000
MAX_KNOWN = 10_000
DIGITS = 16
CHANGING = ("collate", "map")
HEX = re.compile("[0-9a-f]*")

_known_numbers: dict[str, frozenset[int]] = {}  # by their text

Box = tuple[tuple[int, int], ...]


@dataclass(frozen=True)
class Part:
    """A part of an array, which all of its `holders` should hold alike; compared in `blocks` blocks of rows."""

    name: str
    box: Box
    holders: frozenset[int]
    blocks: int

    @property
    def volume(self) -> int:
        return prod(stop - start for start, stop in self.box)

    def rows_of(self, block: int) -> tuple[int, int]:
        """The first row of a block, and that after its last, counted in the whole array."""
        (start, stop), *_ = self.box
        rows = stop - start
        return start + rows * block // self.blocks, start + rows * (block + 1) // self.blocks


@dataclass(frozen=True)
class Form:
    """What the batches of a loader are like on one process, or the arrays of a call. `what` names them; `changed_by`
    are the functions of the user that change rows: map, collate."""

    what: str
    algorithm: str
    is_call: bool
    shapes: dict[str, str]
    layout: str
    parts: tuple[Part, ...]
    is_all: bool  # no part is left out
    mode: str = ""
    changed_by: tuple[str, ...] = ()

    @property
    def shared(self) -> tuple[Part, ...]:
        return tuple(part for part in self.parts if len(part.holders) > 1)


@dataclass(frozen=True)
class Step:
    """Of one step: fingerprints of the shared parts, of all blocks of each or of the n-th one in turn; `order` is the
    step's number and a fingerprint of the records' numbers, `own` are of all parts whole.

    `at` is the pass over the data in which it was read, and how many steps of that pass were before it.
    """

    number: int
    at: tuple[int, int]
    form: int
    rows: tuple[str, ...]
    nth: int | None
    order: str
    own: tuple[str, ...]

    def fits(self, form: Form) -> bool:
        shared = form.shared
        if len(shared) != len(self.rows):
            return False
        pairs = zip(shared, self.rows, strict=True)
        return all(len(told) == DIGITS * (part.blocks if self.nth is None else 1) for part, told in pairs)


def split_blocks(told: str) -> list[str]:
    """One fingerprint for each block."""
    return [told[first : first + DIGITS] for first in range(0, len(told), DIGITS)]


def read_form(process_id: int, detail: dict[str, Any]) -> Form | None:
    match detail:
        case {
            "what": str(what),
            "hash": str(algorithm),
            "shapes": dict(shapes),
            "layout": str(layout),
            "parts": list(given),
        } if len(given) <= MAX_PARTS:
            parts = [_read_part(process_id, each) for each in given]
            if None in parts or not all(isinstance(shape, str) for shape in shapes.values()):
                return None
            named = {as_one_line(str(name)): as_one_line(shape) for name, shape in shapes.items()}
            known = tuple(part for part in parts if part is not None)
            is_call, is_all = detail.get("is_call") is True, detail.get("is_all") is True
            mode, changed_by = detail.get("mode"), detail.get("changed_by")
            mode = mode if isinstance(mode, str) else ""
            changing = tuple(name for name in CHANGING if isinstance(changed_by, list) and name in changed_by)
            what = as_one_line(what)
            return Form(what, algorithm, is_call, named, layout, known, is_all, mode, changing)
    return None


def _read_part(process_id: int, given: Any) -> Part | None:
    match given:
        case [str(name), [[int(), int()], *_] as box, list(held_by), int(blocks)] if 0 < blocks <= MAX_BLOCKS:
            spans = tuple((span[0], span[1]) for span in box if _is_span(span))
            holders = _read_numbers(repr(held_by), held_by)
            if len(spans) == len(box) and process_id in holders:
                return Part(as_one_line(name), spans, holders, blocks)
    return None


def read_steps(given: Any) -> list[Step]:
    """Those that make sense."""
    return [step for each in given if (step := _read_step(each)) is not None] if isinstance(given, list) else []


def _read_step(given: Any) -> Step | None:
    match given:
        case {"step": int(number), "form": int(form), "at": [int(nth_pass), int(before)], "rows": list(rows)}:
            order, own, nth = given.get("order", ""), given.get("own", []), given.get("nth")
            texts = [*rows, order, *(own if isinstance(own, list) else [None])]
            if all(isinstance(text, str) and HEX.fullmatch(text) for text in texts) and isinstance(nth, int | None):
                return Step(number, (nth_pass, before), form, tuple(rows), nth, order, tuple(own))
    return None


def _read_numbers(text: str, spans: list[Any]) -> frozenset[int]:
    """[[0, 2], [5, 5]] are 0, 1, 2 and 5; none where it makes no sense. Thousands of parts have the same holders."""
    if (known := _known_numbers.get(text)) is None:
        if len(_known_numbers) > MAX_KNOWN:
            _known_numbers.clear()
        known = _known_numbers[text] = _expand(spans)
    return known


def _expand(spans: list[Any]) -> frozenset[int]:
    found: set[int] = set()
    for span in spans:
        match span:
            case [int(first), int(last)] if 0 <= first <= last < MAX_PROCESSES:
                found.update(range(first, last + 1))
            case _:
                return frozenset()
    return frozenset(found)


def _is_span(span: Any) -> bool:
    return (
        isinstance(span, list) and len(span) == 2 and all(type(end) is int for end in span) and 0 <= span[0] < span[1]
    )
