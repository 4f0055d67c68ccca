"""`python -m hostmesh look`: what it shows of every kind of record, and one line for what cannot be read."""

from __future__ import annotations

import io
import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from conftest import clean_env

from hostmesh.__main__ import main
from hostmesh.worker.looking.table import cut, fit, measure
from hostmesh.worker.sources import SCHEMES, as_stream, open_source

Captured = pytest.CaptureFixture[str]
TEXT = "the first line\nand 日本語, which are wide letters, then more words than a terminal has room for, on and on"


class Rows:
    """Records by number, made by a function."""

    def __init__(self, make: Any, length: int = 30) -> None:
        self.make, self.length = make, length

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, index: int) -> Any:
        return self.make(index)


def photo(index: int, size: tuple[int, int] = (40, 30)) -> Any:
    from PIL import Image

    coarse = np.random.default_rng(index).integers(0, 256, (3, 4, 3), np.uint8)
    return Image.fromarray(coarse).resize(size)


def jpeg(index: int) -> bytes:
    out = io.BytesIO()
    photo(index, (40 + index, 30)).save(out, "JPEG")
    return out.getvalue()


def jpegs() -> Rows:
    return Rows(lambda n: {"image": jpeg(n), "caption": TEXT, "label": n % 3})


def pillows() -> Rows:
    return Rows(lambda n: (photo(n), n % 3))


def floats() -> Rows:
    return Rows(lambda n: {"pixels": np.asarray(photo(n), np.float32).transpose(2, 0, 1) / 127.5 - 1})


def uneven() -> Rows:
    return Rows(lambda n: {"tokens": np.frombuffer(f"number {n}: ä".encode(), np.uint8).astype(np.int32), "f": n / 3})


def not_finite() -> Rows:
    return Rows(lambda n: {"v": np.array([n, np.nan if n == 3 else 1.0], np.float32), "flag": n % 2 == 0})


def wide() -> Rows:
    return Rows(lambda n: {f"column_{k}": n * k for k in range(30)})


def lists() -> Rows:
    return Rows(lambda n: {"ids": list(range(8)), "more": n if n else None})


def fail_at_3(index: int) -> Any:
    if index == 3:
        raise ValueError("the disk is gone")
    return {"x": index}


def failing() -> Rows:
    return Rows(fail_at_3)


def all_failing() -> Rows:
    return Rows(lambda n: 1 // 0)


def empty() -> Rows:
    return Rows(lambda n: n, 0)


def raising() -> Rows:
    raise RuntimeError("no\nconnection")


def endless() -> Any:
    def begin(shard: int, shards: int) -> Any:
        n = 0
        while True:
            yield {"n": n, "word": "a" * (n % 3)}
            n += 1

    return as_stream(begin, batched=False)


def batches() -> Any:
    return as_stream([{"n": np.arange(4) + 4 * k} for k in range(3)], batched=True)


def torn() -> Any:
    def begin(shard: int, shards: int) -> Any:
        yield {"n": 1}
        raise OSError("the link is lost")

    return as_stream(begin, batched=False)


def prepare(block: Any, ids: Any, rng: Any) -> Any:
    return {"image": block["image"] / np.float32(16), "id": ids, "noise": rng.random()}


def shout(ids: list[int]) -> str:
    return bytes(ids).decode().upper()


@pytest.fixture(autouse=True)
def terminal(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.chdir(tmp_path)


def look(capsys: Captured, spec: str, *options: str, code: int = 0) -> str:
    """What is printed: on stdout where it succeeds, else both, and never a traceback."""
    spec = spec if ":" in spec else f"test_look:{spec}"
    assert main(["look", spec, "--seconds", "0.05", *options]) == code
    printed = capsys.readouterr()
    assert "Traceback" not in printed.err and (code or not printed.err)
    assert printed.err.count("\n") == (1 if code else 0)
    return printed.out + printed.err


def test_the_whole_page_at_80_columns(capsys: Captured) -> None:
    lines = look(capsys, "digits:train").splitlines()
    assert lines[:7] == [
        "digits:train",
        "1,437 records, fingerprint f8e4e8ba",
        "",
        "field  dtype  shape   values",
        "image  uint8  8 × 8   0 to 16",
        "label  int32  scalar  0 to 9, 10 distinct",
        "(seen in 264 of 1,437 records)",
    ]
    assert lines[8:11] == [
        "row  image                       label",
        "  0  8 × 8, 0 to 16, mean 4.938      6",
        "  1  8 × 8, 0 to 16, mean 4.188      3",
    ]
    assert [line.split("  ")[0] for line in lines[-4:]] == ["speed", "", "", "sheet"]
    assert "1 thread " in lines[-4] and lines[-4].endswith(" records/s")
    assert re.fullmatch(r"       \(read \d+ at a time, in shuffled order\)", lines[-2])
    assert lines[-1] == "sheet  look.png: 64 pictures of image, label below each"
    assert max(map(measure, lines)) <= 80


def test_json_says_the_same(capsys: Captured) -> None:
    found = json.loads(look(capsys, "digits:test", "--json", "--rows", "2", "--workers", "3", "--no-sheet"))
    assert (found["records"], found["is_stream"], found["sheet"]) == (360, False, None)
    image, label = found["fields"]
    assert (image["dtype"], image["shape"], image["least"], image["most"]) == ("uint8", [8, 8], 0, 16)
    assert (label["dtype"], label["shape"]) == ("int32", [])
    assert [row["row"] for row in found["rows"]] == [0, 1]
    rates = found["speed"]["records_per_second"]
    assert rates.keys() == {"1", "3"} and min(rates.values()) > 0
    assert not Path("look.png").exists()


@pytest.mark.parametrize(("spec", "columns", "size"), [("jpegs", 6, 128), ("pillows", 6, 120), ("floats", 6, 120)])
def test_pictures_are_drawn_on_a_sheet(spec: str, columns: int, size: int, capsys: Captured) -> None:
    from PIL import Image

    shown = look(capsys, spec, "--sheet", "a sheet.png", "--no-speed")
    assert "sheet  a sheet.png: 30 pictures of " in shown
    with Image.open("a sheet.png") as sheet:
        assert sheet.width == columns * (size + 12) + 12
        pixels = np.asarray(sheet.convert("RGB"))
    drawn = pixels[36 : 36 + 90, 12 : 12 + size].reshape(-1, 3)
    wanted = np.asarray(photo(0))
    # The first picture is the first record's, in its own colours.
    assert np.abs(drawn.mean(0) - wanted.reshape(-1, 3).mean(0)).max() < (40 if spec == "jpegs" else 2)


def test_encoded_pictures_and_long_text_fit_the_terminal(capsys: Captured) -> None:
    lines = look(capsys, "jpegs", "--rows", "3", "--no-speed").splitlines()
    assert any(line.startswith("image    JPEG") and "40–69 × 30 px" in line for line in lines)
    rows = [line for line in lines if " JPEG 4" in line]
    assert len(rows) == 3 and {measure(line) for line in rows} == {80} and r"first line\nand 日本語" in rows[0]


def test_shapes_that_vary_have_ranges_and_records_are_read_as_collate_gets_them(capsys: Captured) -> None:
    shown = look(capsys, "uneven")
    assert "tokens  int32    12–13   32 to 195" in shown
    assert "note: tokens: not alike in all records, so a Loader wants `collate=`" in shown
    assert "as `collate=` gets them" in shown and "  0  110 117 109 98 101 114 32 48" in shown


def test_a_mixture_is_shown_in_its_own_order(capsys: Captured, tmp_path: Path) -> None:
    """Its ids number all records of its parts, which are more than an epoch has, or fewer."""
    np.savez(tmp_path / "a.npz", id=np.arange(4))
    np.savez(tmp_path / "b.npz", id=np.arange(4, 94))
    for weights, length in (((1, 1), 7), ((9, 1), 4)):
        spec = f"mix:npz:{tmp_path}/a.npz={weights[0]},npz:{tmp_path}/b.npz={weights[1]}"
        shown = json.loads(look(capsys, spec, "--json", "--rows", "3", "--seconds", "0.05"))
        assert shown["records"] == length and shown["problems"] == [] and shown["speed"]["records_per_second"]
        order = open_source(spec).make_order(0, True)  # type: ignore[union-attr]
        assert [row["row"] for row in shown["rows"]] == order.ids(0, 3).tolist()
        assert [row["values"]["id"] for row in shown["rows"]] == [str(id_) for id_ in order.ids(0, 3)]


def test_token_files_are_shown(capsys: Captured, tmp_path: Path) -> None:
    np.frombuffer(b"the first.the second.", np.uint8).astype("<u2").tofile(tmp_path / "t.bin")
    tokens = f"tokens:{tmp_path}/t.bin?dtype=uint16"
    documents = look(capsys, f"{tokens}&separator=46", "--decode", "utf-8")
    assert "2 records" in documents and "the second." in documents and "10–11" in documents
    windows = look(capsys, f"{tokens}&length=4&next=1", "--decode", "utf-8")
    assert "5 records" in windows and "targets  uint16" in windows and "t.th" in windows


def test_tokens_are_decoded(capsys: Captured) -> None:
    assert "  1  number 1: ä  0.333333" in look(capsys, "uneven", "--decode", "utf-8", "--no-speed")
    assert "  1  NUMBER 1: Ä" in look(capsys, "uneven", "--decode", "test_look:shout", "--no-speed")
    told = look(capsys, "digits:train", "--decode", "utf-8", code=2)
    assert told.startswith("look: --decode utf-8 wants a field of token ids") and "image uint8 8 × 8" in told


def test_what_is_odd_is_told(capsys: Captured) -> None:
    shown = look(capsys, "not_finite", "--no-speed")
    assert "0 to 29, not finite in 1 of 30 records" in shown and "50% true" in shown
    shown = look(capsys, "lists", "--no-speed")
    assert "None or int64" in shown and "note: ids is a list, of which a Loader makes one array a place" in shown


def test_more_fields_than_fit_are_shown_below_one_another(capsys: Captured) -> None:
    lines = look(capsys, "wide", "--rows", "2", "--no-speed").splitlines()
    assert "row 1" in lines and lines[lines.index("row 1") + 30] == "  column_29  29"


def test_a_map_is_applied_as_a_loader_does(capsys: Captured) -> None:
    shown = look(capsys, "digits:train", "--map", "test_look:prepare", "--rows", "1")
    assert "image  float32  8 × 8   0 to 1" in shown and "id     int64" in shown
    assert "(read and mapped " in shown and "pictures of image\n" in shown


def test_a_stream_shows_its_first_rows_and_has_no_length(capsys: Captured) -> None:
    shown = look(capsys, "endless", "--rows", "3")
    assert "a stream, which has no length" in shown and "(seen in the first 259 records)" in shown
    assert "\n  2  2  aa\n" in shown and "speed  1 thread" in shown
    assert "0 to 11, 12 distinct" in look(capsys, "batches", "--no-speed")


def test_a_record_that_raises_is_named_and_the_rest_is_shown(capsys: Captured) -> None:
    shown = look(capsys, "failing", "--rows", "5", code=2)
    assert "\n  4  4\n" in shown and "0 to 29, 29 distinct" in shown and "speed  not measured" in shown
    told = shown.splitlines()[-1]
    assert told.startswith("look: 1 of 30 records cannot be read: record 3 of Rows at ")
    assert told.endswith("in fail_at_3: ValueError: the disk is gone")
    shown = look(capsys, "torn", code=2)
    assert "\n  0  1\n" in shown and "record 1 of begin" in shown and "OSError: the link is lost" in shown


def nothing(block: Any) -> Any:
    raise KeyError("caption")


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["digit:train"], "unknown scheme 'digit'"),
        (["digits"], "a source is written scheme:what"),
        (["digits:training"], "did you mean train?"),
        (["npz:nowhere.npz"], "nowhere.npz does not exist"),
        (["hf:./nowhere"], "hf:./nowhere cannot be loaded: it does not exist"),
        (["test_look:empty"], "test_look:empty: it is empty; wanted at least one record"),
        (["test_look:raising"], "in raising: RuntimeError: no connection"),
        (["test_look:all_failing"], "record 0 of Rows at "),
        (["test_look:photos"], "unknown function 'photos'"),
        (["digits:train", "--map", "test_look:nothing"], "in nothing: KeyError: 'caption'"),
        (["digits:train", "--map", "no_such:thing"], "--map no_such:thing: no module 'no_such'"),
        (["digits:train", "--decode", "latin"], "--decode wants utf-8 or module:function; found latin"),
        (["digits:train", "--rows", "none"], "--rows: wanted a whole number of at least 1; found none"),
        (["digits:train", "--seconds", "-1"], "wanted a number of seconds above 0"),
        (["digits:train", "--sheet", "no/folder.png", "--no-speed"], "the sheet cannot be written to no/folder.png"),
        (["digits:train", "--row", "2"], "unrecognized arguments: --row 2"),
        ([], "the following arguments are required: SPEC"),
    ],
)
def test_bad_input_is_one_line_and_exit_code_2(arguments: list[str], told: str, capsys: Captured) -> None:
    assert main(["look", *arguments]) == 2
    err = capsys.readouterr().err
    assert err.startswith("look: ") and told in err and err.count("\n") == 1


def test_missing_packages_are_named_with_their_extra(capsys: Captured, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("PIL", "PIL.Image", "datasets"):
        monkeypatch.setitem(sys.modules, name, None)
    assert "sheet  none: a sheet of pictures needs Pillow: pip install 'hostmesh[images]'" in look(
        capsys, "digits:train", "--no-speed"
    )
    assert "needs datasets: pip install 'hostmesh[hugging-face]'" in look(capsys, "hf:./here", code=2)


def test_what_there_is_and_how_light_its_help_is() -> None:
    """Help imports neither NumPy nor jax, and looking does not import jax."""
    program = """
import sys
from hostmesh.__main__ import main
main([])
try:
    main(["look", "--help"])
except SystemExit as end:
    assert not end.code
assert not {"numpy", "jax", "PIL"} & set(sys.modules)
assert main(["watch"]) == 2
assert main(["look", "digits:train", "--rows", "1", "--seconds", "0.05"]) == 0
assert "jax" not in sys.modules
"""
    done = subprocess.run([sys.executable, "-c", program], env=clean_env(), capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    schemes = [*SCHEMES, "mix"]
    assert [scheme for scheme in schemes if f"{scheme}:" not in done.stdout.partition("examples:")[0]] == []
    assert "look SPEC" in done.stdout and "launch --help" in done.stdout and "examples:" in done.stdout
    wanted = "wanted look or checkpoint; the launcher is launch, not this"
    assert done.stderr == f"hostmesh: unknown command watch, {wanted}\n"


def test_the_widest_columns_give_way() -> None:
    assert fit([3, 4], 80) == [3, 4]
    assert fit([3, 50, 100], 80) == [3, 39, 38]
    assert fit([20] * 30, 80) is None
    assert cut("日本語", 4) == "日…" and cut("abc", 3) == "abc" and measure("e\u0301") == 1
