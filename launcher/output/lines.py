"""The bytes of one process as lines that cannot garble a terminal."""

from __future__ import annotations

import codecs
import re
import time
from collections.abc import Callable
from typing import NamedTuple

MAX_LINE = 8192  # bytes; longer lines are cut
# A line of so many characters is never too long: UTF-8 takes at most 4 bytes for each.
SHORT_LINE = MAX_LINE // 4
MAX_ESCAPE = 256
BAR_INTERVAL = 1.0
# Lines that begin like this are not shown: XLA's CPU collectives print one in every process for each device group.
NOISE = "[Gloo] Rank "
# Nor are these two, a warning and its source: Python's multiprocessing prints them after processes were killed.
TRACKER_NOISE, ITS_SOURCE = "UserWarning: resource_tracker: There appear to be ", "  warnings.warn("
RESET = "\x1b[0m"

_SGR = re.compile(r"\x1b\[[0-9;:]{0,64}m")
_ESCAPE = re.compile(
    r"\x1b(?:\[[0-?]*[ -/]*[@-~]?"  # CSI: colours, cursor movement, clearing
    r"|[\]PX^_][^\x07\x1b\x9c\r\n]*(?:\x07|\x9c|\x1b\\)?"  # OSC, DCS, …: a string up to BEL, ST or line end
    r"|[ -/]*[0-~]?)"
)
_CUT_ESCAPE = re.compile(r"\x1b(?:\[[0-?]*[ -/]*|[\]PX^_][^\x07\x1b\x9c\r\n]*\x1b?|[ -/]*)\Z")
_CONTROLS = [chr(code) for code in (*range(9), 11, 12, *range(14, 27), *range(28, 32), 127)]
# These, the C1 controls, and the characters that end lines or reorder text in Unicode.
_ODD = re.compile(f"[{''.join(_CONTROLS)}\x80-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ufeff]")


class _Line(NamedTuple):
    """What a terminal shows of a line after each "\\r" has let text overwrite text, as progress bars do."""

    text: str = ""
    overwrote: bool = False  # an earlier text stood in its place
    is_rewound: bool = False  # its last character was "\r": what follows overwrites it, unless the line ends there

    @classmethod
    def read(cls, raw: str) -> _Line:
        _, carriage_return, text = raw.rstrip("\r").rpartition("\r")
        return cls(text, bool(carriage_return), raw.endswith("\r"))

    @property
    def raw(self) -> str:
        """Characters that are read as this line again, also with others after them."""
        return ("\r" if self.overwrote else "") + self.text + ("\r" if self.is_rewound else "")

    @property
    def is_bar(self) -> bool:
        return self.overwrote or self.is_rewound


class LineCutter:
    """Turns the bytes of one process into lines that cannot garble a terminal."""

    def __init__(self, colour: bool, clock: Callable[[], float] = time.monotonic) -> None:
        self.due: float | None = None  # when to call feed(b"") for the next state of a progress bar
        self._colour = colour
        self._clock = clock
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._escape = ""  # an escape sequence that the end of a chunk cut off
        self._half = _Line()  # the line without an end yet
        self._expects_source = False
        self._shown: str | None = None  # what was last given of the progress bar

    def feed(self, data: bytes) -> list[str]:
        text = self._half.raw + self._clean(self._decoder.decode(data))
        *lines, rest = text.split("\n")
        if (
            "\r" in text
            or NOISE in text
            or TRACKER_NOISE in text
            or self._expects_source
            or max(map(len, lines), default=0) > SHORT_LINE
        ):
            lines = [piece for line in lines for piece in self._end_line(line)]
        return self._reset_colours(lines + self._hold(rest))

    def flush(self) -> list[str]:
        """The last lines, at the end of the stream: one without a line end, if there is any."""
        text = self._half.raw + self._clean(self._decoder.decode(b"", final=True))
        self._half, self._escape = _Line(), ""
        lines = self._end_line(text)
        return [] if _is_blank(text) else self._reset_colours(lines)

    @property
    def half_line(self) -> str:
        """The text after the last line end, such as a prompt; empty for a progress bar."""
        return "" if self._half.is_bar else self._half.text

    def _clean(self, text: str) -> str:
        text = self._escape + text
        self._escape = ""
        if "\x1b" in text:
            text = self._clean_escapes(text)
        return _ODD.sub("", text) if _has_odd(text) else text

    def _clean_escapes(self, text: str) -> str:
        if cut := _CUT_ESCAPE.search(text):
            text, self._escape = text[: cut.start()], _shorten_escape(cut[0])
        return _ESCAPE.sub(self._keep_colour, text)

    def _keep_colour(self, match: re.Match[str]) -> str:
        return match[0] if self._colour and _SGR.fullmatch(match[0]) else ""

    def _reset_colours(self, lines: list[str]) -> list[str]:
        return [line + RESET if "\x1b" in line else line for line in lines] if self._colour else lines

    def _end_line(self, raw: str) -> list[str]:
        line = _Line.read(raw)
        is_cleared_bar = line.overwrote and _is_blank(line.text)
        is_wanted = line.text != self._shown and not is_cleared_bar and not self._is_noise(line.text)
        self._shown = self.due = None
        return _cut_long(line.text) if is_wanted else []

    def _is_noise(self, line: str) -> bool:
        is_source = self._expects_source and line.startswith(ITS_SOURCE)
        self._expects_source = TRACKER_NOISE in line
        return is_source or self._expects_source or line.startswith(NOISE)

    def _hold(self, raw: str) -> list[str]:
        """Keeps a line without an end; what is too long of it, and a progress bar from time to time, is given now."""
        line = _Line.read(raw)
        *lines, text = _cut_long(line.text)
        self._half = line._replace(text=text)
        return lines + self._show_bar(text) if line.is_bar else lines

    def _show_bar(self, state: str) -> list[str]:
        if _is_blank(state) or state == self._shown:
            self.due = None
            return []
        now = self._clock()
        self.due = now + BAR_INTERVAL if self.due is None else self.due
        if now < self.due:
            return []
        self.due, self._shown = None, state
        return [state]


def _has_odd(text: str) -> bool:
    if text.isascii():  # a search for each character is 15 times as fast as one for the set
        return any(map(text.__contains__, _CONTROLS))
    return _ODD.search(text) is not None


def _is_blank(state: str) -> bool:
    return not _SGR.sub("", state).strip()


def _shorten_escape(escape: str) -> str:
    """Only the first two characters of a cut-off escape sequence matter, unless its last one is an ESC: that may begin
    its terminator."""
    return escape if len(escape) <= MAX_ESCAPE or escape.endswith("\x1b") else escape[:2]


def _cut_long(line: str) -> list[str]:
    if len(line) <= SHORT_LINE:
        return [line]
    data, at, pieces = line.encode(), 0, []
    while len(data) - at > MAX_LINE:
        end = _cut_point(data, at)
        pieces.append(data[at:end].decode())
        at = end
    return [*pieces, data[at:].decode()]


def _cut_point(data: bytes, at: int) -> int:
    """The last place for a cut that splits neither a character nor a colour."""
    end = at + MAX_LINE
    while data[end] & 0xC0 == 0x80:
        end -= 1
    colour = data.rfind(b"\x1b", at + 1, end)
    return colour if colour > 0 and b"m" not in data[colour:end] else end
