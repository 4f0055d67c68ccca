"""A contact sheet: pictures of sampled records on one PNG, their labels below them."""

from __future__ import annotations

import io
import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hostmesh.worker.errors import DataError
from hostmesh.worker.loading.rows import Record
from hostmesh.worker.looking.describe import Field
from hostmesh.worker.looking.values import ENCODED, fields_of, find_kind
from hostmesh.worker.specs.packages import load

MAX_PICTURES, MAX_COLUMNS = 64, 8
# In pixels: the square that a picture fits into, the space around it, the line below it, and the sheet's title.
TILE, SPACE, CAPTION, TITLE = 128, 12, 20, 36
BACKGROUND, INK, FAINT = (250, 250, 248), (32, 32, 36), (140, 140, 146)
FONT_SIZE = 13
CHANNELS = (1, 3, 4)
SMALLEST, MAX_SIDE = 8, 16  # an array with a side below the first, or a side so many times the other, is no picture
# Pixels of bytes that all stay below this are stretched: 0 to 16 would be black.
DARK = 64


def find_pictures(fields: Sequence[Field]) -> list[str]:
    """The fields that hold pictures."""
    return [field.name for field in fields if _is_encoded(field) or _is_picture(field)]


def _is_encoded(field: Field) -> bool:
    return all(dtype in ENCODED or dtype.startswith("PIL ") for dtype in field.dtypes)


def _is_picture(field: Field) -> bool:
    if field.dims is None or not all(dtype == "uint8" or dtype.startswith("float") for dtype in field.dtypes):
        return False
    sides = [least for least, _ in field.dims]
    if len(sides) == 3:
        sides = sides[:2] if sides[2] in CHANNELS else sides[1:] if sides[0] in CHANNELS else []
    return len(sides) == 2 and min(sides) >= SMALLEST and max(sides) <= MAX_SIDE * min(sides)


def draw_sheet(
    records: Mapping[int, Record], field: Field, labels: str | None, title: str, path: str
) -> tuple[int, str | None]:
    """Writes the sheet; returns how many pictures are on it, and what is wrong with those that cannot be decoded."""
    images = load("PIL.Image", "Pillow", "images", "a sheet of pictures")
    kept = [sorted(records)[n] for n in _spread(len(records))]
    values = {id_: dict(fields_of(records[id_])) for id_ in kept}
    tiles, broken = [], []
    for id_ in kept:
        if field.name not in values[id_]:
            continue
        try:
            picture = _to_picture(images, values[id_][field.name], field)
        except Exception as error:  # Pillow raises many kinds for broken files
            broken.append(f"record {id_}: {field.name} cannot be decoded: {error}")
            continue
        label = values[id_].get(labels) if labels else None
        tiles.append((_fit(images, picture), None if label is None else str(label), str(id_)))
    if tiles:
        _save(_draw(images, tiles, title), path)
    return len(tiles), broken[0] if broken else None


def _spread(count: int) -> list[int]:
    return np.unique(np.linspace(0, count - 1, min(count, MAX_PICTURES)).astype(int)).tolist() if count else []


def _to_picture(images: Any, value: Any, field: Field) -> Any:
    kind = find_kind(value)
    if kind == "array":
        return images.fromarray(_to_pixels(value, field.least or 0, 1 if field.most is None else field.most))
    return (images.open(io.BytesIO(value)) if kind in ENCODED else value).convert("RGB")


def _to_pixels(array: NDArray[Any], least: float, most: float) -> NDArray[np.uint8]:
    """Rows × columns × 3, or × 4. One scale for all pictures, from the field's least and most values."""
    if array.ndim == 3 and array.shape[2] not in CHANNELS:
        array = array.transpose(1, 2, 0)
    if array.ndim == 2:
        array = array[..., None]
    low, high = _find_scale(array.dtype, least, most)
    scaled = (np.nan_to_num(array.astype(np.float32)) - low) * (255.0 / (high - low or 1.0))
    pixels = scaled.clip(0, 255).round().astype(np.uint8)
    return np.repeat(pixels, 3, axis=2) if pixels.shape[2] == 1 else np.ascontiguousarray(pixels)


def _find_scale(dtype: np.dtype[Any], least: float, most: float) -> tuple[float, float]:
    """The values that are drawn black and white."""
    if dtype == np.uint8:
        return (0, 255) if most >= DARK else (0, most)
    if least >= 0:
        return (0, 1) if most <= 1 else (0, 255) if DARK <= most <= 255 else (0, most)
    return least, most


def _fit(images: Any, picture: Any) -> Any:
    """Small pictures grow by whole factors, so that their pixels stay squares; large ones shrink."""
    longest = max(picture.size)
    factor = TILE // longest if longest <= TILE else TILE / longest
    size = [max(1, round(side * factor)) for side in picture.size]
    return picture.resize(size, images.Resampling.NEAREST if factor >= 1 else images.Resampling.LANCZOS)


def _draw(images: Any, tiles: list[tuple[Any, str | None, str]], title: str) -> Any:
    """Below each picture its label on the left, and the record's number, fainter, on the right."""
    drawing = load("PIL.ImageDraw", "Pillow", "images", "a sheet of pictures")
    fonts = load("PIL.ImageFont", "Pillow", "images", "a sheet of pictures")
    columns = min(MAX_COLUMNS, max(4, math.ceil(math.sqrt(len(tiles)))), len(tiles))
    width = max(picture.width for picture, _, _ in tiles)
    height = max(picture.height for picture, _, _ in tiles)
    width = max(width, 64)
    step_x, step_y = width + SPACE, height + CAPTION + SPACE
    rows = math.ceil(len(tiles) / columns)
    sheet = images.new("RGB", (columns * step_x + SPACE, TITLE + rows * step_y + SPACE // 2), BACKGROUND)
    pen, font = drawing.Draw(sheet), fonts.load_default(FONT_SIZE)
    pen.text((SPACE, TITLE / 2), _cut(pen, font, title, sheet.width - 2 * SPACE), INK, font, anchor="lm")
    for n, (picture, label, number) in enumerate(tiles):
        x, y = SPACE + n % columns * step_x, TITLE + n // columns * step_y
        place = x + (width - picture.width) // 2, y + (height - picture.height) // 2
        sheet.paste(picture, place, picture if picture.mode == "RGBA" else None)
        line = y + height + CAPTION / 2
        if label is not None:
            pen.text((x, line), label, INK, font, anchor="lm")
        pen.text((x + width, line), number, FAINT, font, anchor="rm")
    return sheet


def _cut(pen: Any, font: Any, text: str, width: float) -> str:
    """Without its middle, where it is too long: of a path the end tells most."""
    shown, keep = text, len(text)
    while keep > 2 and pen.textlength(shown, font) > width:
        keep -= 2
        shown = f"{text[: keep // 2]}…{text[-keep // 2 :]}"
    return shown


def _save(sheet: Any, path: str) -> None:
    try:
        sheet.save(path, "PNG")
    except OSError as error:
        raise DataError(f"the sheet cannot be written to {path}: {error.strerror or error}") from error
