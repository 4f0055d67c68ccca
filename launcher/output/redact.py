"""Takes secret values out of bytes and text, also across chunk boundaries and where a text was cut."""

import functools
import json
import os
import re
from collections.abc import Iterable, Sequence
from typing import Any, AnyStr

from hostmesh.worker.remote.url_secrets import hide_secrets

REDACTED = "[redacted]"
# Texts are only ever cut to this length or more. A shorter text is whole: no part of a secret is at its ends.
MIN_CUT = 1000
# A part of a secret at the end of a cut text that is shorter than this is dropped without a mark: most are chance.
MIN_MARKED = 4
# What follows the scheme of an address: perhaps a user and password before its host, or a signature behind it. To look
# for the scheme as well would take a second for 10,000 letters that are none.
URL = re.compile(r"(?i)(?::|%3a)//\S*")


class Redactor:
    """Redacts one stream of bytes; how it is cut into chunks makes no difference to what comes out."""

    def __init__(self, secrets: Iterable[str]) -> None:
        self._needles = _forms_as_bytes(tuple(secrets))
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
    return _redact_str(text, _forms(tuple(secrets)), may_be_cut=False)


def redact_variables(text: str, names: Iterable[str]) -> str:
    """The text without the values that these environment variables have here."""
    return redact_text(text, [os.environ.get(name, "") for name in names])


def hide_in_urls(text: str) -> str:
    """The text without what lets somebody in: `https://…@host/a.npy?X-Amz-Signature=…`."""
    return URL.sub(lambda found: hide_secrets(found[0]), text)


def redact_json(value: Any, secrets: Iterable[str]) -> Any:
    return _redact_value(value, _forms(tuple(secrets)), may_be_cut=False)


def redact_cut_json(value: Any, secrets: Iterable[str]) -> Any:
    """As redact_json; long texts, which may have been cut, also lose part of a secret at their ends."""
    return _redact_value(value, _forms(tuple(secrets)), may_be_cut=True)


def redact_cut_bytes(data: bytes, secrets: Iterable[str]) -> bytes:
    needles = _forms_as_bytes(tuple(secrets))
    return b"".join(_redact_all(data, needles, REDACTED.encode(), len(data) >= MIN_CUT))


def _redact_value(value: Any, needles: Sequence[str], may_be_cut: bool) -> Any:
    def redact(each: Any) -> Any:
        return _redact_value(each, needles, may_be_cut)

    match value:
        case str():
            return _redact_str(value, needles, may_be_cut)
        case dict():
            return {redact(k): redact(v) for k, v in value.items()}
        case list():
            return [redact(item) for item in value]
        case tuple():
            return tuple(redact(item) for item in value)
    return value


def _redact_str(text: str, needles: Sequence[str], may_be_cut: bool) -> str:
    is_cut = may_be_cut and len(text) >= MIN_CUT
    if is_cut:
        text = text.strip("\ufffd")  # a half character at the end would hide the part of a secret beside it
    return "".join(_redact_all(text, needles, REDACTED, is_cut))


def _redact_all(data: AnyStr, needles: Sequence[AnyStr], mark: AnyStr, is_cut: bool) -> list[AnyStr]:
    start, stop = _sure_part(data, needles) if is_cut and needles else (0, len(data))
    pieces, _ = _redact(data, needles, mark, start, max(start, stop))
    if start >= MIN_MARKED:
        pieces.insert(0, mark)
    if start < stop and len(data) - stop >= MIN_MARKED:
        pieces.append(mark)
    return pieces


@functools.lru_cache(maxsize=4)
def _forms_as_bytes(secrets: tuple[str, ...]) -> list[bytes]:
    return [form.encode("utf-8", "surrogateescape") for form in _forms(secrets)]


@functools.lru_cache(maxsize=4)
def _forms(secrets: tuple[str, ...]) -> list[str]:
    """Each secret as it is, and as it looks inside JSON and inside repr(), whose quotes depend on what is beside it."""
    forms: dict[str, None] = {}
    for secret in filter(None, secrets):
        as_bytes = repr(secret.encode("utf-8", "surrogateescape"))[1:]
        escaped = (json.dumps(secret), json.dumps(secret, ensure_ascii=False), repr(secret), as_bytes)
        forms |= dict.fromkeys([secret, *(form[1:-1] for form in escaped), repr('"' + secret)[2:-1]])
    return list(forms)


def _redact(
    data: AnyStr,
    needles: Sequence[AnyStr],
    mark: AnyStr,
    at: int,
    end: int,
) -> tuple[list[AnyStr], int]:
    """data[at:end] in pieces, the secrets that begin there replaced, and where the last of them ends."""
    pieces = []
    for start, stop in _matches(data, needles):
        if start >= end:
            break
        # Secrets that overlap are replaced together: else the end of the second one would stay readable.
        if start >= at:
            pieces += [data[at:start], mark]
        at = max(at, stop)
    if at < end:
        pieces.append(data[at:end])
    return pieces, max(at, end)


def _matches(data: AnyStr, needles: Sequence[AnyStr]) -> list[tuple[int, int]]:
    spans = []
    for needle in needles:
        at = data.find(needle)
        while at >= 0:
            spans.append((at, at + len(needle)))
            at = data.find(needle, at + 1)
    return sorted(spans)


def _sure_part(data: AnyStr, needles: Sequence[AnyStr]) -> tuple[int, int]:
    """Start and end of the part that holds no piece of a secret, of a text that may have been cut inside of secrets."""
    if any(data in needle for needle in needles):
        return len(data), len(data)
    return _unsure_until(data, needles), _unsure_from(data, needles)


def _unsure_until(data: AnyStr, needles: Sequence[AnyStr]) -> int:
    """Where the last secret ends that the beginning of the data may have cut in two."""
    last = 0
    for needle in needles:
        end = data.rfind(needle[-1:], last, len(needle) - 1) + 1
        while end > last and not needle.endswith(data[:end]):
            end = data.rfind(needle[-1:], last, end - 1) + 1
        last = max(last, end)
    return last


def _unsure_from(data: AnyStr, needles: Sequence[AnyStr]) -> int:
    """Where the first secret begins that the end of the data may have cut in two."""
    first = len(data)
    for needle in needles:
        at = data.find(needle[:1], max(0, len(data) - len(needle) + 1), first)
        while at >= 0 and not needle.startswith(data[at:]):
            at = data.find(needle[:1], at + 1, first)
        first = at if at >= 0 else first
    return first
