"""The manifest of a tree of code: its files and links, as the launcher lists them and a host accepts them."""

from __future__ import annotations

import json
import os
import zlib
from typing import Any, Iterable, List, NamedTuple, Optional, Set, Tuple

STATE_FOLDER = ".hostmesh"
# In bytes. So long a digest is not shared by two files by chance, and 2,000 of them are 40 kB on the wire.
DIGEST_SIZE = 20
LINK_MODE = 0o777
# Opening must neither follow nor wait, should a file have become a link or a pipe meanwhile.
READ = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK
CHUNK = 1 << 20


class SyncError(Exception):
    """Why the code cannot be brought to this host; the text is complete."""


class Entry(NamedTuple):
    """One file or link. `path` is UTF-8 with surrogate escapes, so it can stand for any bytes of a name."""

    path: str
    kind: str
    mode: int
    size: int
    digest: str
    target: Optional[str] = None

    @property
    def folder_and_name(self) -> Tuple[bytes, bytes]:
        return split_path(self.path)


def new_hash() -> Any:
    import hashlib  # takes milliseconds, so an agent that syncs nothing does not import it

    return hashlib.blake2b(digest_size=DIGEST_SIZE)


def hash_bytes(data: bytes) -> str:
    content = new_hash()
    content.update(data)
    return str(content.hexdigest())


def hash_file(fd: int, size: int) -> str:
    """Reads little more than `size` bytes, which suffice to give a longer file another digest: somebody may write to it
    without end."""
    content = new_hash()
    while size >= 0 and (data := os.read(fd, CHUNK)):
        content.update(data)
        size -= len(data)
    return str(content.hexdigest())


def to_bytes(path: str) -> bytes:
    return path.encode("utf-8", "surrogateescape")


def to_text(path: bytes) -> str:
    return path.decode("utf-8", "surrogateescape")


def split_path(path: str) -> Tuple[bytes, bytes]:
    """The folder and the name in it, as bytes, which do not depend on the locale."""
    folder, _, name = to_bytes(path).rpartition(b"/")
    return folder, name


def show(path: str) -> str:
    """A path for a message; escaped if it would break the line or the terminal."""
    return path if path.isprintable() else ascii(path)


def leads_out(path: str, target: str) -> bool:
    """Whether the text of a link at `path` points to somewhere outside the tree."""
    above = path.split("/")[:-1]
    for part in target.split("/"):
        if part == "..":
            if not above:
                return True
            above.pop()
        elif part not in ("", "."):
            above.append(part)
    return target.startswith("/")


def pack_manifest(manifest: Tuple[Entry, ...]) -> bytes:
    return zlib.compress(json.dumps(manifest).encode(), 1)


def hash_manifest(data: bytes) -> str:
    """Of a packed manifest: the same hash that the launcher has for its tree."""
    try:
        return hash_bytes(zlib.decompress(data))
    except zlib.error:
        return ""  # unpack_manifest says why


def unpack_manifest(data: bytes) -> List[Entry]:
    """Refuses whatever the launcher would never send, so that no manifest can make a host write outside its folder."""
    try:
        manifest = [Entry(*fields) for fields in json.loads(zlib.decompress(data))]
    except (zlib.error, ValueError, TypeError) as error:
        raise SyncError(f"the list of files cannot be read: {error}") from None
    for entry in manifest:
        if not _is_sound(entry):
            raise SyncError(f"the list of files holds {ascii(tuple(entry))}, which has no place below a folder")
    _check_no_overlap(manifest)
    return manifest


def is_safe(path: Any) -> bool:
    """True for a relative path that by its text alone stays below its folder, and outside sync's own state there."""
    if not isinstance(path, str) or "\0" in path or not _is_encodable(path):
        return False
    return not {"", ".", "..", STATE_FOLDER} & set(path.split("/"))


def _is_sound(entry: Entry) -> bool:
    whole_numbers = all(type(number) is int and number >= 0 for number in (entry.mode, entry.size))
    if not (is_safe(entry.path) and whole_numbers and entry.mode <= 0o777 and isinstance(entry.digest, str)):
        return False
    if entry.kind == "file":
        return entry.target is None
    return entry.kind == "link" and _is_safe_target(entry.path, entry.target)


def _is_safe_target(path: str, target: Any) -> bool:
    if not isinstance(target, str) or not target or "\0" in target or not _is_encodable(target):
        return False
    return not leads_out(path, target)


def _is_encodable(text: str) -> bool:
    try:
        to_bytes(text)
    except UnicodeEncodeError:
        return False
    return True


def _check_no_overlap(manifest: List[Entry]) -> None:
    """No path may come twice, or be a file in one entry and a folder in another."""
    paths = {entry.path for entry in manifest}
    if len(paths) < len(manifest):
        raise SyncError("the list of files names a path twice")
    for path in sorted(paths & folders_above(paths)):
        raise SyncError(f"the list of files has {show(path)} as a file and as a folder")


def folders_above(paths: Iterable[str]) -> Set[str]:
    """Every folder above any of the paths."""
    found: Set[str] = set()
    for path in paths:
        while (path := path.rpartition("/")[0]) and path not in found:
            found.add(path)
    return found
