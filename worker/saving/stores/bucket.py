"""Steps in a bucket: data under a name of their own, and an object with the step's number once they are complete."""

from __future__ import annotations

import errno
import json
import threading
import uuid
from collections.abc import Callable
from typing import Any

from hostmesh.worker.errors import CheckpointError
from hostmesh.worker.process.facts import send_fact
from hostmesh.worker.saving.stores.arrays import prepare_orbax
from hostmesh.worker.saving.stores.base import Mark
from hostmesh.worker.saving.stores.epaths import make_path_type, open_objects
from hostmesh.worker.saving.stores.objects import StoreError, explain
from hostmesh.worker.saving.stores.url import StoreUrl


class Bucket:
    """`40` says that step 40 is complete, and that its data are below `40.1f2e3d4c5b6a/`. A bucket can rename nothing,
    but that one object appears at once, and is made only where there is none."""

    def __init__(self, url: StoreUrl) -> None:
        self.path = str(url)
        self._folder = f"{url.folder}/"
        self._objects = open_objects(url.scheme, url.bucket)
        self._lock = threading.Lock()
        self._own: dict[str, tuple[str, bytes]] = {}  # what this process wrote: text and generation
        prepare_orbax(url)

    def make_ready(self) -> None:
        """Only asks: of a refused list the store says more than of what comes first in a conditional write."""
        self._list(".token-")

    def list_marks(self, beginning: str) -> list[str]:
        return self._list(beginning)

    def exists(self, name: str) -> bool:
        return self._objects.read(self._folder + name) is not None

    def create(self, name: str) -> bool:
        generation = self._objects.create(self._folder + name, _sign(""))
        if generation is not None:
            self._own[name] = "", generation
        return generation is not None

    def read(self, name: str) -> Mark | None:
        found = self._objects.read(self._folder + name)
        return None if found is None else Mark(found.generation, found.data.decode(errors="replace").partition("\n")[0])

    def write(self, name: str, text: str) -> None:
        with self._lock:
            if name in self._own:
                self._replace(name, text)

    def touch(self, name: str) -> None:
        with self._lock:
            if name in self._own:
                self._replace(name, self._own[name][0])

    def remove(self, name: str) -> None:
        with self._lock:
            self._own.pop(name, None)
            self._objects.remove(self._folder + name)

    def list_steps(self) -> list[int]:
        if not (names := self._list()):
            raise StoreError(errno.ENOENT, "there is no such bucket, or nothing in that folder", self.path)
        return [int(name) for name in names if name.isdecimal()]

    def remove_step(self, step: int) -> None:
        data = self._find_data(step)
        self._objects.remove(f"{self._folder}{step}")
        if data is not None:
            self._objects.remove_all(f"{self._folder}{data}/")

    def remove_leftovers(self) -> None:
        names = self._list()
        whole = {self._find_data(int(name)) for name in names if name.isdecimal()}
        for data in {name.partition("/")[0] for name in names if "/" in name} - whole:
            if data.partition(".")[0].isdecimal():
                self._objects.remove_all(f"{self._folder}{data}/")

    def path_to_save(self, step: int) -> Any:
        return make_path_type()(f"{self.path}/{step}")

    def path_to_read(self, step: int) -> Any:
        return make_path_type()(f"{self.path}/{self._find_data(step) or step}")

    def complete(self, step: str, data: str) -> None:
        """Raises where another program has saved that step meanwhile."""
        said = json.dumps({"data": data}).encode()
        if self._objects.create(f"{self._folder}{step}", said) is None:
            raise CheckpointError(f"{self.path}/{step} was saved by another program meanwhile")

    def make_path_class(self, token: str, require_owned: Callable[[], None]) -> Any:
        from orbax.checkpoint.path import atomicity

        complete = self.complete

        class MarkedPath(atomicity.CommitFileTemporaryPath):  # type: ignore[misc]
            @classmethod
            def from_final(cls, final_path: Any, **options: Any) -> Any:
                return cls(final_path.parent / f"{final_path.name}.{token}", final_path)

            @classmethod
            async def validate_final(cls, final_path: Any) -> None:
                """Who reads was sent there by the step's object."""

            async def create(self) -> Any:
                self.get().rmtree()  # what a save that failed has left; orbax would want a package of Google's for it
                return await super().create()

            async def finalize(self) -> None:
                step, data = self.get_final().name, self.get()
                (data / atomicity.COMMIT_SUCCESS_FILE).write_text(f"complete: step {step}")  # for orbax's own tools
                require_owned()
                complete(step, data.name)
                send_fact("saved", must_arrive=True, step=int(step))

        return MarkedPath

    def explain(self, error: Exception) -> str:
        if isinstance(error, StoreError):
            return str(error.strerror)
        return str(error) if isinstance(error, CheckpointError) else explain(error)

    def find_part_class(self) -> Any:
        """That orbax uses for `gs://`; for others it would rename."""
        from orbax.checkpoint.path import atomicity

        return atomicity.CommitFileTemporaryPath

    def _list(self, beginning: str = "") -> list[str]:
        found = self._objects.list(self._folder + beginning)
        return [name.removeprefix(self._folder) for name in found]

    def _find_data(self, step: int) -> str | None:
        found = self._objects.read(f"{self._folder}{step}")
        try:
            data = None if found is None else str(json.loads(found.data)["data"])
            if data is not None and (not data.startswith(f"{step}.") or "/" in data):
                raise ValueError("data of another step, which would be removed with this one")
            return data
        except (ValueError, TypeError, KeyError) as error:
            raise CheckpointError(f"{self.path}/{step} is no object of a checkpoint: use another folder") from error

    def _replace(self, name: str, text: str) -> None:
        """Unless it has become another's: then the next look tells."""
        before, generation = self._own[name]
        new = self._objects.replace(self._folder + name, _sign(text), generation)
        if new is None and (found := self.read(name)) is not None and before and found.text == before:
            # The answer to the last change never came, but the change was made.
            new = self._objects.replace(self._folder + name, _sign(text), found.changed)
        if new is None:
            del self._own[name]
        else:
            self._own[name] = text, new


def _sign(text: str) -> bytes:
    """Each time another one: S3 knows a change by its content."""
    return f"{text}\n{uuid.uuid4().hex}".encode()
