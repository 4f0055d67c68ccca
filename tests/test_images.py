"""Pictures: folders of them as a source, and `crop_images`, which makes arrays of one size."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from test_sources import check_contract

import hostmesh
from hostmesh.worker.errors import DataError
from hostmesh.worker.images.jpeg import find_size
from hostmesh.worker.images.pixels import Pillow, choose_decoder
from hostmesh.worker.ordering.randomness import COLLATE, RowRandom
from hostmesh.worker.sources.images import ImageFolder

Image = pytest.importorskip("PIL.Image", reason="hostmesh[images]")
pytest.importorskip("cv2", reason="hostmesh[images]")

DECODERS = ["opencv", "pillow"]
ORIENTATION, TURNED_RIGHT = 0x0112, 6


def make_pixels(height: int, width: int) -> np.ndarray[Any, Any]:
    """Smooth, and other at every place."""
    down, right = np.mgrid[0:height, 0:width]
    return np.stack([down * 255 // height, right * 255 // width, (down + right) * 255 // (height + width)], -1).astype(
        np.uint8
    )


def encode(pixels: np.ndarray[Any, Any], kind: str = "JPEG", **options: Any) -> bytes:
    file = io.BytesIO()
    mode = options.pop("mode", "RGB")
    Image.fromarray(pixels).convert(mode).save(file, kind, **options)
    return file.getvalue()


def crop(pictures: list[Any], *args: Any, start: int = 0, **options: Any) -> Any:
    ids = np.arange(len(pictures)) + start
    records = [{"image": picture, "label": n} for n, picture in zip(ids, pictures, strict=True)]
    return hostmesh.crop_images(*args, **options)(records, ids, RowRandom(7, ids, COLLATE))


def test_the_decoders_cut_the_same_parts() -> None:
    pictures = [encode(make_pixels(90 + n, 120), quality=95) for n in range(20)]
    by = {name: crop(pictures, 48, decoder=name)["image"].astype(int) for name in DECODERS}
    assert by["opencv"].shape == (20, 48, 48, 3)
    assert abs(by["opencv"] - by["pillow"]).mean() < 1.5
    assert abs(by["opencv"][1:] - by["pillow"][:-1]).mean() > 5  # parts differ


@pytest.mark.parametrize("decoder", DECODERS)
def test_a_row_does_not_depend_on_the_others_of_its_block(decoder: str) -> None:
    pictures = [encode(make_pixels(80, 60 + n)) for n in range(12)]
    whole = crop(pictures, 32, decoder=decoder)["image"]
    parts = [crop(pictures[at : at + 3], 32, decoder=decoder, start=at)["image"] for at in range(0, 12, 3)]
    np.testing.assert_array_equal(whole, np.concatenate(parts))


@pytest.mark.parametrize("decoder", DECODERS)
def test_the_middle_is_taken_and_nothing_is_flipped_for_evaluation(decoder: str) -> None:
    pixels = make_pixels(70, 100)
    found = crop([encode(pixels, "PNG")] * 4, 64, short=70, random=False, decoder=decoder)["image"]
    np.testing.assert_array_equal(found, [pixels[3:67, 18:82]] * 4)


def test_every_second_one_is_flipped_and_places_are_everywhere() -> None:
    pixels = make_pixels(64, 128)
    whole = crop([pixels] * 400, 64, short=64)["image"].astype(int)
    flipped = whole[:, 0, 0, 1] > whole[:, 0, -1, 1]
    assert 150 < flipped.sum() < 250
    left = np.where(flipped, whole[:, 0, -1, 1], whole[:, 0, 0, 1]) // 2
    assert left.min() < 5 and left.max() > 58 and np.histogram(left, 8)[0].min() > 20


@pytest.mark.parametrize("decoder", DECODERS)
def test_large_files_are_decoded_smaller_and_show_the_same(decoder: str) -> None:
    pixels = make_pixels(1100, 1700)
    data = encode(pixels, quality=95)
    chosen = choose_decoder(decoder)
    assert chosen.decode(data, 256).shape == (275, 425, 3)
    assert chosen.decode(data, 600).shape == (1100, 1700, 3)
    small = crop([data], 224, random=False, decoder=decoder)["image"].astype(int)
    large = crop([pixels], 224, random=False, decoder=decoder)["image"].astype(int)
    assert abs(small - large).mean() < 2


@pytest.mark.parametrize("decoder", DECODERS)
def test_pictures_are_turned_as_their_files_say(decoder: str) -> None:
    exif = Image.Exif()
    exif[ORIENTATION] = TURNED_RIGHT
    pixels = make_pixels(60, 90)
    found = choose_decoder(decoder).decode(encode(pixels, quality=95, exif=exif), 60).astype(int)
    assert found.shape == (90, 60, 3)
    assert abs(found - np.rot90(pixels, -1)).mean() < 2


@pytest.mark.parametrize("decoder", DECODERS)
@pytest.mark.parametrize("kind", ["JPEG", "PNG", "WEBP", "BMP", "TIFF"])
@pytest.mark.parametrize("mode", ["RGB", "L"])
def test_every_kind_of_file_gives_three_colours(decoder: str, kind: str, mode: str) -> None:
    pixels = make_pixels(40, 50)
    data = encode(pixels, kind, mode=mode, **({"lossless": True} if kind == "WEBP" else {}))
    wanted = np.asarray(Image.open(io.BytesIO(data)).convert("RGB")).astype(int)
    assert abs(choose_decoder(decoder).decode(data, 40).astype(int) - wanted).max() <= 1


@pytest.mark.parametrize("decoder", DECODERS)
def test_bytes_after_the_end_do_no_harm(decoder: str) -> None:
    data = encode(make_pixels(40, 50))
    wanted = choose_decoder(decoder).decode(data, 40)
    for after in (b"\0\0", bytes(5000)):
        np.testing.assert_array_equal(choose_decoder(decoder).decode(data + after, 40), wanted)


def test_what_a_picture_may_be() -> None:
    pixels = make_pixels(40, 50)
    wanted = crop([pixels], 32, random=False)["image"]
    data = encode(pixels, "PNG")
    transparent = np.dstack([pixels, np.full((40, 50), 128, np.uint8)])
    for picture in (data, bytearray(data), {"bytes": data, "path": None}, Image.fromarray(pixels), transparent):
        np.testing.assert_array_equal(crop([picture], 32, random=False)["image"], wanted)
    grey = crop([pixels[..., 0]], 32, random=False)["image"]
    np.testing.assert_array_equal(grey, np.repeat(wanted[..., :1], 3, -1))


def test_other_fields_are_stacked_and_sizes_may_differ() -> None:
    found = crop([make_pixels(20, 30), make_pixels(300, 200)], (24, 16), short=24)
    assert found["image"].shape == (2, 24, 16, 3)
    np.testing.assert_array_equal(found["label"], [0, 1])


@pytest.mark.parametrize(
    ("data", "size"),
    [
        (encode(make_pixels(30, 40)), (40, 30)),
        (encode(make_pixels(30, 40), progressive=True), (40, 30)),
        (encode(make_pixels(30, 40), mode="L"), (40, 30)),
        (b"\xff\xd8\xff\xff\xe0\x00\x04ab" + encode(make_pixels(30, 40))[2:], (40, 30)),
        (encode(make_pixels(30, 40), "PNG"), None),
        (encode(make_pixels(30, 40))[:12], None),
        (b"", None),
    ],
)
def test_the_size_of_a_jpeg_file(data: bytes, size: tuple[int, int] | None) -> None:
    assert find_size(data) == size


@pytest.mark.parametrize("decoder", DECODERS)
@pytest.mark.parametrize(
    ("picture", "words"),
    [
        (b"no picture", "10 bytes that are no picture, or a broken one"),
        (b"", "0 bytes that are no picture"),
        (encode(make_pixels(90, 90))[:-100], "cannot be decoded: image file is truncated"),
        (encode(make_pixels(90, 90), "PNG")[:100], "cannot be decoded: "),
        (np.zeros((4, 4, 3)), r"uint8 pixels .* found float64 of shape \(4, 4, 3\)"),
        (np.zeros((4, 4, 7), np.uint8), r"found uint8 of shape \(4, 4, 7\)"),
        ("photo.jpg", "wanted encoded bytes, .* found str|found <U9"),
        (None, "found NoneType"),
    ],
)
def test_what_is_no_picture_is_told(decoder: str, picture: Any, words: str) -> None:
    with pytest.raises(DataError, match=f"image: .*{words}"):
        crop([picture], 2, decoder=decoder)


@pytest.mark.parametrize(
    ("args", "options", "words"),
    [
        ((0,), {}, "a size of 1 or more"),
        ((64,), {"short": 32}, "short wants 64 or more"),
        ((64,), {"decoder": "jpeg"}, "decoder wants 'opencv' or 'pillow', found 'jpeg'"),
        ((64,), {"field": "photo"}, "in the field 'photo'; found the fields image, label"),
    ],
)
def test_wrong_options_are_told(args: Any, options: Any, words: str) -> None:
    with pytest.raises(DataError, match=words):
        crop([make_pixels(8, 8)], *args, **options)


def test_pillow_is_used_where_opencv_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    choose_decoder.cache_clear()
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    try:
        assert isinstance(choose_decoder(None), Pillow)
    finally:
        choose_decoder.cache_clear()


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for n in range(12):
        path = tmp_path / ("cats" if n % 3 else "dogs") / "deep" / f"{n}.{'jpg' if n % 2 else 'PNG'}"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(encode(make_pixels(40, 50 + n), "JPEG" if n % 2 else "PNG"))
    (tmp_path / "notes.txt").write_text("of no interest")
    return tmp_path


def test_a_folder_of_pictures_is_a_source(folder: Path) -> None:
    source = hostmesh.open_source(f"images:{folder}")
    assert isinstance(source, ImageFolder) and source.classes == ("cats", "dogs")
    paths = sorted(path for path in folder.rglob("*") if path.is_file() and path.suffix != ".txt")
    images = np.empty(12, object)
    images[:] = [path.read_bytes() for path in paths]
    labels = np.array([int(path.parts[-3] == "dogs") for path in paths], np.int32)
    check_contract(source, {"image": images, "label": labels})
    assert len(repr(source)) < 300


def test_batches_of_a_folder_are_the_same_for_all_workers(folder: Path) -> None:
    mesh = hostmesh.make_mesh(data=-1)

    def load(**how: Any) -> list[Any]:
        collate = hostmesh.crop_images(32, decoder="opencv")
        loader = hostmesh.Loader(f"images:{folder}", mesh, 4, epochs=2, collate=collate, **how)
        return [np.asarray(batch["image"]) for batch in loader]

    wanted = load(workers=0)
    assert len(wanted) == 6
    for how in ({"workers": 3}, {"processes": 1}, {}):
        np.testing.assert_array_equal(load(**how), wanted)


def test_pictures_that_lie_in_one_folder_have_no_label(tmp_path: Path) -> None:
    (tmp_path / "a.jpg").write_bytes(encode(make_pixels(8, 8)))
    source = hostmesh.open_source(f"images:{tmp_path}/")
    assert set(source.records(np.array([0]))[0]) == {"image"}  # type: ignore[union-attr]


def test_a_broken_picture_is_named(folder: Path) -> None:
    (folder / "cats" / "deep" / "1.jpg").write_bytes(b"\xff\xd8 broken")
    loader = hostmesh.Loader(
        f"images:{folder}", hostmesh.make_mesh(data=-1), 12, collate=hostmesh.crop_images(8), workers=0, verify=False
    )
    with pytest.raises(DataError, match="step 0: collate of record 0: image: 9 bytes that are no picture"):
        next(loader)


def test_folders_that_cannot_be_a_source_are_told(tmp_path: Path) -> None:
    for place, words in (("", "holds no picture; wanted files that end with .jpg"), ("none", "is not there")):
        with pytest.raises(DataError, match=words):
            hostmesh.open_source(f"images:{tmp_path / place}")
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "1.jpg").touch()
    with pytest.raises(DataError, match="is no folder"):
        hostmesh.open_source(f"images:{tmp_path / 'a' / '1.jpg'}")
    (tmp_path / "2.jpg").touch()
    with pytest.raises(DataError, match=r"both in folders, as classes, and beside these, such as 2\.jpg"):
        hostmesh.open_source(f"images:{tmp_path}")
    with pytest.raises(DataError, match="unknown option 'size'"):
        hostmesh.open_source(f"images:{tmp_path}?size=3")
