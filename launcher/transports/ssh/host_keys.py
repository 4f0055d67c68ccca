"""Host keys: what known_hosts files say about a host, and whether the key that it offers is accepted."""

from __future__ import annotations

import base64
import binascii
import fnmatch
import hashlib
import hmac
import os
import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from hostmesh.launcher.errors import Unreachable

SSH_PORT = 22
SALT_LENGTH = 20


@dataclass(frozen=True)
class KnownKey:
    """One line `[@revoked ]name,name ssh-ed25519 AAAA… [comment]`, or `|1|salt|digest ssh-ed25519 AAAA…`."""

    names: tuple[str, ...]
    kind: str
    key: bytes
    path: Path
    line: int
    revoked: bool

    def is_about(self, name: str) -> bool:
        if any(matches(pattern[1:], name) for pattern in self.names if pattern.startswith("!")):
            return False
        return any(matches(pattern, name) for pattern in self.names)


class KnownHosts:
    """The lines of some known_hosts files; a new host's line goes to the first of them. Safe for many threads."""

    def __init__(self, paths: Sequence[Path], hash_names: bool = False) -> None:
        self._paths, self._hash_names = tuple(paths), hash_names
        self._lock = threading.Lock()
        self._plain: dict[str, list[KnownKey]] = {}
        self._others: list[KnownKey] = []
        for path in self._paths:
            for known in read_known_hosts(path):
                self._add_known(known)

    def _add_known(self, known: KnownKey) -> None:
        if any(set(name) & set("|*?!") for name in known.names):
            self._others.append(known)
            return
        for name in known.names:
            self._plain.setdefault(name.lower(), []).append(known)

    def find(self, name: str) -> list[KnownKey]:
        return [*self._plain.get(name.lower(), ()), *(known for known in self._others if known.is_about(name))]

    def kinds_of(self, names: Sequence[str]) -> list[str]:
        """The kinds of key that are known of a host: it must be asked for one of these."""
        return list(dict.fromkeys(known.kind for name in names for known in self.find(name) if not known.revoked))

    def check(self, names: Sequence[str], kind: str, key: bytes, accept_new: bool) -> None:
        """Raises Unreachable unless the key is known under one of these names, or is new and new ones are accepted.

        A key counts as changed only if another one is known for the first name: the other names are less exact.
        """
        with self._lock:
            lines = [known for name in names for known in self.find(name)]
            if revoked := next((known for known in lines if known.revoked and known.key == key), None):
                raise Unreachable(revoked_key_text(revoked))
            if any(known.key == key for known in lines):
                return
            if other := find_contradicting(self.find(names[0]), kind):
                raise Unreachable(changed_key_text(names[0], other, kind, key))
            if not accept_new:
                raise Unreachable(unknown_key_text(names[0], kind, key, self._paths))
            self._add(names[0], kind, key)

    def _add(self, name: str, kind: str, key: bytes) -> None:
        shown = hash_name(name, os.urandom(SALT_LENGTH)) if self._hash_names else name
        path = self._paths[0]
        try:
            append_line(path, f"{shown} {kind} {base64.b64encode(key).decode()}")
        except OSError as error:
            raise Unreachable(f"its new host key cannot be added to {path}: {error.strerror}") from None
        self._add_known(KnownKey((name,), kind, key, path, 0, False))


def name_host(hostname: str, port: int, alias: str | None) -> tuple[str, ...]:
    """The names under which a host's key may be known, the most exact first."""
    if alias:
        return (alias,)
    return (hostname,) if port == SSH_PORT else (f"[{hostname}]:{port}", hostname)


def read_known_hosts(path: Path) -> Iterator[KnownKey]:
    """Lines that make no sense are skipped, as ssh does."""
    try:
        lines = path.read_text(errors="replace").splitlines()
    except OSError:
        return
    for number, line in enumerate(lines, 1):
        fields = line.split()
        marker = fields.pop(0) if fields and fields[0].startswith("@") else ""
        if len(fields) < 3 or fields[0].startswith("#") or marker not in ("", "@revoked"):
            continue
        try:
            key = base64.b64decode(fields[2], validate=True)
        except binascii.Error:
            continue
        yield KnownKey(tuple(fields[0].split(",")), fields[1], key, path, number, bool(marker))


def matches(pattern: str, name: str) -> bool:
    if pattern.startswith("|1|"):
        return is_hash_of(pattern, name)
    escaped = pattern.lower().replace("[", "[[]")  # only * and ? are special
    return fnmatch.fnmatchcase(name.lower(), escaped)


def is_hash_of(hashed: str, name: str) -> bool:
    try:
        return hash_name(name, base64.b64decode(hashed.split("|")[2])) == hashed
    except binascii.Error:
        return False


def hash_name(name: str, salt: bytes) -> str:
    digest = hmac.digest(salt, name.lower().encode(), "sha1")
    return f"|1|{base64.b64encode(salt).decode()}|{base64.b64encode(digest).decode()}"


def append_line(path: Path, line: str) -> None:
    """Writes once to a file opened for appending, so that neither threads nor other programs split the line."""
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o600)
    try:
        size = os.fstat(descriptor).st_size
        gap = "\n" if size and os.pread(descriptor, 1, size - 1) != b"\n" else ""
        os.write(descriptor, f"{gap}{line}\n".encode())
    finally:
        os.close(descriptor)


def fingerprint(key: bytes) -> str:
    return "SHA256:" + base64.b64encode(hashlib.sha256(key).digest()).decode().rstrip("=")


def find_contradicting(lines: Sequence[KnownKey], kind: str) -> KnownKey | None:
    """The known key that a new one contradicts, preferably of the same kind."""
    valid = [known for known in lines if not known.revoked]
    return next((known for known in valid if known.kind == kind), valid[0] if valid else None)


def unknown_key_text(name: str, kind: str, key: bytes, paths: Sequence[Path]) -> str:
    return (
        f"its host key is not known: {name} offers {kind} {fingerprint(key)}; "
        f"looked in {' and '.join(map(str, paths))}. If the fingerprint is right, "
        "connect once with ssh, or set ssh: {accept_new_host_keys: true} in the cluster file"
    )


def changed_key_text(name: str, known: KnownKey, kind: str, key: bytes) -> str:
    at = f"{known.path} line {known.line}" if known.line else str(known.path)
    return (
        f"its host key has changed: {name} offers {kind} {fingerprint(key)}, "
        f"but {at} has {known.kind} {fingerprint(known.key)}. "
        f"If the machine was rebuilt: ssh-keygen -f {known.path} -R '{name}'. "
        "If not, somebody may be listening in between"
    )


def revoked_key_text(known: KnownKey) -> str:
    return (
        f"its host key {fingerprint(known.key)} is marked @revoked in {known.path} line {known.line}: do not trust it"
    )
