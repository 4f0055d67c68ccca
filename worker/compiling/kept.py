"""The compiled programs of this process's host, as jax wants to be given them: get and put by jax's own key."""

from __future__ import annotations

from hostmesh.worker.compiling.names import MAX_ENTRY, name_entry, name_folder
from hostmesh.worker.compiling.store import Store
from hostmesh.worker.process.facts import send_fact


class KeptPrograms:
    """jax's CacheInterface. What goes wrong with the folder is told once, and never fails a program."""

    def __init__(self, base: str, jax: str, jaxlib: str, used: str | None) -> None:
        """`used` is a file that names all entries which were used, one a line: process 0's agent offers them to hosts
        that lack them."""
        self._store = Store(base, name_folder(jax, jaxlib))
        self._path = self._store.folder  # jax writes it to its log
        self._used_file, self._used = used, set[str]()
        self._left_alone: set[str] = set()
        self._given: set[str] = set()
        self._is_readable = self._is_writable = True

    def get(self, key: str) -> bytes | None:
        if key in self._left_alone or not self._is_readable:
            return None
        name = name_entry(key)
        try:
            content = self._store.get(name)
        except OSError as error:
            self._is_readable = False
            self._stop_writing(error)
            return None
        if content is not None:
            self._given.add(name)
            self._note_used(name)
        return content

    def put(self, key: str, content: bytes) -> None:
        if not self._is_writable or len(content) > MAX_ENTRY:
            return
        name = name_entry(key)
        try:
            self._store.put(name, content)
        except OSError as error:
            self._stop_writing(error)
        else:
            self._given.discard(name)
            self._note_used(name)

    def wants(self, key: str) -> bool:
        """Whether a program that was compiled is to be put: no other process of the host has done so meanwhile, or what
        it has put cannot be loaded."""
        if key in self._left_alone or not self._is_writable:
            return False
        name = name_entry(key)
        if name in self._given or self._store.size_of(name) is None:
            return True
        self._note_used(name)
        return False

    def leave_alone(self, key: str) -> None:
        self._left_alone.add(key)

    def _stop_writing(self, error: OSError) -> None:
        self._is_writable = False
        send_fact("compile cache", problem=f"{error.strerror or error}: {self._store.base}"[:500])

    def _note_used(self, name: str) -> None:
        if self._used_file is None or name in self._used:
            return
        self._used.add(name)
        try:
            with open(self._used_file, "ab", buffering=0) as file:
                file.write(f"{self._store.folder}/{name}\n".encode())
        except OSError:
            self._used_file = None
