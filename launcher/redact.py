"""Takes secret values out of bytes and text, also across chunk boundaries."""

import json
from collections.abc import Iterable, Sequence
from typing import Any, AnyStr

REDACTED = "[redacted]"


class Redactor:
    """Redacts one stream of bytes; how it is cut into chunks makes no difference to what comes out."""

    def __init__(self, secrets: Iterable[str]) -> None:
        self._needles = [form.encode("utf-8", "surrogateescape") for form in _forms(secrets)]
        self._held = b""
        self._covered = 0  # leading bytes of _held that an emitted [redacted] stands for

    def feed(self, data: bytes) -> bytes:
        """What may be written now; a tail that may be the beginning of a secret is held back."""
        if not self._needles:
            return data
        data = self._held + data if self._held else data
        return self._emit(data, _unsure_from(data, self._needles))

    def flush(self) -> bytes:
        return self._emit(self._held, len(self._held))

    def _emit(self, data: bytes, end: int) -> bytes:
        pieces, at = _redact(data, self._needles, REDACTED.encode(), self._covered, end)
        self._held, self._covered = data[end:], at - end
        return b"".join(pieces)


def redact_text(text: str, secrets: Iterable[str]) -> str:
    return _redact_str(text, _forms(secrets))


def redact_json(value: Any, secrets: Iterable[str]) -> Any:
    return _redact_value(value, _forms(secrets))


def _redact_value(value: Any, needles: list[str]) -> Any:
    match value:
        case str():
            return _redact_str(value, needles)
        case dict():
            return {_redact_value(k, needles): _redact_value(v, needles) for k, v in value.items()}
        case list():
            return [_redact_value(item, needles) for item in value]
        case tuple():
            return tuple(_redact_value(item, needles) for item in value)
    return value


def _redact_str(text: str, needles: list[str]) -> str:
    pieces, _ = _redact(text, needles, REDACTED, 0, len(text))
    return "".join(pieces)


def _forms(secrets: Iterable[str]) -> list[str]:
    """Each secret as it is, and as it looks inside JSON and inside repr()."""
    forms: dict[str, None] = {}
    for secret in filter(None, secrets):
        escaped = (json.dumps(secret), json.dumps(secret, ensure_ascii=False), repr(secret))
        forms |= dict.fromkeys([secret, *(form[1:-1] for form in escaped)])
    return list(forms)


def _redact(
    data: AnyStr,
    needles: Sequence[AnyStr],
    mark: AnyStr,
    at: int,
    end: int,
) -> tuple[list[AnyStr], int]:
    """The pieces of data[at:end] with secrets that begin there replaced, and where the last of them stops."""
    pieces = []
    for start, stop in _matches(data, needles):
        if start >= end:
            break
        # Secrets that overlap are one: leftmost-first would leave the end of the second one readable.
        if start >= at:
            pieces += [data[at:start], mark]
        at = max(at, stop)
    if at < end:
        pieces.append(data[at:end])
    return pieces, max(at, end)


def _matches(data: AnyStr, needles: Sequence[AnyStr]) -> list[tuple[int, int]]:
    found = []
    for needle in needles:
        at = data.find(needle)
        while at >= 0:
            found.append((at, at + len(needle)))
            at = data.find(needle, at + 1)
    return sorted(found)


def _unsure_from(data: bytes, needles: list[bytes]) -> int:
    """Where the first secret begins that the end of the data may have cut in two."""
    first = len(data)
    for needle in needles:
        at = data.find(needle[:1], max(0, len(data) - len(needle) + 1), first)
        while at >= 0 and not needle.startswith(data[at:]):
            at = data.find(needle[:1], at + 1, first)
        first = at if at >= 0 else first
    return first
