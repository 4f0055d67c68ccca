"""Images a second from JPEG files to batches of 64 × 224 × 224 × 3 bytes on two devices.

2,000 files of 500 × 375 pixels, 30 to 60 kB each, are generated: smooth noise of several sizes, grain and shapes. Per
image the same work is done by all: read the file, decode it (Pillow without `draft`; tf.data with its own decoder),
resize the short side to 256 with a bilinear filter, cut 224 × 224 at a random place, flip every second one; all in
bytes. Those with "crop_images" or "OpenCV" choose the place first and resize only that part, as tf.data does with
`decode_and_crop`.

Where it is done differs. PyTorch and the bare threads: all in `__getitem__`, with Python's random numbers. Grain:
decoding and resizing in the source's `__getitem__`, cutting and flipping in `random_map` with the generator that Grain
gives. hostmesh: the same `__getitem__`, cutting and flipping in `map` with the loader's `rng`; so it alone copies the
whole resized image into a block first. tf.data: all in one `map`; a second one decodes only the part it needs.

The real measurement, about 15 minutes on an idle machine:
    python benchmarks/loading_jpeg.py --rounds 7 --seconds 5
A short one, to see that everything works:
    nice -n 5 python benchmarks/loading_jpeg.py --rounds 1 --seconds 1 --files 200 --waiting-steps 10
"""

from __future__ import annotations

import argparse
import json
import os
import random
import tempfile
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from loading import Batches, compare, print_waiting
from loading_contenders import (
    Factory,
    build,
    close,
    grain_processes,
    grain_threads,
    hostmesh,
    make_loader,
    spread,
    tf_batches,
    thread_pool,
    torch_loader,
)

BATCH, SHORT, CROP = 64, 256, 224
WIDTH, HEIGHT = 500, 375
RESIZED = round(WIDTH * SHORT / HEIGHT), SHORT
# A turn first takes what was made before it: with ten batches Grain's processes still gave some from their buffers, and
# seemed 1.4 times as fast. Before that, the threads and processes of the contender before fall silent.
WARM_UP, SETTLING = 30, 2.0


def write_photos(folder: Path, count: int) -> list[str]:
    """Files of 30 to 60 kB; those that are there already are kept."""
    qualities = spread(85, 90, count)
    paths = [folder / f"{n:05}.jpg" for n in range(count)]
    for n, path in enumerate(paths):
        if not path.exists():
            make_photo(n).save(path, "JPEG", quality=qualities[n])
    return list(map(str, paths))


def make_photo(seed: int) -> Any:
    from PIL import Image, ImageDraw

    noise = np.random.default_rng(seed)
    pixels = np.zeros((HEIGHT, WIDTH, 3), np.float32)
    for cells, weight in ((4, 90), (12, 50), (40, 25), (120, 16), (300, 9)):
        coarse = noise.integers(0, 256, (cells * 3 // 4, cells, 3), np.uint8)
        pixels += weight * (np.asarray(Image.fromarray(coarse).resize((WIDTH, HEIGHT), Image.Resampling.BICUBIC)) / 255)
    pixels += noise.normal(0, 4, (HEIGHT, WIDTH, 1))
    photo = Image.fromarray(pixels.clip(0, 255).astype(np.uint8))
    pen = ImageDraw.Draw(photo)
    for _ in range(6):
        left, top = noise.integers(0, WIDTH), noise.integers(0, HEIGHT)
        size, colour = noise.integers(20, 120, 2), tuple(noise.integers(0, 256, 3).tolist())
        draw = pen.ellipse if noise.random() < 0.5 else pen.rectangle
        draw([int(left), int(top), int(left + size[0]), int(top + size[1])], fill=colour)
    return photo


def decode(path: str) -> np.ndarray:
    """256 rows of pixels and as many columns as belong to them."""
    from PIL import Image

    with Image.open(path) as image:
        return np.asarray(image.convert("RGB").resize(RESIZED, Image.Resampling.BILINEAR))


def cut(pixels: np.ndarray, top: int, left: int, flip: bool) -> np.ndarray:
    part = pixels[top : top + CROP, left : left + CROP]
    return np.ascontiguousarray(part[:, ::-1] if flip else part)


class Decoded:
    """Records with all pixels of the resized image: for hostmesh and Grain, which cut in a step of their own."""

    def __init__(self, paths: list[str]) -> None:
        self.paths = paths

    def __len__(self) -> int:
        return len(self.paths)

    def __getitem__(self, index: int) -> dict[str, Any]:
        return {"image": decode(self.paths[index]), "label": np.int32(index % 1000)}


class Encoded(Decoded):
    """Records as they lie in the files, for `hostmesh.crop_images`."""

    def __getitem__(self, index: int) -> dict[str, Any]:
        with open(self.paths[index], "rb") as file:
            return {"image": file.read(), "label": np.int32(index % 1000)}


class CutByOpenCV(Encoded):
    """For PyTorch: the work of `hostmesh.crop_images` by hand."""

    def __getitem__(self, index: int) -> dict[str, Any]:
        import cv2

        row = super().__getitem__(index)
        pixels = cv2.imdecode(np.frombuffer(row["image"], np.uint8), cv2.IMREAD_COLOR_RGB)
        side = round(CROP * HEIGHT / SHORT)
        top, left = random.randint(0, HEIGHT - side), random.randint(0, WIDTH - side)
        part = cv2.resize(pixels[top : top + side, left : left + side], (CROP, CROP), interpolation=cv2.INTER_LINEAR)
        return {**row, "image": np.ascontiguousarray(part[:, ::-1]) if random.random() < 0.5 else part}


class Cut(Decoded):
    """Records that are cut and flipped already: for PyTorch and for bare threads."""

    def __getitem__(self, index: int) -> dict[str, Any]:
        row = super().__getitem__(index)
        top, left = random.randint(0, RESIZED[1] - CROP), random.randint(0, RESIZED[0] - CROP)
        return {**row, "image": cut(row["image"], top, left, random.random() < 0.5)}


def cut_record(row: dict[str, Any], rng: np.random.Generator) -> dict[str, Any]:
    """Grain's `random_map`."""
    top, left = int(rng.integers(0, RESIZED[1] - CROP + 1)), int(rng.integers(0, RESIZED[0] - CROP + 1))
    return {**row, "image": cut(row["image"], top, left, rng.random() < 0.5)}


def cut_block(block: dict[str, Any], ids: np.ndarray, rng: Any) -> dict[str, Any]:
    """hostmesh's `map`."""
    tops = rng.integers(0, RESIZED[1] - CROP + 1).tolist()
    lefts = rng.integers(0, RESIZED[0] - CROP + 1).tolist()
    flips = (rng.random() < 0.5).tolist()
    images = np.empty((len(tops), CROP, CROP, 3), np.uint8)
    for n, (top, left, flip) in enumerate(zip(tops, lefts, flips, strict=True)):
        part = block["image"][n, top : top + CROP, left : left + CROP]
        images[n] = part[:, ::-1] if flip else part
    return {"image": images, "label": block["label"]}


def tf_data(paths: list[str], part_only: bool) -> Batches:
    """With `part_only` the random place is chosen first, in the file's own pixels, and only that part is decoded."""
    import tensorflow as tf

    def whole(data: Any) -> Any:
        image = tf.image.resize(tf.io.decode_jpeg(data, channels=3), RESIZED[::-1])
        return tf.image.random_crop(image, (CROP, CROP, 3))

    def part(data: Any) -> Any:
        side = round(CROP * HEIGHT / SHORT)
        top = tf.random.uniform((), 0, HEIGHT - side + 1, tf.int32)
        left = tf.random.uniform((), 0, WIDTH - side + 1, tf.int32)
        image = tf.image.decode_and_crop_jpeg(data, tf.stack([top, left, side, side]), channels=3)
        return tf.image.resize(image, (CROP, CROP))

    def prepare(path: Any, label: Any) -> Any:
        image = (part if part_only else whole)(tf.io.read_file(path))
        image = tf.image.random_flip_left_right(image)
        return {"image": tf.cast(tf.round(image), tf.uint8), "label": label}

    labels = np.arange(len(paths), dtype=np.int32) % 1000
    rows = tf.data.Dataset.from_tensor_slices((paths, labels)).shuffle(len(paths), seed=0).repeat()
    return tf_batches(rows.map(prepare, num_parallel_calls=tf.data.AUTOTUNE), BATCH)


def crop(decoder: str | None = None) -> Any:
    import hostmesh

    return hostmesh.crop_images(CROP, short=SHORT, decoder=decoder)


def list_contenders(paths: list[str]) -> dict[str, Factory]:
    ours = partial(hostmesh, Decoded(paths), BATCH, map=cut_block)
    cropped = partial(hostmesh, Encoded(paths), BATCH)
    return {
        "hostmesh": ours,
        "hostmesh, crop_images": partial(cropped, collate=crop()),
        "hostmesh, crop_images, processes=2": partial(cropped, collate=crop(), processes=2),
        "hostmesh, crop_images by Pillow": partial(cropped, collate=crop("pillow")),
        "hostmesh, workers=2": partial(ours, workers=2),
        "hostmesh, workers=0": partial(ours, workers=0),
        "hostmesh, processes=2": partial(ours, processes=2),
        "PyTorch, 2 workers": partial(torch_loader, Cut(paths), BATCH, 2),
        "PyTorch, 0 workers": partial(torch_loader, Cut(paths), BATCH, 0),
        "PyTorch, 2 workers, OpenCV": partial(torch_loader, CutByOpenCV(paths), BATCH, 2),
        "Grain, 2 threads": partial(grain_threads, Decoded(paths), BATCH, cut_record),
        "Grain, 2 processes": partial(grain_processes, Decoded(paths), BATCH, cut_record),
        "tf.data": partial(tf_data, paths, False),
        "tf.data, decode_and_crop": partial(tf_data, paths, True),
        "2 bare threads, no device": partial(thread_pool, Cut(paths), BATCH),
    }


def compare_jpeg(paths: list[str], rounds: int, seconds: float, only: list[str]) -> dict[str, list[float]]:
    factories = list_contenders(paths)
    contenders = build({name: factories[name] for name in only or factories})
    turn = {"batch": BATCH, "warm_up": WARM_UP, "settling": SETTLING}
    found = compare("JPEG files", contenders, rounds, seconds, unit=1, **turn)
    close(contenders)
    return found


def measure_waiting(paths: list[str], steps: int) -> None:
    """How long a step waits that takes twice as long as loading a batch with nothing read ahead."""
    whole: dict[str, Any] = {"map": cut_block}
    ways: dict[str, tuple[Any, dict[str, Any]]] = {
        "": (Decoded(paths), whole),
        ", workers=0": (Decoded(paths), {**whole, "workers": 0}),
        ", processes=2": (Decoded(paths), {**whole, "processes": 2}),
        ", crop_images": (Encoded(paths), {"collate": crop()}),
    }
    for name, (records, way) in ways.items():
        make = partial(make_loader, records, BATCH, **way)
        try:
            print_waiting(f"64 JPEG files{name}", make, steps, trial=10, warm_up=WARM_UP)
        except TypeError as error:  # a Loader without that argument
            print(f"  waiting{name} is left out: {error}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=4.0, help="of each turn")
    parser.add_argument("--files", type=int, default=2000)
    parser.add_argument("--folder", type=Path, help="keep the generated files there")
    parser.add_argument("--only", default="", help="contenders, with semicolons between them")
    parser.add_argument("--waiting-steps", type=int, default=60, help="0: do not measure waiting")
    parser.add_argument("--json", type=Path, help="also write all speeds to this file")
    options = parser.parse_args()
    import hostmesh

    hostmesh.keep_freed_memory()
    with tempfile.TemporaryDirectory() as temporary:
        folder = options.folder or Path(temporary)
        folder.mkdir(parents=True, exist_ok=True)
        paths = write_photos(folder, options.files)
        sizes = sorted(os.path.getsize(path) / 1000 for path in paths)
        print(f"{len(paths)} files of {sizes[0]:.0f} to {sizes[-1]:.0f} kB; load {os.getloadavg()[0]:.1f}", flush=True)
        if options.waiting_steps:
            measure_waiting(paths, options.waiting_steps)
        found = compare_jpeg(paths, options.rounds, options.seconds, list(filter(None, options.only.split(";"))))
        print(f"load at the end {os.getloadavg()[0]:.1f}")
    if options.json:
        options.json.write_text(json.dumps(found, indent=1))


if __name__ == "__main__":
    main()
