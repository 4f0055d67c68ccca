"""What a tree of code holds, as the launcher lists it and as a host believes it: nothing that leads out of the tree."""

from __future__ import annotations

import json
import os
import zlib
from typing import Any, Iterable, List, NamedTuple, Optional, Set, Tuple

STATE_FOLDER = ".hostmesh"
# Of a hash, in bytes: no two files meet by chance, and 2,000 of them are 40 kB on the wire.
DIGEST_SIZE = 20
LINK_MODE = 0o777
# A file that has become a link or a pipe meanwhile is not followed, and not waited for.
READ = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK
CHUNK = 1 << 20


class SyncError(Exception):
    """Why the code cannot be brought to this host; the text is complete."""


class Entry(NamedTuple):
    """One file or link. `path` has UTF-8 with surrogate escapes, so it stands for any bytes a name may have."""

    path: str
    kind: str
    mode: int
    size: int
    digest: str
    target: Optional[str] = None

    @property
    def place(self) -> Tuple[bytes, bytes]:
        return split_path(self.path)


def new_hash() -> Any:
    import hashlib  # takes milliseconds, which an agent that syncs nothing need not spend

    return hashlib.blake2b(digest_size=DIGEST_SIZE)


def hash_bytes(data: bytes) -> str:
    content = new_hash()
    content.update(data)
    return str(content.hexdigest())


def hash_file(fd: int, size: int) -> str:
    """Of a file that is longer by now only what shows that it is: somebody may write to it without end."""
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
    """The folder and the name in it, as the system wants them under any locale."""
    folder, _, name = to_bytes(path).rpartition(b"/")
    return folder, name


def show(path: str) -> str:
    """A name in a message: as it is, unless it would break the line or the terminal."""
    return path if path.isprintable() else ascii(path)


def leads_out(path: str, target: str) -> bool:
    """Whether the words of a link at `path` point to somewhere outside the tree."""
    above = path.split("/")[:-1]
    for part in target.split("/"):
        if part == "..":
            if not above:
                return True
            above.pop()
        elif part not in ("", "."):
            above.append(part)
    return target.startswith("/")


def pack_entries(entries: Tuple[Entry, ...]) -> bytes:
    return zlib.compress(json.dumps(entries).encode(), 1)


def hash_listing(data: bytes) -> str:
    """Of what pack_entries made: the launcher's own hash of the tree."""
    try:
        return hash_bytes(zlib.decompress(data))
    except zlib.error:
        return ""  # unpack_entries says why


def unpack_entries(data: bytes) -> List[Entry]:
    """Refuses whatever the launcher would never send, so that no list can make a host write outside its folder."""
    try:
        entries = [Entry(*fields) for fields in json.loads(zlib.decompress(data))]
    except (zlib.error, ValueError, TypeError) as error:
        raise SyncError(f"the list of files cannot be read: {error}") from None
    for entry in entries:
        if not _is_sound(entry):
            raise SyncError(f"the list of files holds {ascii(tuple(entry))}, which has no place below a folder")
    _check_no_overlap(entries)
    return entries


def is_safe(path: Any) -> bool:
    """A relative path that stays below its folder by its words alone, and out of what sync itself keeps there."""
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


def _check_no_overlap(entries: List[Entry]) -> None:
    """No path twice, and none that is a file here and a folder there."""
    paths = {entry.path for entry in entries}
    if len(paths) < len(entries):
        raise SyncError("the list of files names a path twice")
    for path in sorted(paths & folders_above(paths)):
        raise SyncError(f"the list of files has {show(path)} as a file and as a folder")


def folders_above(paths: Iterable[str]) -> Set[str]:
    """Every folder that some path lies in, however far above."""
    found: Set[str] = set()
    for path in paths:
        while (path := path.rpartition("/")[0]) and path not in found:
            found.add(path)
    return found
