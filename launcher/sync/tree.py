"""The code that goes to every host: list a folder's files with their digests, give them as they were listed."""

from __future__ import annotations

import json
import os
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

from hostmesh.launcher import wire
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
from hostmesh.launcher.sync.ignore import Rules, is_ignored, parse_exclude, parse_gitignore
from hostmesh.launcher.sync.open_files import find_written

__all__ = ["Entry", "FileChanged", "Tree", "read_tree"]

NEVER_SENT = {".git", STATE_FOLDER, "__pycache__"}
# Files of up to this size are kept in memory as they were listed, and this much of them in all.
KEPT_SIZE, KEPT_IN_ALL = CHUNK, 64 << 20


class FileChanged(Exception):
    """What was listed is not to be had any more; the text says why, after the file's name."""


@dataclass(frozen=True)
class Tree:
    """`digest` is the code's hash; `skipped` says what was left out, other than by a rule, and why."""

    root: Path
    entries: tuple[Entry, ...]
    skipped: tuple[str, ...]
    kept: dict[str, bytes] = field(default_factory=dict, repr=False, compare=False)

    @cached_property
    def digest(self) -> str:
        return hash_bytes(json.dumps(self.entries).encode())

    def encode(self) -> bytes:
        return pack_manifest(self.entries)

    def pieces(self, index: int) -> Iterator[wire.FileChunk]:
        """Exactly what was listed, read as it is asked for; raises FileChanged instead of giving the last piece."""
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
    """No more than it had when it was listed: somebody may write to it without end."""
    while size > 0 and (data := os.read(fd, min(size, CHUNK))):
        size -= len(data)
        yield data


def read_tree(root: Path, exclude: Sequence[str] = (), skip: Sequence[Path] = ()) -> Tree:
    """Every file below `root` that no rule ignores; `skip` are folders that stay behind whatever the rules say."""
    if not root.is_dir():
        found = "a file" if root.exists() else "nothing"
        raise UsageError(f"sync: from: found {found} at {root}; wanted a folder with the code to send")
    listing = Listing(root, exclude, skip)
    listing.read_all()
    if listing.problems:
        count = "1 file" if len(listing.problems) == 1 else f"{len(listing.problems)} files"
        told = "".join(f"\n  {problem}" for problem in sorted(listing.problems))
        raise UsageError(f"sync: cannot read {count} in {root}; make them readable or exclude them:{told}")
    return Tree(root, tuple(sorted(listing.entries)), tuple(sorted(listing.skipped)), listing.kept)


class Listing:
    """The walk: a folder that is ignored is not entered."""

    def __init__(self, root: Path, exclude: Sequence[str], skip: Sequence[Path]) -> None:
        self.top = os.fsencode(os.path.realpath(root))
        self.stay = {os.fsencode(os.path.realpath(path)) for path in skip}
        self.exclusions = parse_exclude(exclude)
        self.entries: list[Entry] = []
        self.skipped: list[str] = []
        self.problems: list[str] = []
        self.written = find_written(self.top)
        self.kept: dict[str, bytes] = {}
        self.room = KEPT_IN_ALL

    def read_all(self) -> None:
        waiting: list[tuple[str, tuple[Rules, ...]]] = [("", self._read_rules(".git/info/exclude", ""))]
        while waiting:
            base, layers = waiting.pop()
            layers = (*self._read_rules(f"{base}.gitignore", base), *layers)
            waiting += [(folder, layers) for folder in self._read_folder(base, layers)]

    def _read_rules(self, path: str, base: str) -> tuple[Rules, ...]:
        """None of a file that is not there, or is a link: git does not follow it either."""
        try:
            with os.fdopen(os.open(self._locate(path), READ), "rb") as file:
                return (parse_gitignore(to_text(file.read()), base),)
        except OSError:
            return ()

    def _locate(self, path: str) -> bytes:
        return os.path.join(self.top, to_bytes(path))

    def _read_folder(self, base: str, layers: tuple[Rules, ...]) -> list[str]:
        """Take in the files of a folder; the folders in it that are to be read."""
        folders = []
        try:
            with os.scandir(self._locate(base)) as items:
                for item in items:
                    path = base + to_text(item.name)
                    is_folder = item.is_dir(follow_symlinks=False)
                    if self._stays(path, item, is_folder, layers):
                        continue
                    if is_folder:
                        folders.append(f"{path}/")
                    else:
                        self._read_item(path, item)
        except OSError as error:
            self.problems.append(f"{show(base)}: {error.strerror}")
        return folders

    def _stays(self, path: str, item: os.DirEntry[bytes], is_folder: bool, layers: tuple[Rules, ...]) -> bool:
        if to_text(item.name) in NEVER_SENT or item.path in self.stay:
            return True
        return is_ignored(path, is_folder, (self.exclusions, *layers))

    def _read_item(self, path: str, item: os.DirEntry[bytes]) -> None:
        try:
            if item.is_symlink():
                self._read_link(path, item)
            elif not item.is_file(follow_symlinks=False):
                self.skipped.append(f"{show(path)} was left out: it is neither a file nor a folder nor a link")
            elif item.path in self.written and not path.endswith(".py"):
                # It would make two runs of the same code differ, and be old when it arrives.
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
