"""Shows whole lines of all processes on the user's terminal."""

from __future__ import annotations

import codecs
import os
import re
import select
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple, TextIO

from launcher.redact import redact_text

if TYPE_CHECKING:
    from launcher.logs import ProcessLog

CHUNK = 64 * 1024  # bytes of one log per turn: small enough that no process waits long for its next turn
LONGEST_LINE = 8192
LONGEST_ESCAPE = 256
BAR_INTERVAL = 1.0
PALETTE = (36, 33, 32, 35, 94, 96, 93, 95)  # no red: it would look like an error
# What XLA's CPU collectives print in every process for every group of devices; the log has it all.
NOISE = "[Gloo] Rank "
RESET = "\x1b[0m"

_SGR = re.compile(r"\x1b\[[0-9;:]{0,64}m")
_ESCAPE = re.compile(
    r"\x1b(?:\[[0-?]*[ -/]*[@-~]?"  # CSI: colours, cursor movement, clearing
    r"|[\]PX^_][^\x07\x1b\x9c\r\n]*(?:\x07|\x9c|\x1b\\)?"  # OSC, DCS, …: a string up to BEL, ST or line end
    r"|[ -/]*[0-~]?)"
)
_CUT_ESCAPE = re.compile(r"\x1b(?:\[[0-?]*[ -/]*|[\]PX^_][^\x07\x1b\x9c\r\n]*\x1b?|[ -/]*)\Z")
_CONTROLS = [chr(code) for code in (*range(9), 11, 12, *range(14, 27), *range(28, 32), 127)]
# And the C1 controls, and what ends lines or reorders text in Unicode.
_ODD = re.compile(f"[{''.join(_CONTROLS)}\x80-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ufeff]")


def use_colour(out: TextIO, environ: Mapping[str, str]) -> bool:
    return out.isatty() and not environ.get("NO_COLOR") and environ.get("TERM") != "dumb"


class LineCutter:
    """Turns the bytes of one process into lines that cannot garble a terminal."""

    def __init__(self, colour: bool, clock: Callable[[], float] = time.monotonic) -> None:
        self.due: float | None = None  # when feed(b"") will give a progress bar that waits to be shown
        self._colour = colour
        self._clock = clock
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._escape = ""  # an escape sequence that the end of a chunk cut off
        self._line = ""  # the line without an end yet; it begins with "\r" if it has overwritten another
        self._shown: str | None = None  # the state of the progress bar that was given last

    def feed(self, data: bytes) -> list[str]:
        text = self._line + self._clean(self._decoder.decode(data))
        *lines, rest = text.split("\n")
        if "\r" in text or NOISE in text or max(map(len, lines), default=0) > LONGEST_LINE // 4:
            lines = [piece for line in lines for piece in self._end_line(line)]
        return self._reset_colours(lines + self._hold(rest))

    def flush(self) -> list[str]:
        """The half line at the end of the stream."""
        text = self._line + self._clean(self._decoder.decode(b"", final=True))
        self._line = self._escape = ""
        lines = self._end_line(text)
        return [] if _is_blank(text) else self._reset_colours(lines)

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

    def _end_line(self, line: str) -> list[str]:
        overwrote, state = _newest_state(line)
        is_wanted = state != self._shown and not (overwrote and _is_blank(state)) and not state.startswith(NOISE)
        self._shown = self.due = None
        return _cut_long(state) if is_wanted else []

    def _hold(self, rest: str) -> list[str]:
        overwrote, state = _newest_state(rest)
        *lines, state = _cut_long(state)
        self._line = overwrote + state + ("\r" if rest.endswith("\r") else "")
        return lines + self._show_bar(state) if "\r" in self._line else lines

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


def _newest_state(line: str) -> tuple[str, str]:
    """Whether ("\\r" or "") a progress bar has overwritten itself, and what it shows now."""
    return line.rstrip("\r").rpartition("\r")[1:]


def _is_blank(state: str) -> bool:
    return not _SGR.sub("", state).strip()


def _shorten_escape(escape: str) -> str:
    """All but the first two characters would be dropped anyway; a last ESC may begin the terminator."""
    return escape if len(escape) <= LONGEST_ESCAPE or escape.endswith("\x1b") else escape[:2]


def _cut_long(line: str) -> list[str]:
    if len(line) <= LONGEST_LINE // 4:
        return [line]
    data, at, pieces = line.encode(), 0, []
    while len(data) - at > LONGEST_LINE:
        end = _cut_point(data, at)
        pieces.append(data[at:end].decode())
        at = end
    return [*pieces, data[at:].decode()]


def _cut_point(data: bytes, at: int) -> int:
    """The last place for a cut that splits neither a character nor a colour."""
    end = at + LONGEST_LINE
    while data[end] & 0xC0 == 0x80:
        end -= 1
    colour = data.rfind(b"\x1b", at + 1, end)
    return colour if colour > 0 and b"m" not in data[colour:end] else end


class Screen:
    """Follows the logs in a thread, at the terminal's own pace: a stalled terminal stalls nobody else."""

    def __init__(self, out: TextIO, colour: bool, notes: TextIO | None = None, hidden: Sequence[str] = ()) -> None:
        """The launcher's own lines go to `notes`, if it is another stream: they are no output of the program. They are
        shown without the `hidden` secrets, as logs are written without them."""
        self._write = _writer(out)
        self._write_notes = _writer(notes or out)
        self._colour = colour
        self._hidden = tuple(hidden)
        self._tails: list[_Tail] = []
        self._notes: deque[_Note] = deque()
        self._awake = threading.Event()
        self._finished = False
        self._broken = False
        self._thread = threading.Thread(target=self._run, name="screen", daemon=True)

    @property
    def broken(self) -> bool:
        """Nobody reads the output any more."""
        return self._broken

    def follow(self, log: ProcessLog, label: str, colour_index: int) -> None:
        tail = _Tail(log, label, PALETTE[colour_index % len(PALETTE)], LineCutter(self._colour))
        tail.limit = tail.position if self._broken else tail.limit
        self._tails.append(tail)
        self.wake()

    def mute(self, log: ProcessLog) -> None:
        """Show nothing of this log beyond what has been written so far."""
        for tail in self._tails:
            if tail.log is log:
                tail.limit = log.reach

    def start(self) -> None:
        self._thread.start()

    def wake(self) -> None:
        self._awake.set()

    def note(self, text: str) -> None:
        """A line of the launcher itself, shown after all output that was written before it."""
        self._post(text)

    def finish(self, timeout: float | None) -> bool:
        """Shows all that was written so far and stops; False if the time ran out."""
        self._post(None)
        if self._thread.ident is None:
            self.start()
        self._thread.join(timeout)
        return not self._thread.is_alive()

    def _post(self, text: str | None) -> None:
        # Only logs that are behind: a stalled terminal must not cost memory for each note and each process.
        marks = [(tail, tail.goal) for tail in self._tails if tail.position < tail.goal]
        self._notes.append(_Note(text, marks))
        self.wake()

    def _run(self) -> None:
        while not self._finished:
            self._awake.clear()
            self._take_turns()
            if not self._finished and not any(tail.position < tail.goal for tail in self._tails):
                self._awake.wait(self._patience())

    def _take_turns(self) -> None:
        batch: list[str] = []
        size = 0
        width = max((len(tail.label) for tail in self._tails), default=0)
        for tail in self._tails:
            block = self._prefix(tail, width, tail.advance())
            batch.append(block)
            size += len(block)
            if size >= CHUNK:
                self._show("".join(batch))
                batch, size = [], 0
        if any(batch):
            self._show("".join(batch))
        self._show_ripe_notes(width)

    def _show_ripe_notes(self, width: int) -> None:
        while self._notes and not self._finished and self._notes[0].is_ripe():
            text = self._notes.popleft().text
            if text is not None:
                self._show_note(text)
                continue
            self._finished = True
            # Of a log that was muted half a line would come after the verdict.
            heard = [tail for tail in self._tails if tail.limit == sys.maxsize]
            rest = "".join(self._prefix(tail, width, tail.cutter.flush()) for tail in heard)
            if rest:
                self._show(rest)

    def _show(self, text: str) -> None:
        """A program that nobody reads any more goes on; the launcher's own lines may still have a reader."""
        try:
            if not self._broken:
                self._write(text)
        except (OSError, ValueError):  # ValueError: the stream was closed
            self._broken = True
            for tail in self._tails:
                tail.limit = tail.position

    def _show_note(self, text: str) -> None:
        """Cut like any other line: a note may quote what a process said."""
        text = redact_text(text, self._hidden)
        lines = LineCutter(colour=False).feed(text.encode("utf-8", "replace") + b"\n")
        # Again: what cannot be shown may have stood inside of a secret.
        shown = redact_text("".join(f"{line}\n" for line in lines), self._hidden)
        try:
            self._write_notes(shown)
        except (OSError, ValueError):
            pass

    def _prefix(self, tail: _Tail, width: int, lines: list[str]) -> str:
        if not lines:
            return ""
        label = f"[{tail.label:<{width}}]"
        prefix = f"\x1b[{tail.colour}m{label}{RESET} " if self._colour else f"{label} "
        return prefix + f"\n{prefix}".join(lines) + "\n"

    def _patience(self) -> float | None:
        dues = [tail.cutter.due for tail in self._tails if tail.cutter.due is not None]
        return max(0.0, min(dues) - time.monotonic()) if dues else None


class _Note(NamedTuple):
    text: str | None  # None: stop here
    marks: list[tuple[_Tail, int]]

    def is_ripe(self) -> bool:
        return all(tail.position >= min(mark, tail.limit) for tail, mark in self.marks)


class _Tail:
    """How far one log has been shown."""

    def __init__(self, log: ProcessLog, label: str, colour: int, cutter: LineCutter) -> None:
        self.log = log
        self.label = label
        self.colour = colour
        self.cutter = cutter
        self.position = log.start  # in bytes; the end of the log counts as one more
        self.limit = sys.maxsize

    @property
    def goal(self) -> int:
        # In this order: an ended log does not grow.
        return min(self.log.ended + self.log.reach, max(self.limit, self.position))

    def advance(self) -> list[str]:
        """The next lines, from no more than a chunk of the log."""
        goal, size = self.goal, min(self.log.reach, self.limit)
        if self.position < size:
            return self._read(min(CHUNK, size - self.position))
        if self.position < goal:
            self.position = goal
            return self.cutter.flush()
        return self.cutter.feed(b"") if self.cutter.due is not None else []

    def _read(self, count: int) -> list[str]:
        if self.log.error is not None and self.position >= self.log.size:
            data = self.log.take_spill(count)  # what the disk does not take
            self.position += len(data)
            return self.cutter.feed(data)
        count = min(count, self.log.size - self.position)
        # Opened for each chunk: one more open file for each process would soon be too many.
        try:
            with open(self.log.path, "rb", buffering=0) as file:
                file.seek(self.position)
                data = file.read(count)
            reason = "it was cut short"
        except OSError as error:
            data, reason = b"", str(error.strerror)
        if data:
            self.position += len(data)
            return self.cutter.feed(data)
        self.position = sys.maxsize
        return [*self.cutter.flush(), f"(the rest cannot be shown: {self.log.path}: {reason})"]


def _writer(out: TextIO) -> Callable[[str], None]:
    """Writes all of a text at once, with a replacement for each character that the stream cannot encode."""
    encoding = out.encoding or "utf-8"
    try:
        out.flush()
        fd = out.fileno()
    except (OSError, ValueError):

        def write(text: str) -> None:
            out.write(text.encode(encoding, "replace").decode(encoding))
            out.flush()

        return write
    # Past the stream's own buffer: its lock, held by a stalled thread, would block the interpreter's exit.
    return lambda text: _write_all(fd, text.encode(encoding, "replace"))


def _write_all(fd: int, data: bytes) -> None:
    rest = memoryview(data)
    while rest:
        try:
            rest = rest[os.write(fd, rest) :]
        except BlockingIOError:  # another program made the shared terminal non-blocking
            select.select([], [fd], [])
