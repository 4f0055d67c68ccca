"""A source as a string: `scheme:rest?key=value&…`."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from urllib.parse import unquote

from hostmesh.worker.errors import DataError
from hostmesh.worker.remote.urls import refuse_secrets


@dataclass(frozen=True)
class Spec:
    text: str
    scheme: str
    rest: str
    options: Mapping[str, str]

    @classmethod
    def parse(cls, text: str) -> Spec:
        refuse_secrets(text)
        head, _, query = text.partition("?")
        scheme, colon, rest = head.partition(":")
        if not colon or not scheme or not rest:
            raise DataError(f"a source is written scheme:what, as in digits:train; found {text!r}")
        return cls(text, scheme, unquote(rest), _parse_options(text, query))

    def check_options(self, *accepted: str) -> None:
        for key in self.options:
            if key not in accepted:
                raise DataError(f"{self.text}: {unknown('option', key, accepted)}")


def unknown(kind: str, word: str, accepted: Iterable[str]) -> str:
    """The message for a word that is not accepted, with the nearest one that is."""
    words = sorted(accepted)
    near = difflib.get_close_matches(word, words, 1)
    hint = f"; did you mean {near[0]}?" if near else ""
    return f"unknown {kind} {word!r}, wanted one of: {', '.join(words) or 'none'}{hint}"


def _parse_options(text: str, query: str) -> dict[str, str]:
    options: dict[str, str] = {}
    for pair in filter(None, query.split("&")):
        key, equals, value = pair.partition("=")
        if not equals or not key:
            raise DataError(f"{text}: an option is written key=value, found {pair!r}")
        if unquote(key) in options:
            raise DataError(f"{text}: the option {unquote(key)} is given twice")
        options[unquote(key)] = unquote(value)
    return options
