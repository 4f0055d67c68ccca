"""Follow the folder of a run, whoever supervises it: its notes and logs go to a screen as they grow."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

from hostmesh.launcher.output.screen import Screen
from hostmesh.launcher.runs.reading import LOG, Lines, attempt_and_process, find_last_line


class FollowedLog:
    """A log that another process writes."""

    error: OSError | None = None

    def __init__(self, path: Path, at_end: bool) -> None:
        self.path = path
        self.start = self.size = find_last_line(path) if at_end else 0
        self.ended = False

    @property
    def reach(self) -> int:
        return self.size

    def take_spill(self, count: int) -> bytes:
        return b""  # what the disk did not take is nowhere to be had


class Follower:
    """`names` are those of the hosts, by process. At first everything is shown, or, `at_end`, only what comes from now
    on."""

    def __init__(self, folder: Path, screen: Screen, names: Mapping[int, str], at_end: bool) -> None:
        self._folder, self._screen, self._names, self._at_end = folder / "logs", screen, names, at_end
        self._notes = Lines(folder / "notes.jsonl", at_end)
        self._logs: dict[str, FollowedLog] = {}
        self._ids: dict[str, int] = {}
        self.look()
        self._at_end = False  # logs that are made from now on are shown from their beginning

    def look(self) -> None:
        """What was printed before a note is shown before it: sizes are looked up before the notes are read."""
        sizes = self._find_sizes()
        for note in self._notes.read():
            self._grow(note.get("logs") or {})
            if "text" in note:
                self._screen.note(note["text"])
            if "mute_all_but" in note:
                self._mute_all_but(note["mute_all_but"])
        self._grow(sizes)

    def finish(self) -> None:
        """Nobody writes any more."""
        self.look()
        for log in self._logs.values():
            log.ended = True
        self._screen.wake()

    def _find_sizes(self) -> dict[str, int]:
        found = {}
        for folder in [self._folder, *self._folder.glob("attempt-*")]:
            with os.scandir(folder) as entries:
                for entry in entries:
                    name = os.path.relpath(entry.path, self._folder)
                    if LOG.fullmatch(name):
                        found[name] = entry.stat().st_size
        return found

    def _grow(self, sizes: Mapping[str, int]) -> None:
        for name in sorted(sizes.keys() - self._logs.keys(), key=attempt_and_process):
            self._follow(name)
        for name, size in sizes.items():
            log = self._logs[name]
            log.size = max(log.size, size)
        self._screen.wake()

    def _follow(self, name: str) -> None:
        attempt, process_id = attempt_and_process(name)
        for earlier, log in self._logs.items():
            if self._ids[earlier] == process_id:
                log.ended = True  # an attempt before this one
        self._logs[name], self._ids[name] = FollowedLog(self._folder / name, self._at_end), process_id
        self._screen.follow(self._logs[name], f"{process_id} {self._names.get(process_id, '?')}", process_id)

    def _mute_all_but(self, process_id: int) -> None:
        for name, log in self._logs.items():
            if self._ids[name] != process_id and not log.ended:
                self._screen.mute(log)
