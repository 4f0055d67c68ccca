"""The saved steps of a bucket, read without jax and orbax."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass

from hostmesh.worker.errors import CheckpointError
from hostmesh.worker.saving.stores.objects import Objects
from hostmesh.worker.saving.stores.url import StoreUrl

# Where orbax writes what is saved beside the state of a step.
POSITION = "position/metadata"


@dataclass(frozen=True)
class InBucket:
    url: StoreUrl
    objects: Objects

    @classmethod
    def open(cls, text: str) -> InBucket:
        url = StoreUrl.parse(text)
        return cls(url, Objects(url.scheme, url.bucket))

    def list(self) -> Iterable[int]:
        beginning = f"{self.url.folder}/"
        names = [name.removeprefix(beginning) for name in self.objects.list(beginning)]
        return [int(name) for name in names if name.isdecimal()]

    def read_position(self, step: int) -> str:
        data = json.loads(self._read(f"{self.url.folder}/{step}"))["data"]
        return self._read(f"{self.url.folder}/{data}/{POSITION}")

    def __str__(self) -> str:
        return str(self.url)

    def _read(self, name: str) -> str:
        found = self.objects.read(name)
        if found is None:
            raise CheckpointError(f"{self.objects.address}/{name} is not there")
        return found.data.decode()
