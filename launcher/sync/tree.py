"""The code that is sent to every host: lists the files of a folder with their digests, and reads them as listed."""

from __future__ import annotations

import json
import os
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

from hostmesh.launcher.agent.sync.manifest import (
    CHUNK,
    LINK_MODE,
    READ,
    STATE_FOLDER,
    Entry,
    hash_bytes,
    leads_out,
    new_hash,
    pack_manifest,
    show,
    to_bytes,
    to_text,
)
from hostmesh.launcher.errors import UsageError
from hostmesh.launcher.protocol import wire
from hostmesh.launcher.sync.ignore import Rules, is_ignored, parse_exclude, parse_gitignore
from hostmesh.launcher.sync.open_files import find_written
from hostmesh.launcher.words import count_things

__all__ = ["Entry", "FileChanged", "Tree", "read_tree"]

NEVER_SENT = {".git", STATE_FOLDER, "__pycache__"}
# Files of up to this size are kept in memory as they were listed, and this many bytes of them in all.
KEPT_SIZE, KEPT_IN_ALL = CHUNK, 64 << 20


class FileChanged(Exception):
    """A file is not as it was listed; the text says why and follows the file's name in a sentence."""


@dataclass(frozen=True)
class Tree:
    """The listed files. `skipped` says what was left out for another reason than a rule; `kept` holds small files."""

    root: Path
    entries: tuple[Entry, ...]
    skipped: tuple[str, ...]
    kept: dict[str, bytes] = field(default_factory=dict, repr=False, compare=False)

    @cached_property
    def digest(self) -> str:
        """The hash of the whole code."""
        return hash_bytes(json.dumps(self.entries).encode())

    def encode(self) -> bytes:
        return pack_manifest(self.entries)

    def pieces(self, index: int) -> Iterator[wire.FileChunk]:
        """A file, read as it is asked for; raises FileChanged before the last piece if it is not as it was listed."""
        entry = self.entries[index]
        content, data = new_hash(), b""
        for more in self._read(entry):
            content.update(more)
            if data:
                yield wire.FileChunk(index, False, zlib.compress(data, 1))
            data = more
        if content.hexdigest() != entry.digest:
            raise FileChanged("it changes while it is being sent")
        yield wire.FileChunk(index, True, zlib.compress(data, 1))

    def _read(self, entry: Entry) -> Iterator[bytes]:
        if entry.path in self.kept:
            yield self.kept[entry.path]
            return
        try:
            fd = os.open(os.path.join(os.fsencode(self.root), to_bytes(entry.path)), READ)
            try:
                yield from read_beginning(fd, entry.size)
            finally:
                os.close(fd)
        except FileNotFoundError:
            raise FileChanged("it has been deleted since it was listed") from None
        except OSError as error:
            raise FileChanged(f"it cannot be read any more ({error.strerror})") from None


def read_beginning(fd: int, size: int) -> Iterator[bytes]:
    """Reads at most `size` bytes, the file's size when it was listed: somebody may write to it without end."""
    while size > 0 and (data := os.read(fd, min(size, CHUNK))):
        size -= len(data)
        yield data


def read_tree(root: Path, exclude: Sequence[str] = (), skip: Sequence[Path] = ()) -> Tree:
    """Lists every file below `root` that no rule ignores; `skip` are folders that are never sent."""
    if not root.is_dir():
        what = "a file" if root.exists() else "nothing"
        raise UsageError(f"sync: from: found {what} at {root}; wanted a folder with the code to send")
    listing = Listing(root, exclude, skip)
    listing.read_all()
    if listing.problems:
        count = count_things(len(listing.problems), "file")
        lines = "".join(f"\n  {problem}" for problem in sorted(listing.problems))
        raise UsageError(f"sync: cannot read {count} in {root}; make them readable or exclude them:{lines}")
    return Tree(root, tuple(sorted(listing.entries)), tuple(sorted(listing.skipped)), listing.kept)


class Listing:
    """Walks the folders below `root`, except those that are ignored."""

    def __init__(self, root: Path, exclude: Sequence[str], skip: Sequence[Path]) -> None:
        self.top = os.fsencode(os.path.realpath(root))
        self.never_sent = {os.fsencode(os.path.realpath(path)) for path in skip}
        self.exclusions = parse_exclude(exclude)
        self.entries: list[Entry] = []
        self.skipped: list[str] = []
        self.problems: list[str] = []
        self.written = find_written(self.top)
        self.kept: dict[str, bytes] = {}
        self.room = KEPT_IN_ALL  # bytes that may still be kept

    def read_all(self) -> None:
        waiting: list[tuple[str, tuple[Rules, ...]]] = [("", self._read_rules(".git/info/exclude", ""))]
        while waiting:
            base, layers = waiting.pop()
            layers = (*self._read_rules(f"{base}.gitignore", base), *layers)
            waiting += [(folder, layers) for folder in self._read_folder(base, layers)]

    def _read_rules(self, path: str, base: str) -> tuple[Rules, ...]:
        """The rules of a .gitignore file; none where it is missing, or a link, which git does not follow either."""
        try:
            with os.fdopen(os.open(self._locate(path), READ), "rb") as file:
                return (parse_gitignore(to_text(file.read()), base),)
        except OSError:
            return ()

    def _locate(self, path: str) -> bytes:
        return os.path.join(self.top, to_bytes(path))

    def _read_folder(self, base: str, layers: tuple[Rules, ...]) -> list[str]:
        """Lists the files of a folder, and returns the folders in it that are still to be read."""
        folders = []
        try:
            with os.scandir(self._locate(base)) as items:
                for item in items:
                    path = base + to_text(item.name)
                    is_folder = item.is_dir(follow_symlinks=False)
                    if self._is_left_out(path, item, is_folder, layers):
                        continue
                    if is_folder:
                        folders.append(f"{path}/")
                    else:
                        self._read_item(path, item)
        except OSError as error:
            self.problems.append(f"{show(base)}: {error.strerror}")
        return folders

    def _is_left_out(self, path: str, item: os.DirEntry[bytes], is_folder: bool, layers: tuple[Rules, ...]) -> bool:
        if to_text(item.name) in NEVER_SENT or item.path in self.never_sent:
            return True
        return is_ignored(path, is_folder, (self.exclusions, *layers))

    def _read_item(self, path: str, item: os.DirEntry[bytes]) -> None:
        try:
            if item.is_symlink():
                self._read_link(path, item)
            elif not item.is_file(follow_symlinks=False):
                self.skipped.append(f"{show(path)} was left out: it is neither a file nor a folder nor a link")
            elif item.path in self.written and not path.endswith(".py"):
                # A log, for instance: it would be old when it arrives, and make the same code look different.
                self.skipped.append(f"{show(path)} was left out: somebody is writing it")
            else:
                self._read_file(path, item)
        except FileNotFoundError:
            pass  # gone since the folder was listed
        except OSError as error:
            self.problems.append(f"{show(path)}: {error.strerror}")

    def _read_file(self, path: str, item: os.DirEntry[bytes]) -> None:
        content = new_hash()
        fd = os.open(item.path, READ)
        try:
            status = os.fstat(fd)
            first = os.read(fd, min(status.st_size, CHUNK))
            content.update(first)
            size = len(first)
            for data in read_beginning(fd, status.st_size - size) if size < status.st_size else ():
                content.update(data)
                size += len(data)
        finally:
            os.close(fd)
        self.entries.append(Entry(path, "file", status.st_mode & 0o777, size, content.hexdigest()))
        if size == len(first) and size <= min(KEPT_SIZE, self.room):
            self.kept[path] = first
            self.room -= size

    def _read_link(self, path: str, item: os.DirEntry[bytes]) -> None:
        target = to_text(os.readlink(item.path))
        real = os.path.realpath(item.path)
        if leads_out(path, target) or os.path.commonpath((real, self.top)) != self.top:
            self.skipped.append(
                f"{show(path)} was left out: it is a link that leads out of the tree, to {show(target)}"
            )
            return
        text = to_bytes(target)
        self.entries.append(Entry(path, "link", LINK_MODE, len(text), hash_bytes(text), target))
