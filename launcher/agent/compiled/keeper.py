"""What an agent does with the compiled programs of its host: tell which were used, find, read and store them."""

from __future__ import annotations

from typing import Any, Dict, List, NamedTuple, Optional, Set

from hostmesh.launcher.agent.files import remove_file
from hostmesh.launcher.protocol import wire
from hostmesh.worker.compiling.names import ENTRY, FOLDER, MAX_ENTRY, is_for_this_machine
from hostmesh.worker.compiling.store import HEAD_SIZE, Store

# Lines of the list of used programs, and bytes of a piece, that are taken at once.
MAX_LIST = 1 << 20
MAX_PIECE = 4 << 20


class Part(NamedTuple):
    """A program that is coming in."""

    folder: str
    name: str
    size: int
    path: str


class Keeper:
    """Its methods read and write files, and may block; what it is sent may be anything."""

    def __init__(self, base: str, used: str) -> None:
        self._base, self._used = base, used
        self._is_sharing = False
        self._read = 0  # bytes of the list
        self._told: Set[str] = set()
        self._stores: Dict[str, Store] = {}
        self._part: Optional[Part] = None

    def answer(self, message: Any) -> List[Any]:
        if isinstance(message, wire.ShareCompiled):
            self._is_sharing = True
            return self.look()
        if isinstance(message, wire.FindCompiled):
            return [wire.CompiledLacking(message.folder, self._find_lacking(message.folder, message.names))]
        if isinstance(message, wire.ReadCompiled):
            data = self._read_piece(message)
            return [wire.CompiledPiece(message.folder, message.name, message.start, data)]
        if isinstance(message, wire.StoreCompiled):
            ok = self._store(message)
            return [wire.CompiledStored(message.folder, message.name, message.start, ok)]
        return []

    def look(self) -> List[Any]:
        """What process 0 has used since the last look."""
        sizes: Dict[str, Dict[str, int]] = {}
        for line in self._read_list() if self._is_sharing else ():
            folder, _, name = line.partition("/")
            if line in self._told or not FOLDER.fullmatch(folder) or not ENTRY.fullmatch(name):
                continue
            self._told.add(line)
            size = self._store_of(folder).size_of(name)
            if size is not None:
                sizes.setdefault(folder, {})[name] = size
        return [wire.CompiledUsed(folder, found) for folder, found in sizes.items()]

    def _read_list(self) -> List[str]:
        try:
            with open(self._used, "rb") as file:
                file.seek(self._read)
                data = file.read(MAX_LIST)
        except OSError:
            return []
        whole = data[: data.rfind(b"\n") + 1]
        self._read += len(whole)
        return whole.decode("ascii", "replace").split("\n")[:-1]

    def _store_of(self, folder: str) -> Store:
        return self._stores.setdefault(folder, Store(self._base, folder))

    def _find_lacking(self, folder: str, names: List[str]) -> List[str]:
        """Nothing that another kind of processor, or another user, has compiled."""
        if not is_for_this_machine(folder):
            return []
        store = self._store_of(folder)
        try:
            store.make()
        except OSError:
            return []
        return [name for name in names if ENTRY.fullmatch(name) and store.size_of(name) is None]

    def _read_piece(self, order: wire.ReadCompiled) -> bytes:
        try:
            with open(self._store_of(order.folder).path_of(order.name), "rb") as file:
                file.seek(order.start)
                return file.read(min(order.size, MAX_PIECE))
        except (OSError, ValueError, TypeError):
            return b""

    def _store(self, order: wire.StoreCompiled) -> bool:
        try:
            return self._store_piece(order)
        except (OSError, ValueError, TypeError):
            self._drop()
            return False

    def _store_piece(self, order: wire.StoreCompiled) -> bool:
        """Pieces of one program come in order, and those of another only after its last."""
        store = self._store_of(order.folder)
        if order.start == 0:
            self._drop()
            if not is_for_this_machine(order.folder) or not HEAD_SIZE < order.size <= MAX_ENTRY:
                return False
            self._part = Part(order.folder, order.name, order.size, store.begin(order.name))
        part = self._part
        if part is None or part[:3] != (order.folder, order.name, order.size):
            return False
        with open(part.path, "ab") as file:
            if file.tell() != order.start:
                raise ValueError("it is not the next piece")
            file.write(order.data)
        end = order.start + len(order.data)
        if end < order.size:
            return bool(order.data)
        self._part = None
        return store.finish(order.name, part.path)

    def _drop(self) -> None:
        if self._part is not None:
            remove_file(self._part.path)
            self._part = None
