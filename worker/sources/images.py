"""A folder of pictures as a source: their bytes, and as label the number of the subfolder they lie in."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import PurePath
from typing import Any

import numpy as np

from hostmesh.worker.errors import DataError
from hostmesh.worker.loading.rows import Ids, Record
from hostmesh.worker.remote.content import of_remote
from hostmesh.worker.remote.folders import Mirror
from hostmesh.worker.remote.urls import is_url
from hostmesh.worker.sources.base import RecordSource
from hostmesh.worker.specs.spec import Spec
from hostmesh.worker.verify.content import of_files

ENDINGS = (".jpg", ".jpeg", ".png", ".webp", ".bmp", ".gif", ".tif", ".tiff")


@dataclass(frozen=True)
class ImageFolder(RecordSource):
    """`classes` are the names of the subfolders, in the order of the labels."""

    classes: Sequence[str] = field(default=())


@dataclass(frozen=True)
class Files:
    """Reads files of a folder by number."""

    folder: str
    places: Sequence[str]  # below the folder
    labels: np.ndarray[tuple[int], np.dtype[np.int32]] | None
    shown: str  # what the user calls the folder
    mirror: Mirror | None = None  # keeps files of a store on this host

    def __reduce__(self) -> tuple[Any, ...]:
        """For a data process, whose owner keeps them."""
        return Files, (self.folder, self.places, self.labels, self.shown)

    def fetch(self, ids: Ids) -> list[Record]:
        return [self._record(number) for number in ids.tolist()]

    def _record(self, number: int) -> Record:
        path = os.path.join(self.folder, self.places[number])
        try:
            with open(path, "rb") as file:
                record = {"image": file.read()}
        except OSError as error:
            shown = os.path.join(self.shown, self.places[number])
            raise DataError(f"record {number}: {shown} cannot be read: {error.strerror}") from error
        return record if self.labels is None else {**record, "label": self.labels[number]}


def open_spec(spec: Spec) -> ImageFolder:
    """`images:FOLDER`, or the URL of one. Pictures of other folders than the first level's count to that."""
    spec.check_options()
    given = spec.rest.rstrip("/") or "/"
    mirror = Mirror(spec.rest, is_picture) if is_url(spec.rest) else None
    folder = given if mirror is None else str(mirror.folder)
    places = find_pictures(folder) if mirror is None or mirror.files else []
    if not places:
        wanted = f"wanted files that end with {', '.join(ENDINGS)}, or folders of them"
        raise DataError(f"{given} holds no picture; {wanted}")
    names = [PurePath(place).parts[0] if os.sep in place else "" for place in places]
    classes = sorted(set(names))
    if "" in classes and len(classes) > 1:
        stray = places[names.index("")]
        raise DataError(f"{given} has pictures both in folders, as classes, and beside these, such as {stray}")
    labels = np.searchsorted(np.array(classes), np.array(names)).astype(np.int32) if classes != [""] else None
    content = of_files([os.path.join(folder, place) for place in places]) if mirror is None else of_remote(mirror.files)
    files = Files(folder, places, labels, given, mirror)
    return ImageFolder(
        f"images:{given}", len(places), files.fetch, content, classes=() if labels is None else tuple(classes)
    )


def is_picture(place: str) -> bool:
    return place.lower().endswith(ENDINGS)


def find_pictures(folder: str) -> list[str]:
    """Their places below the folder, ordered, so that every host numbers them alike."""
    if not os.path.isdir(folder):
        raise DataError(f"{folder} is {'no folder' if os.path.exists(folder) else 'not there'}; wanted one of pictures")
    found = []
    for where, _, names in os.walk(folder, followlinks=True):
        below = os.path.relpath(where, folder)
        found += [os.path.normpath(os.path.join(below, name)) for name in names if is_picture(name)]
    return sorted(found)
