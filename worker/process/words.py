"""Lists and plurals in messages."""

from __future__ import annotations

from collections.abc import Sequence


def list_some(items: Sequence[str], limit: int = 4, separator: str = "; ", before_rest: str = "; ") -> str:
    """`first; second; third; fourth; and 12 more`."""
    more = len(items) - limit
    shown = separator.join(items[:limit])
    return f"{shown}{before_rest}and {more} more" if more > 0 else shown


def plural(number: int, noun: str) -> str:
    """The noun alone: `process` for 1, `processes` for any other number."""
    if number == 1:
        return noun
    return f"{noun}{'es' if noun.endswith('s') else 's'}"


def count(number: int, noun: str) -> str:
    """`1 process`, `4 devices`."""
    return f"{number} {plural(number, noun)}"
