"""Paths for orbax in a bucket: its small files go to the store by tensorstore's client, as its arrays do."""

from __future__ import annotations

import functools
import io
import posixpath
from fnmatch import fnmatchcase
from typing import Any

from hostmesh.worker.saving.stores.objects import Objects


@functools.cache
def open_objects(scheme: str, bucket: str) -> Objects:
    return Objects(scheme, bucket)


@functools.cache
def make_path_type() -> Any:
    """etils itself reads `gs://` by gcsfs or TensorFlow, each with credentials and settings of its own."""
    from etils.epath import backend, gpath  # type: ignore[import-untyped]

    files = _make_backend(backend.Backend)

    class ObjectPath(gpath.PosixGPath):  # type: ignore[misc]
        @property
        def _backend(self) -> Any:
            return files

    return ObjectPath


def _make_backend(base: Any) -> Any:
    class ObjectFiles(base):  # type: ignore[misc]
        """What orbax asks of files. A folder is there when something is in it."""

        def open(self, path: str, mode: str) -> Any:
            objects, name = _split(path)
            if "r" not in mode:
                return _Written(objects, name, "b" in mode, _read(path) if "a" in mode else b"")
            data = io.BytesIO(_read(path, must_exist=True))
            return data if "b" in mode else io.TextIOWrapper(data, "utf-8")

        def exists(self, path: str) -> bool:
            objects, name = _split(path)
            return objects.read(name) is not None or self.isdir(path)

        def isdir(self, path: str) -> bool:
            objects, name = _split(path)
            return bool(objects.list(f"{name}/"))

        def listdir(self, path: str) -> list[str]:
            objects, name = _split(path)
            return sorted({entry[len(name) + 1 :].partition("/")[0] for entry in objects.list(f"{name}/")})

        def glob(self, path: str) -> list[str]:
            folder, pattern = posixpath.split(path)
            return [f"{folder}/{name}" for name in self.listdir(folder) if fnmatchcase(name, pattern)]

        def makedirs(self, path: str, **options: Any) -> None:
            """A bucket has no folders, only names with slashes."""

        mkdir = makedirs

        def rmtree(self, path: str) -> None:
            objects, name = _split(path)
            objects.remove_all(f"{name}/")

        def remove(self, path: str) -> None:
            objects, name = _split(path)
            objects.remove(name)

        def stat(self, path: str) -> Any:
            from etils.epath.stat_utils import StatResult  # type: ignore[import-untyped]

            is_folder = self.isdir(path)
            size = 0 if is_folder else len(_read(path, must_exist=True))
            return StatResult(is_directory=is_folder, length=size, mtime=0, owner=None, group=None, mode=None)

        def walk(self, *args: Any, **options: Any) -> Any:
            raise _refuse("walk through folders")

        def rename(self, path: str, dst: str) -> None:
            raise _refuse("rename")

        def replace(self, path: str, dst: str) -> None:
            raise _refuse("rename")

        def copy(self, path: str, dst: str, overwrite: bool) -> None:
            raise _refuse("copy")

    return ObjectFiles()


class _Written(io.BytesIO):
    """Becomes an object when it is closed."""

    def __init__(self, objects: Objects, name: str, is_binary: bool, before: bytes) -> None:
        super().__init__()
        self._objects, self._name, self._is_binary = objects, name, is_binary
        super().write(before)

    def write(self, data: Any) -> int:
        return super().write(data if self._is_binary else data.encode())

    def __exit__(self, *error: Any) -> None:
        if error[0] is None:
            self.close()
        else:
            super().close()

    def close(self) -> None:
        if not self.closed:
            data = self.getvalue()
            super().close()
            self._objects.write(self._name, data)


def _split(path: str) -> tuple[Objects, str]:
    scheme, _, rest = str(path).partition("://")
    bucket, _, name = rest.partition("/")
    return open_objects(scheme, bucket), name.rstrip("/")


def _read(path: str, must_exist: bool = False) -> bytes:
    objects, name = _split(path)
    found = objects.read(name)
    if found is None and must_exist:
        raise FileNotFoundError(f"{path} is not there")
    return b"" if found is None else found.data


def _refuse(what: str) -> NotImplementedError:
    return NotImplementedError(f"an object store cannot {what}")
