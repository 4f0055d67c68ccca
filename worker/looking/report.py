"""Everything that was found about a source, as text for a terminal and as JSON."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from hostmesh.worker.looking.describe import Field
from hostmesh.worker.looking.rows import print_rows
from hostmesh.worker.looking.speed import Speed
from hostmesh.worker.looking.table import Column, cut, lay_out, wrap
from hostmesh.worker.process.words import count

WIDE = 1000  # wider than what is laid out
KEY = " " * len("speed  ")  # what is to the left of the lines after the first


@dataclass
class Report:
    spec: str
    length: int | None  # None of a stream
    sampled: int
    fields: list[Field]
    cells: dict[int, dict[str, str]]
    fingerprint: str | None = None
    notes: list[str] = field(default_factory=list)
    speed: Speed | None = None
    sheet: str | None = None  # the path of the file
    sheet_line: str | None = None
    problems: list[str] = field(default_factory=list)  # what makes the exit code 2

    def as_json(self) -> dict[str, Any]:
        speed = None if self.speed is None else {"records_per_second": self.speed.rates, "how": self.speed.how}
        return {
            "spec": self.spec,
            "records": self.length,
            "is_stream": self.length is None,
            "fingerprint": self.fingerprint,
            "sampled": self.sampled,
            "fields": [one.as_json() for one in self.fields],
            "rows": [{"row": id_, "values": row} for id_, row in self.cells.items()],
            "speed": speed,
            "sheet": self.sheet,
            "notes": self.notes,
            "problems": self.problems,
        }

    def lines(self, width: int) -> list[str]:
        """Parts with an empty line between them, none of them wider than the terminal."""
        speed, sheet = self._speed_lines(), [f"sheet  {self.sheet_line}"] if self.sheet_line else []
        foot = [part for line in speed + sheet for part in wrap_key(line, width)]
        parts = [self._head(width), self._table(width), print_rows(self.cells, self.fields, width), foot]
        return [line for n, part in enumerate(filter(None, parts)) for line in ([""] if n else []) + part]

    def _head(self, width: int) -> list[str]:
        size = "a stream, which has no length" if self.length is None else count_all(self.length, "record")
        known = f"fingerprint {self.fingerprint or 'not known: a record cannot be read'}"
        if self.fingerprint == "varies":
            known += ": two reads of a record differ"
        return [cut(self.spec, width), cut(f"{size}, {known}", width)]

    def _table(self, width: int) -> list[str]:
        columns = [
            Column("field", [one.name for one in self.fields]),
            Column("dtype", [" or ".join(one.dtypes) for one in self.fields]),
            Column("shape", [one.shape for one in self.fields]),
            Column("values", [one.values for one in self.fields]),
        ]
        lines = lay_out(columns, width) or [f"{one.name} {one.dtypes[0]} {one.shape}" for one in self.fields]
        of = "the first" if self.length is None else f"{self.sampled:,} of" if self.sampled < self.length else "all"
        seen = f"seen in {of} {count_all(self.length or self.sampled, 'record')}"
        notes = [line for note in self.notes for line in wrap(f"note: {note}", width, "      ")]
        return [*lines, cut(f"({seen})", width), *notes]

    def _speed_lines(self) -> list[str]:
        if self.speed is None:
            return []
        if not self.speed.rates:
            return [f"speed  not measured: {self.speed.how}"]
        threads = [count(number, "thread") for number in self.speed.rates]
        rates = [f"{tell_rate(rate)} records/s" for rate in self.speed.rates.values()]
        columns = [Column("", threads), Column("", rates, is_number=True)]
        lines = (lay_out(columns, WIDE) or [])[1:]
        return [f"{KEY if n else 'speed  '}{line}" for n, line in enumerate([*lines, f"({self.speed.how})"])]


def wrap_key(line: str, width: int) -> list[str]:
    """A line that fits stays as it is: wrapping would take away the spaces that align it."""
    return [line] if len(line) <= width else wrap(line, width, KEY)


def count_all(number: int, noun: str) -> str:
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def tell_rate(rate: float) -> str:
    return f"{rate:,.0f}" if rate >= 100 else f"{rate:.3g}"
