"""A `collate` that decodes pictures and cuts a part of one size out of each."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hostmesh.worker.errors import DataError, error_context
from hostmesh.worker.images.pixels import Decoder, Pixels, choose_decoder
from hostmesh.worker.loading.rows import Block, Ids, Record, stack_records
from hostmesh.worker.ordering.randomness import RowRandom

ENCODED = (bytes, bytearray, memoryview)
MIDDLE = 0.5


def crop_images(
    size: int | tuple[int, int],
    *,
    short: int | None = None,
    random: bool = True,
    flip: bool | None = None,
    field: str = "image",
    decoder: str | None = None,
) -> CropImages:
    """For `Loader(collate=…)`: of each record's picture a part of `size` pixels (or height and width), as uint8.

    Each picture counts as if its shorter side had `short` pixels, by default 8/7 of the size: 256 for 224. The part is
    taken at a random place, and every second one is `flip`ped; with `random=False`, for evaluation, it is the middle.
    The picture is JPEG, PNG and the like as bytes (also as {"bytes": …}), an array, or one of Pillow's; all other
    fields of a record are stacked. `decoder` is "opencv" or "pillow", by default the first that is installed.
    """
    height, width = (size, size) if isinstance(size, int) else size
    if min(height, width) < 1:
        raise DataError(f"crop_images wants a size of 1 or more pixels; found {size}")
    least = max(height, width)
    if short is None:
        short = least * 8 // 7
    if short < least:
        raise DataError(f"crop_images cuts {height} × {width} out of pictures of {short}: short wants {least} or more")
    return CropImages(height, width, short, random, random if flip is None else flip, field, decoder)


@dataclass(frozen=True)
class CropImages:
    height: int
    width: int
    short: int
    random: bool
    flip: bool
    field: str
    decoder: str | None

    def __call__(self, records: Sequence[Record], ids: Ids, rng: RowRandom) -> Block:
        decoder = choose_decoder(self.decoder)
        tops, lefts, flips = (rng.random().tolist() for _ in range(3))
        images = np.empty((len(records), self.height, self.width, 3), np.uint8)
        for n, record in enumerate(records):
            place = (tops[n], lefts[n]) if self.random else (MIDDLE, MIDDLE)
            with error_context(self.field):
                self._cut(decoder, self._picture(record), place, images[n])
            if self.flip and flips[n] < MIDDLE:
                images[n] = images[n, :, ::-1].copy()
        others = [{key: value for key, value in record.items() if key != self.field} for record in records]
        return {**(stack_records(others, ids) if others and others[0] else {}), self.field: images}

    def _picture(self, record: Record) -> Any:
        if not isinstance(record, Mapping) or self.field not in record:
            found = f"the fields {', '.join(map(str, record))}" if isinstance(record, Mapping) else "no fields"
            raise DataError(f"crop_images wants a picture in the field {self.field!r}; found {found}")
        picture = record[self.field]
        return picture["bytes"] if isinstance(picture, Mapping) and picture.get("bytes") else picture

    def _cut(self, decoder: Decoder, picture: Any, place: tuple[float, float], out: Pixels) -> None:
        pixels = decoder.decode(bytes(picture), self.short) if isinstance(picture, ENCODED) else as_pixels(picture)
        scale = min(pixels.shape[:2]) / self.short
        (top, bottom), (left, right) = (
            find_span(whole, round(wanted * scale), where)
            for whole, wanted, where in zip(pixels.shape[:2], (self.height, self.width), place, strict=True)
        )
        part = pixels[top:bottom, left:right]
        if part.shape == out.shape:
            out[:] = part
        else:
            decoder.resize(part, out)


def find_span(whole: int, wanted: int, where: float) -> tuple[int, int]:
    """So many pixels of the whole; `where` is from 0, its beginning, to 1, its end."""
    wanted = min(whole, max(1, wanted))
    first = int(where * (whole - wanted + 1))
    return first, first + wanted


def as_pixels(picture: Any) -> Pixels:
    """Of an array or one of Pillow's pictures; grey ones get three equal colours, transparency is left out."""
    if hasattr(picture, "convert"):
        picture = picture.convert("RGB")
    array: NDArray[Any] = np.asarray(picture)
    if array.ndim == 2:
        array = array[..., None]
    if array.dtype != np.uint8 or array.ndim != 3 or array.shape[2] not in (1, 3, 4) or not array.size:
        found = f"{array.dtype.name} of shape {array.shape}" if array.dtype != object else type(picture).__name__
        raise DataError(f"wanted encoded bytes, or uint8 pixels of a shape such as (375, 500, 3); found {found}")
    return np.ascontiguousarray(np.repeat(array, 3, axis=2) if array.shape[2] == 1 else array[..., :3])
