"""Shows whole lines of all processes on the user's terminal."""

from __future__ import annotations

import os
import select
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import NamedTuple, TextIO

from hostmesh.launcher.output.lines import RESET, LineCutter
from hostmesh.launcher.output.logs import LogPosition, LogTail, ShownLog
from hostmesh.launcher.output.merge import Merger, Shown, name_ids
from hostmesh.launcher.output.redact import redact_text

LINES_AT_ONCE = 1000
PALETTE = (36, 33, 32, 35, 94, 96, 93, 95)  # no red: it would look like an error
BOLD = 1  # for what several processes say


def use_colour(out: TextIO, environ: Mapping[str, str]) -> bool:
    return out.isatty() and not environ.get("NO_COLOR") and environ.get("TERM") != "dumb"


class Screen:
    """Follows the logs in a thread, at the terminal's own pace: a stalled terminal stalls nobody else."""

    def __init__(
        self,
        out: TextIO,
        colour: bool,
        notes: TextIO | None = None,
        hidden: Sequence[str] = (),
        wanted: Collection[int] | None = None,
        merge: bool = True,
    ) -> None:
        """The launcher's own lines go to `notes`, if it is given: they are no output of the program. They are
        shown without the `hidden` secrets, as logs are written without them. Of the processes only the `wanted` are
        shown; with `merge`, a line that several of them say within a moment is shown once."""
        self._write = _writer(out)
        self._write_notes = _writer(notes or out)
        self._colour = colour
        self._hidden = tuple(hidden)
        self._wanted = wanted
        self._merge = merge
        self._merger = Merger()
        self.shows_prompts = False  # show half lines of the only process: it may wait for an answer on this terminal
        self._prompt = ""  # the half line that stands on the screen, with its label
        self._tails: list[LogTail] = []
        self._newest: dict[int, LogTail] = {}  # by process
        self._notes: deque[_Note] = deque()
        self._awake = threading.Event()
        self._finished = False
        self._broken = False
        self._thread = threading.Thread(target=self._run, name="screen", daemon=True)

    @property
    def broken(self) -> bool:
        """Nobody reads the output any more."""
        return self._broken

    def follow(self, log: ShownLog, label: str, process_id: int) -> None:
        if self._wanted is not None and process_id not in self._wanted:
            return
        tail = LogTail(log, label, process_id, LineCutter(self._colour))
        tail.limit = tail.position if self._broken else tail.limit
        before = self._newest.get(process_id)
        if before is not None and before.is_over:  # of the attempt before, and all of it was shown
            self._tails = [each for each in self._tails if each is not before]
        self._newest[process_id] = tail
        self._tails.append(tail)
        self.wake()

    def mute(self, log: ShownLog) -> None:
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
        # Only logs with more to show get a mark: with a stalled terminal there may be many notes and many processes.
        marks = [tail.mark() for tail in self._tails if tail.has_more]
        self._notes.append(_Note(text, marks))
        self.wake()

    def _run(self) -> None:
        while not self._finished:
            self._awake.clear()
            self._take_turns()
            if not self._finished and not any(tail.has_more for tail in self._tails):
                self._awake.wait(self._timeout())

    def _take_turns(self) -> None:
        tails = list(self._tails)
        speaking = [tail.process_id for tail in tails if not tail.is_over]
        # Lines are merged only while all logs are shown in time: comparing them costs time, holding them memory.
        hold = self._merge and len(tails) > 1 and not any(tail.is_behind for tail in tails)
        for tail in tails:
            lines = tail.advance()
            if hold:
                self._merger.add(tail.process_id, lines, speaking, time.monotonic())
            else:
                self._merger.pass_on(tail.process_id, lines)
            if self._merger.ready_lines >= LINES_AT_ONCE:
                self._show_ready()
        self._merger.release_old(time.monotonic())
        self._show_ready()
        self._show_due_notes()
        if self.shows_prompts and not self._finished:
            self._show_prompt()

    def _show_due_notes(self) -> None:
        while self._notes and not self._finished and self._notes[0].is_due():
            text = self._notes.popleft().text
            self._finished = text is None
            if text is None:
                # Not of a muted log: its half line would stand below the verdict.
                for tail in self._tails:
                    if tail.limit == sys.maxsize:
                        self._merger.add(tail.process_id, tail.cutter.flush(), (), time.monotonic())
            self._merger.drain()
            self._show_ready()
            if text is not None:
                self._show_note(text)

    def _show_ready(self) -> None:
        if ready := self._merger.take():
            labels = {tail.process_id: tail.label for tail in self._tails}
            width = max(map(len, labels.values()))
            text = "".join(self._prefix(shown, labels, width) for shown in ready)
            if self._prompt:
                text = text[len(self._prompt) :] if text.startswith(self._prompt) else f"\n{text}"
                self._prompt = ""
            self._show(text)

    def _show_prompt(self) -> None:
        """Shows the half line of the only process; what it prints next goes on in the same line."""
        for tail in self._tails:
            if half := tail.cutter.half_line:
                line = self._prefix(Shown((tail.process_id,), [half]), {tail.process_id: tail.label}, 0)[:-1]
                if line.startswith(self._prompt) and line != self._prompt:
                    self._show(line[len(self._prompt) :])
                    self._prompt = line

    def _show(self, text: str) -> None:
        """When nobody reads the output any more the run goes on, and the launcher's own lines are still shown."""
        try:
            if not self._broken:
                self._write(text)
        except (OSError, ValueError):  # ValueError: the stream was closed
            self._broken = True
            for tail in self._tails:
                tail.limit = tail.position

    def _show_note(self, text: str) -> None:
        """A note is cleaned like any other line: it may quote what a process printed."""
        text = redact_text(text, self._hidden)
        lines = LineCutter(colour=False).feed(text.encode("utf-8", "replace") + b"\n")
        # Redacted again: characters that cannot be shown, and are gone now, may have stood inside of a secret.
        shown = redact_text("".join(f"{line}\n" for line in lines), self._hidden)
        if self._prompt:
            # The note gets a line of its own, and the prompt is shown again below it.
            shown, self._prompt = f"\n{shown}", ""
        try:
            self._write_notes(shown)
        except (OSError, ValueError):
            pass

    def _prefix(self, shown: Shown, labels: Mapping[int, str], width: int) -> str:
        first, *others = shown.ids
        label = f"[{name_ids(shown.ids) if others else labels[first]:<{width}}]"
        colour = BOLD if others else PALETTE[first % len(PALETTE)]
        prefix = f"\x1b[{colour}m{label}{RESET} " if self._colour else f"{label} "
        return prefix + f"\n{prefix}".join(shown.lines) + "\n"

    def _timeout(self) -> float | None:
        dues = [due for due in (self._merger.due, *(tail.cutter.due for tail in self._tails)) if due is not None]
        return max(0.0, min(dues) - time.monotonic()) if dues else None


class _Note(NamedTuple):
    """A line of the launcher itself, and what has to be shown before it."""

    text: str | None  # None ends the screen
    marks: list[LogPosition]

    def is_due(self) -> bool:
        return all(mark.is_passed() for mark in self.marks)


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
    # Not through the stream's own buffer: a stalled thread would hold its lock and block the interpreter's exit.
    return lambda text: _write_all(fd, text.encode(encoding, "replace"))


def _write_all(fd: int, data: bytes) -> None:
    rest = memoryview(data)
    while rest:
        try:
            rest = rest[os.write(fd, rest) :]
        except BlockingIOError:  # another program made the shared terminal non-blocking
            select.select([], [fd], [])
