"""The pixels of an encoded picture, and a part of them in another size: by OpenCV, or by Pillow."""

from __future__ import annotations

import importlib.util
import io
from dataclasses import dataclass
from functools import cache
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from hostmesh.worker.errors import DataError
from hostmesh.worker.images.jpeg import find_size, is_whole
from hostmesh.worker.specs.packages import load

Pixels = NDArray[np.uint8]  # rows, columns, and red, green and blue
# How many times smaller a JPEG file can be decoded, at a part of the cost.
REDUCTIONS = (8, 4, 2)


class Decoder(Protocol):
    def decode(self, data: bytes, short: int) -> Pixels:
        """The picture as its file says it is to be turned; it may come smaller, but with `short` pixels at least on its
        shorter side if it has as many."""
        ...

    def resize(self, pixels: Pixels, out: Pixels) -> None:
        """Fills `out`, bilinear."""
        ...


@cache
def choose_decoder(name: str | None) -> Decoder:
    """The one of that name; without one OpenCV where it is installed."""
    if name is None:
        name = "opencv" if importlib.util.find_spec("cv2") else "pillow"
    if name == "opencv":
        return OpenCV(load("cv2", "OpenCV", "images", "crop_images"))
    if name == "pillow":
        load("PIL.Image", "Pillow", "images", "crop_images")
        return Pillow()
    raise DataError(f"decoder wants 'opencv' or 'pillow', found {name!r}")


def find_reduction(data: bytes, short: int) -> int:
    size = find_size(data)
    return next((by for by in REDUCTIONS if size and min(size) // by >= short), 1)


@dataclass(frozen=True)
class OpenCV:
    """Some three times as fast as Pillow; both use the same library for JPEG and give the same pixels. What it does not
    decode is left to Pillow."""

    cv2: Any

    def decode(self, data: bytes, short: int) -> Pixels:
        reduction = find_reduction(data, short)
        flags = self.cv2.IMREAD_COLOR_RGB
        if reduction > 1:  # the flags for colours would ask for blue, green and red
            flags |= getattr(self.cv2, f"IMREAD_REDUCED_GRAYSCALE_{reduction}")
        try:
            pixels: Pixels | None = self.cv2.imdecode(np.frombuffer(data, np.uint8), flags) if is_whole(data) else None
        except self.cv2.error:
            pixels = None
        return Pillow().decode(data, short) if pixels is None else pixels

    def resize(self, pixels: Pixels, out: Pixels) -> None:
        height, width = out.shape[:2]
        # Of more than four pixels for one, bilinear weights would leave some out.
        is_far = pixels.shape[0] > 2 * height or pixels.shape[1] > 2 * width
        how = self.cv2.INTER_AREA if is_far else self.cv2.INTER_LINEAR
        self.cv2.resize(pixels, (width, height), dst=out, interpolation=how)


class Pillow:
    def decode(self, data: bytes, short: int) -> Pixels:
        from PIL import Image, ImageOps

        try:
            with Image.open(io.BytesIO(data)) as image:
                reduction = find_reduction(data, short)
                image.draft("RGB", (image.width // reduction, image.height // reduction))
                return np.asarray(ImageOps.exif_transpose(image).convert("RGB"))
        except Image.UnidentifiedImageError:
            found = f"{len(data):,} bytes that are no picture, or a broken one; they begin with {data[:8]!r}"
            raise DataError(found) from None
        except Exception as error:  # of a broken PNG file a SyntaxError, of a huge picture one of Pillow's own
            raise DataError(f"a picture that cannot be decoded: {error}") from error

    def resize(self, pixels: Pixels, out: Pixels) -> None:
        from PIL import Image

        height, width = out.shape[:2]
        out[:] = np.asarray(Image.fromarray(pixels).resize((width, height), Image.Resampling.BILINEAR))
