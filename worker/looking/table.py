"""Tables in a terminal: columns that are aligned, and cut to its width."""

from __future__ import annotations

import textwrap
import unicodedata
from collections.abc import Sequence
from dataclasses import dataclass

GAP = "  "
# Columns are cut to this many characters at least; where that is still too wide, a row takes several lines.
NARROWEST = 8
CUT = "…"


@dataclass(frozen=True)
class Column:
    header: str
    cells: Sequence[str]
    is_number: bool = False  # numbers are aligned at their right ends

    @property
    def width(self) -> int:
        return max(map(measure, [self.header, *self.cells]))


def lay_out(columns: Sequence[Column], width: int) -> list[str] | None:
    """The lines of a table, its headers first. None where the columns are too many for the width."""
    widths = fit([column.width for column in columns], width - len(GAP) * (len(columns) - 1))
    if widths is None:
        return None
    rows = zip(*([column.header, *column.cells] for column in columns), strict=True)
    return [GAP.join(_place(row, columns, widths)).rstrip() for row in rows]


def _place(row: Sequence[str], columns: Sequence[Column], widths: Sequence[int]) -> list[str]:
    return [pad(cut(cell, w), w, column.is_number) for cell, column, w in zip(row, columns, widths, strict=True)]


def fit(wanted: Sequence[int], room: int) -> list[int] | None:
    """Widths that fill the room at most: the widest columns give way, until all that are cut are equally wide."""
    if sum(wanted) <= room:
        return list(wanted)
    for cap in range(max(wanted), NARROWEST - 1, -1):
        widths = [min(width, cap) for width in wanted]
        if (over := sum(widths) - room) <= 0:
            # What is left of the room goes to the first columns that are cut.
            for n, width in enumerate(wanted):
                if width > cap and over < 0:
                    widths[n] += 1
                    over += 1
            return widths
    return None


def measure(text: str) -> int:
    """How many places of a terminal it takes: wide characters take two, marks over others none."""
    if text.isascii():
        return len(text)
    return sum(map(_places, text))


def _places(character: str) -> int:
    if unicodedata.combining(character):
        return 0
    return 2 if unicodedata.east_asian_width(character) in "WF" else 1


def cut(text: str, width: int) -> str:
    if measure(text) <= width:
        return text
    kept, room = "", width - 1
    for character in text:
        room -= _places(character)
        if room < 0:
            break
        kept += character
    return f"{kept.rstrip()}{CUT}"


def wrap(text: str, width: int, indent: str) -> list[str]:
    """Lines of whole words, the later ones indented."""
    return textwrap.wrap(text, max(width, 20), subsequent_indent=indent)


def pad(text: str, width: int, is_number: bool = False) -> str:
    space = " " * (width - measure(text))
    return space + text if is_number else text + space
