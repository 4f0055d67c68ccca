"""A checkpoint knows the data it was trained on: what changed is found and named, what only moved is not refused."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest
from conftest import HANGS, Launch, Start, clean_env
from told_events import Events

import hostmesh
from hostmesh.launcher.audit.audit import audit_loaders
from hostmesh.launcher.audit.data import describe_data
from hostmesh.launcher.audit.told import read_told
from hostmesh.worker.audit.recount import recount
from hostmesh.worker.errors import CheckpointError
from hostmesh.worker.remote.content import of_remote
from hostmesh.worker.remote.stores.base import RemoteFile
from hostmesh.worker.saving.snapshots import Restored
from hostmesh.worker.saving.trained_data import OTHER_LENGTH
from hostmesh.worker.verify import known_data, marks
from hostmesh.worker.verify.content import Content, Stored, of_arrays, of_files
from hostmesh.worker.verify.known_data import find_known
from hostmesh.worker.verify.slow_reading import SlowReading

# Rows of a kilobyte: more than is read of a file at once.
ROWS, ROW = 12_000, 1000


@pytest.fixture
def saved(tmp_path: Path) -> Path:
    return tmp_path / "saved"


@pytest.fixture
def large(tmp_path: Path) -> Path:
    """An .npy file of 12 MB."""
    path = tmp_path / "train.npy"
    np.save(path, np.random.default_rng(0).integers(0, 256, (ROWS, ROW), np.uint8))
    return path


def make_state() -> Any:
    return jax.device_put(np.float32(1), jax.sharding.SingleDeviceSharding(jax.devices()[0]))


def make_loader(source: Any, **options: Any) -> hostmesh.Loader:
    return hostmesh.Loader(source, **{"batch_size": 8, **options})


def save(folder: Path, loader: hostmesh.Loader, step: int = 5, **options: Any) -> None:
    """As a program that goes on from what is there, and saves when all bytes have been read."""
    kept = hostmesh.Checkpoint(folder, data_spec=loader.data_spec, **options)
    kept.restore(make_state())
    known = find_known(loader.data_spec)
    if known is not None and known.reading is not None:
        known.reading.hurried.set()
        assert known.reading.ended.wait(60)
    kept.save(step, make_state(), step)
    kept.close()


def resume(folder: Path, loader: hostmesh.Loader, **options: Any) -> Any:
    kept = hostmesh.Checkpoint(folder, data_spec=loader.data_spec, **options)
    try:
        return kept.restore(make_state())
    finally:
        kept.close()


def refusal(folder: Path, loader: hostmesh.Loader, **options: Any) -> str:
    with pytest.raises(CheckpointError) as caught:
        resume(folder, loader, **options)
    return str(caught.value)


def read_position(folder: Path, step: int = 5) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((folder / str(step) / "position" / "metadata").read_text())
    return found


def flip_byte(path: Path, at: int) -> None:
    with path.open("r+b") as file:
        file.seek(at)
        byte = file.read(1)[0]
        file.seek(at)
        file.write(bytes([byte ^ 1]))


def place_between_chunks(path: Path) -> int:
    """A byte in the middle of the file that is in none of the chunks that are read at first."""
    found = of_files([str(path)])
    assert found is not None
    starts, rows = marks.place_chunks(found.stored[0], marks.CHUNKS)
    middle = len(starts) // 2
    assert starts[middle] + rows < starts[middle + 1]
    return starts[middle] + rows + 10


def test_a_byte_that_changed_anywhere_is_found_and_placed(saved: Path, large: Path) -> None:
    save(saved, make_loader(f"npy:{large}"))
    at = place_between_chunks(large)
    flip_byte(large, at)
    told = refusal(saved, make_loader(f"npy:{large}"))
    size = os.path.getsize(large)
    begin = (
        f"step 5 in {saved} was trained on data that have changed since: train.npy: {size:,} bytes then and now, but"
    )
    assert told.startswith(f"{begin} other bytes (found in chunk ")
    first, last = (int(each.replace(",", "")) for each in told.partition(", rows ")[2].partition(")")[0].split(" to "))
    assert first <= (at - 128) // ROW <= last < first + ROWS // 32
    assert "--data-changed ok" in told and "weights_only=True" in told


def test_a_change_in_a_chunk_is_found_before_all_bytes_were_ever_read(
    saved: Path, large: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(known_data.KnownData, "begin_reading", lambda _: None)
    save(saved, make_loader(f"npy:{large}"))
    assert "all_bytes" not in read_position(saved)["data"]
    flip_byte(large, os.path.getsize(large) - 1)
    assert f"(found in chunk 64 of 64, rows {ROWS - 66:,} to {ROWS - 1:,})" in refusal(
        saved, make_loader(f"npy:{large}")
    )


def test_what_was_not_touched_is_not_read_again_and_what_moved_is_read_and_accepted(
    saved: Path, large: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    save(saved, make_loader(f"npy:{large}"))
    monkeypatch.setattr(known_data, "QUIET", 0.0)
    asked: list[list[int]] = []
    read_whole = known_data.KnownData.read_whole

    def note(known: Any, numbers: list[int], why: str) -> Any:
        asked.append(numbers)
        return read_whole(known, numbers, why)

    monkeypatch.setattr(known_data.KnownData, "read_whole", note)
    assert resume(saved, make_loader(f"npy:{large}")) is not None
    (tmp_path / "elsewhere").mkdir()
    shutil.copy(large, tmp_path / "elsewhere" / "moved.npy")
    moved = make_loader(f"npy:{tmp_path / 'elsewhere' / 'moved.npy'}")
    assert resume(saved, moved) is not None
    assert asked == [[], [0]]
    assert "reading all of moved.npy, written or replaced since step 5 was saved: " in capfd.readouterr().err
    save(saved, moved, 6)  # without reading anything once more
    assert read_position(saved, 6)["data"]["all_bytes"] == read_position(saved)["data"]["all_bytes"]
    assert read_position(saved, 6)["data_history"] == []


def test_another_length_is_refused_in_any_case(saved: Path) -> None:
    save(saved, make_loader({"x": np.arange(100)}))
    longer = make_loader({"x": np.arange(104)})
    for option in ("refuse", "ok"):
        told = refusal(saved, longer, data_changed=option)
        assert "of another length: records: 100 then, 104 now; x: 800 bytes then, 832 now; " + OTHER_LENGTH in told


def test_options_are_told_apart_from_data(saved: Path) -> None:
    save(saved, make_loader({"x": np.arange(100)}))
    told = refusal(saved, make_loader({"x": np.arange(100)}, seed=1, batch_size=4))
    assert "was saved with other data: batch_size: found 8, wanted 4; seed: found 0, wanted 1; use the old" in told
    assert "changed" not in told
    told = refusal(saved, make_loader({"x": np.arange(1, 101)}, seed=1))
    assert "seed: found 0, wanted 1; beside these options the data have changed: x: 800 bytes then and now, but" in told


def test_the_part_of_a_mixture_that_changed_is_named(saved: Path, large: Path) -> None:
    def mixture(numbers: Any) -> hostmesh.Loader:
        parts = {"web": f"npy:{large}", "code": numbers}
        return make_loader(hostmesh.mix({"web": 0.5, "code": 0.5}, sources=parts), collate=len)

    numbers = np.zeros((200, 1000), np.uint8)
    save(saved, mixture(numbers))
    assert resume(saved, mixture(numbers)) is not None
    changed = numbers.copy()
    changed[120, 3] = 1
    told = refusal(saved, mixture(changed))
    place = "records of code: 200,000 bytes then and now, but other bytes (found in chunk 2 of 4, rows 65 to 129)"
    assert place in told and "train.npy" not in told


def test_views_windows_and_packed_rows_are_known_by_what_is_behind_them(saved: Path, tmp_path: Path) -> None:
    path = tmp_path / "text.bin"
    np.arange(1, 5001, dtype=np.uint16).tofile(path)
    np.save(tmp_path / "ends.npy", np.arange(0, 5000, 50))

    def sources() -> dict[str, Any]:
        documents = hostmesh.open_source(f"tokens:{path}?dtype=uint16&offsets={tmp_path / 'ends.npy'}")
        whole = hostmesh.open_source(f"tokens:{path}?dtype=uint16&length=20")
        return {
            "windows": whole,
            "view": whole.skip(3).map(lambda block: block),
            "filtered": whole.filter(lambda record: record["tokens"][0] % 40 == 1),
            "concatenated": hostmesh.concatenate(whole, whole.take(9)),
            "packed": hostmesh.pack(documents, 128),
            "over documents": hostmesh.windows(documents, 64),
        }

    for name, source in sources().items():
        save(saved / name, make_loader(source, batch_size=4))
    flip_byte(path, 4001)
    for name, source in sources().items():
        assert "text.bin" in refusal(saved / name, make_loader(source, batch_size=4)), name


@pytest.mark.xdist_group("hugging face")
def test_rows_of_a_table_are_compared_wherever_its_files_lie(saved: Path, tmp_path: Path) -> None:
    import datasets

    def write(name: str, **change: Any) -> str:
        rows = np.random.default_rng(0).integers(0, 100, (200, 30))
        values = {"tokens": [row[: 5 + n % 20] for n, row in enumerate(rows)], "text": [f"row {n}" for n in range(200)]}
        for field, number in change.items():
            values[field][number] = values[field][number - 1]
        datasets.Dataset.from_dict({**values, "label": np.arange(200)}).save_to_disk(tmp_path / name)
        return f"hf:{tmp_path / name}"

    def load(spec: str) -> hostmesh.Loader:
        return make_loader(spec, collate=lambda records: np.zeros(len(records)))

    save(saved, load(write("first")))
    assert resume(saved, load(write("copy"))) is not None
    for field in ("tokens", "text"):
        told = refusal(saved, load(write(f"other {field}", **{field: 77})))
        assert f"changed since: {field}: " in told and "label" not in told
    shuffled = datasets.load_from_disk(tmp_path / "first").select([*range(77), 76, *range(78, 200)])
    assert "label: 1,600 bytes then and now, but other bytes" in refusal(saved, load(shuffled))  # type: ignore[arg-type]


def test_what_is_allowed_is_told_and_remembered(saved: Path, capfd: pytest.CaptureFixture[str]) -> None:
    first, second, third = ({"x": np.arange(begin, begin + 100)} for begin in (0, 1, 2))
    save(saved, make_loader(first))
    save(saved, make_loader(second), 7, data_changed="ok")
    told = capfd.readouterr().err
    assert f"checkpoint: step 5 in {saved} was trained on data that have changed since: x: 800 bytes" in told
    assert "allowed, from step 6 on" in told
    assert resume(saved, make_loader(second)) is not None
    assert "have changed since" in refusal(saved, make_loader(first))
    save(saved, make_loader(second), 8)
    save(saved, make_loader(third), 9, data_changed="ok")
    old, new, newest = (read_position(saved, step) for step in (5 if (saved / "5").exists() else 7, 8, 9))
    assert [each["from_step"] for each in newest["data_history"]] == [1, 6] and newest["data"]["from_step"] == 9
    assert newest["data_history"][1]["content"] == new["data"]["content"] != newest["data"]["content"]
    assert newest["data_history"][0]["content"] == (new["data_history"][0])["content"]
    assert old["data_history"] == [] or old["data"]["from_step"] == 6


def test_one_flipped_byte_that_is_allowed_is_remembered(saved: Path, large: Path) -> None:
    """Where the fingerprint of chunks is the same as before."""
    save(saved, make_loader(f"npy:{large}"))
    flip_byte(large, place_between_chunks(large))
    save(saved, make_loader(f"npy:{large}"), 6, data_changed="ok")
    before, after = read_position(saved), read_position(saved, 6)
    assert before["data"]["content"] == after["data"]["content"]
    assert after["data_history"][0]["all_bytes"] == before["data"]["all_bytes"] != after["data"]["all_bytes"]
    assert resume(saved, make_loader(f"npy:{large}")) is not None


def test_a_state_in_memory_is_held_against_the_data_of_the_newest_save(
    saved: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second = make_loader({"x": np.arange(100)}), make_loader({"x": np.arange(1, 101)})
    save(saved, first)

    def go_on(loader: hostmesh.Loader, step: int, **options: Any) -> dict[str, Any]:
        """From a state in memory."""
        kept = hostmesh.Checkpoint(saved, data_spec=loader.data_spec, memory_every=1, **options)
        assert kept._snapshots is not None
        monkeypatch.setattr(kept._snapshots, "restore", lambda like, saved_step: Restored(7, like, 7))
        try:
            kept.restore(make_state())
            kept.save(step, make_state(), step)
            kept.wait()
            return read_position(saved, step)
        finally:
            kept.close()

    with pytest.raises(CheckpointError, match="step 5 in .* was trained on data that have changed since: x: 800 bytes"):
        go_on(second, 8)
    assert [each["from_step"] for each in go_on(second, 8, data_changed="ok")["data_history"]] == [1]
    assert [each["from_step"] for each in go_on(second, 9)["data_history"]] == [1]
    (saved / "9" / "position" / "metadata").write_text("damaged")
    assert go_on(second, 10)["data_history"] == []


def test_data_changed_wants_one_of_two_words(saved: Path) -> None:
    with pytest.raises(ValueError, match="data_changed wants one of refuse, ok; found 'yes'"):
        hostmesh.Checkpoint(saved, data_spec={}, data_changed="yes")


def forget_bytes(position: dict[str, Any]) -> None:
    """A step as versions before this one saved it."""
    del position["data"], position["data_history"], position["data_spec"]["bytes"]


def change_file(folder: Path, change: Callable[[dict[str, Any]], None]) -> None:
    position = read_position(folder)
    change(position)
    (folder / "5" / "position" / "metadata").write_text(json.dumps(position))


def test_steps_of_earlier_versions_are_compared_by_what_they_know(saved: Path) -> None:
    save(saved, make_loader({"x": np.arange(100)}))
    change_file(saved, forget_bytes)
    assert resume(saved, make_loader({"x": np.arange(100)})) is not None
    told = refusal(saved, make_loader({"x": np.arange(1, 101)}))
    assert "have changed since: content: " in told and told.partition("content: ")[2][8:14] == " then,"
    assert "batch_size: found 8, wanted 4" in refusal(saved, make_loader({"x": np.arange(100)}, batch_size=4))


def test_fingerprints_made_in_another_way_are_not_compared(saved: Path, large: Path) -> None:
    save(saved, make_loader(f"npy:{large}"))

    def change(position: dict[str, Any]) -> None:
        position["data_spec"]["bytes"] = "0"
        position["data"]["stored"][0].update(chunks="0 0 0")

    change_file(saved, change)
    assert resume(saved, make_loader(f"npy:{large}")) is not None


class Numbers:
    def __init__(self, add: int = 0, varies: bool = False) -> None:
        self.add, self.reads, self.varies = add, 0, varies

    def __len__(self) -> int:
        return 40

    def __getitem__(self, number: int) -> dict[str, Any]:
        self.reads += self.varies
        return {"x": np.int64(number + self.add + self.reads)}


def test_objects_without_bytes_are_known_by_a_few_records(saved: Path) -> None:
    save(saved, make_loader(Numbers()))
    assert (
        read_position(saved)["data"]["content_of"] == "4 records" and "bytes" not in read_position(saved)["data_spec"]
    )
    assert resume(saved, make_loader(Numbers())) is not None
    assert "have changed since: content: " in refusal(saved, make_loader(Numbers(1)))
    save(saved / "varying", make_loader(Numbers(varies=True)))
    assert resume(saved / "varying", make_loader(Numbers(1, varies=True))) is not None


def test_another_map_of_the_same_file_is_told_as_that(saved: Path, large: Path) -> None:
    source = hostmesh.open_source(f"npy:{large}")
    save(saved, make_loader(source.map(lambda block: block)))
    assert "did a map, a filter or a decoder change?" in refusal(
        saved, make_loader(source.map(lambda block: block + 1))
    )


def test_a_data_spec_with_more_in_it_is_that_of_its_loader(saved: Path) -> None:
    loader, again = make_loader({"x": np.arange(100)}), make_loader({"x": np.arange(100)})
    found = find_known({**loader.data_spec, "model": "small"})
    assert found is not None and found.content is not None
    del again
    assert find_known(loader.data_spec).content is not None  # type: ignore[union-attr]
    assert find_known({"seed": 0}) is None


def test_where_bytes_do_not_count_only_records_are_compared(saved: Path, large: Path) -> None:
    save(saved, make_loader(f"npy:{large}", verify=False))
    flip_byte(large, place_between_chunks(large))
    assert resume(saved, make_loader(f"npy:{large}", verify=False)) is not None


def test_a_file_that_changes_while_it_is_read_has_no_fingerprint(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(bytes(1 << 20))
    content = of_files([str(path)])
    assert content is not None
    reading = SlowReading(content)
    reading.hurried.set()
    flip_byte(path, 5)
    os.utime(path, ns=(0, 0))
    reading.read()
    assert reading.found is None and reading.ended.is_set()


# Chunks, sections and names; without a loader.


@pytest.mark.parametrize(("rows", "row_size"), [(1, 1), (5000, 1), (1 << 23, 1), (100, 1 << 20), (3, 0), (70, 1 << 16)])
def test_chunks_lie_within_and_sections_cover_all(rows: int, row_size: int) -> None:
    one = Stored("x", rows, row_size, lambda start, stop: bytes((stop - start) * row_size))
    starts, size = marks.place_chunks(one, marks.CHUNKS)
    assert starts == sorted(starts) and starts[0] >= 0 and starts[-1] + size <= rows
    assert len(starts) * size * row_size <= marks.CHUNKS * marks.CHUNK or len(starts) == 1
    for every in (1, 3):
        count = len(one.sections(64, every))
        bounds = [one.section_bounds(number, count, every) for number in range(count)]
        assert [start for start, _ in bounds[1:]] == [stop for _, stop in bounds[:-1]]
        assert bounds[0][0] == 0 and bounds[-1][1] == one.size


def test_of_very_many_files_neighbours_are_noted_as_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(marks, "MAX_NAMED", 4)
    monkeypatch.setattr(marks, "MAX_CHUNKS", 5)
    data = [np.full(200_000, number, np.uint8) for number in range(10)]

    def note(arrays: list[Any]) -> tuple[Content, list[marks.Mark]]:
        stored = [
            Stored(f"{n}.bin", len(one), 1, lambda start, stop, one=one: one[start:stop].tobytes())  # type: ignore[misc]
            for n, one in enumerate(arrays)
        ]
        content = Content(tuple(stored))
        return content, marks.mark_content(content, None)

    content, first = note(data)
    assert [mark.name for mark in first] == ["0.bin to 2.bin", "3.bin to 5.bin", "6.bin to 8.bin", "9.bin to 9.bin"]
    assert marks.with_whole(first, content.read_all()) == marks.with_whole(note(data)[1], content.read_all())
    data[4] = np.full(200_000, 77, np.uint8)
    changed, second = note(data)
    assert marks.compare_marks(first, second, 1) == ["3.bin to 5.bin: 600,000 bytes then and now, but other bytes"]
    data[3], data[7] = data[3][:-1], data[7].copy()
    assert marks.compare_marks(first, note(data)[1], 1) == ["3.bin to 5.bin: 600,000 bytes then, 599,999 now"]
    assert marks.digest(first) != marks.digest(second)


def test_of_more_files_than_chunks_some_are_not_read_at_first(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(marks, "MAX_CHUNKS", 4)
    asked: list[int] = []

    def store(number: int) -> Stored:
        def read(start: int, stop: int) -> bytes:
            asked.append(number)
            return bytes(stop - start)

        return Stored(f"{number}.bin", 1000, 1, read)

    content = Content(tuple(store(number) for number in range(8)))
    first = marks.mark_content(content, None)
    assert sorted(set(asked)) == [0, 2, 4, 6] and len(first) == 8
    assert marks.compare_marks(first, marks.with_whole(first, content.read_all()), 1) == []


def test_files_that_came_or_went_are_named(tmp_path: Path) -> None:
    for name in "abc":
        (tmp_path / name).write_bytes(b"0" * 100)

    def note(names: str) -> list[marks.Mark]:
        content = of_files([str(tmp_path / name) for name in names])
        assert content is not None
        return marks.mark_content(content, None)

    assert marks.compare_marks(note("ab"), note("abc"), 1) == ["c is new"]
    assert marks.compare_marks(note("abc"), note("ac"), 1) == ["b is gone"]
    assert marks.compare_marks(note("ab"), note("bc"), 1) == []  # renamed
    again = [marks.Mark.from_json(json.loads(json.dumps(mark.to_json()))) for mark in note("ab")]
    assert marks.compare_marks(again, note("ab"), 1) == [] and marks.digest(again) == marks.digest(note("ab"))


def test_small_arrays_beside_a_large_file_are_read_whole(large: Path) -> None:
    behind = of_files([str(large)])
    assert behind is not None
    found = marks.mark_content(behind.with_array("the records kept", np.arange(50_000)), None)
    assert [mark.chunks is None for mark in found] == [False, True]
    assert of_arrays({"x": np.arange(4)}) is not None


# What a run tells, and what a person can ask.


def test_result_has_the_data_and_what_was_used_of_them() -> None:
    about = {"source": "npy:train.npy", "records": 50, "content": "1a2b", "order": {"seed": 5}}
    events = Events()
    events.deliver(1, [9, 7])
    events.begin_attempt(last_step=8)
    events.deliver(7, 12, restored=6)
    changed = {**about, "content": "3c4d"}
    at = 0
    for n, line in enumerate(events.lines):
        event = json.loads(line)
        if event["event"] == "loading" and event["process_id"] == 0:
            event["detail"]["data"] = (about, changed)[at]
            at += 1
            events.lines[n] = json.dumps(event).encode()
    told = read_told(events.lines)
    audits = audit_loaders(told, recount)
    used = {"steps": 12, "first_step": 1, "records": 144, "epochs": 3}
    before = [{"attempt": 1, "source": "npy:train.npy", "records": 50, "content": "1a2b"}]
    assert describe_data(told, audits) == {**changed, "used": used, "before": before}
    assert describe_data(read_told(()), {}) is None


@pytest.mark.parametrize("long", [False, True])
def test_what_is_told_of_a_mixture_fits_into_a_message(long: bool) -> None:
    names = [f"{'part' * (500 if long else 1)} {number}" for number in range(40)]
    parts = {name: {"x": np.arange(4)} for name in names}
    spec = make_loader(hostmesh.mix(dict.fromkeys(names, 1.0), sources=parts)).data_spec
    told = known_data.describe_data(find_known(spec), spec)
    weights = told["order"]["weights"]
    assert weights == dict.fromkeys(names[: 3 if long else 40], "1/40") and told["order"]["stop"] == "first"
    assert len(json.dumps(told)) < 16_000 and told["source"].startswith("mix(")


def test_of_a_stream_its_name_and_batches_are_told(saved: Path) -> None:
    loader = make_loader(hostmesh.as_stream([{"x": n} for n in range(100)], batched=False))
    save(saved, loader)
    data = read_position(saved)["data"]
    assert data == {"source": "list", "order": {"batch_size": 8, "tail": "carry", "shards": 1}, "from_step": 1}


COMPARED = """
import json, sys
import jax, numpy as np, hostmesh
from hostmesh.worker.verify import known_data, slow_reading

slow_reading.MIN_PAUSE = 0.0
hostmesh.join()
mesh = hostmesh.make_mesh(data=-1)
state = jax.device_put(np.float32(1), jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec()))
loader = hostmesh.Loader(f"npy:{jax.process_index()}.npy", mesh, 8, steps=1)
reading = loader._comparison.reading
kept = hostmesh.Checkpoint("saved", data_spec=loader.data_spec)
kept.restore(state)
assert known_data.find_known(loader.data_spec).reading is reading
for batch in loader:
    pass
kept.save(1, state, loader.state())
kept.close()
"""


@pytest.mark.slow
def test_where_hosts_are_compared_the_same_reading_gives_the_fingerprint(
    launch: Launch, script: Callable[..., str], tmp_path: Path, large: Path
) -> None:
    for process in (0, 1):
        shutil.copy(large, tmp_path / f"{process}.npy")
    done = launch("--local", "2", script(COMPARED))
    assert done.returncode == 0, done.stdout + done.stderr
    found = of_files([str(large)])
    assert found is not None
    stored = read_position(tmp_path / "saved", 1)["data"]["stored"]
    assert stored[0]["all"].split() == found.read_all()[0]


JOB = ("--local", "2", "--source", "npy:train", "--steps", "3000", "--batch-size", "16", "--checkpoint-dir", "saved")


@pytest.mark.slow
def test_the_job_is_interrupted_refuses_other_data_and_goes_on_when_allowed(
    start: Start, launch: Launch, tmp_path: Path
) -> None:
    (tmp_path / "train").mkdir()
    random = np.random.default_rng(0)
    np.save(tmp_path / "train" / "image.npy", random.integers(0, 256, (400, 8, 8), np.uint8))
    np.save(tmp_path / "train" / "label.npy", (np.arange(400) % 10).astype(np.int32))
    run = start(*JOB, "--checkpoint-every", "10")
    run.await_event("saved")
    os.kill(run.launcher.pid, signal.SIGTERM)
    assert run.wait(HANGS) == 75, run.stderr
    data, step = run.result["data"], run.result["saved_step"]
    assert data["used"] == {"steps": step, "first_step": 1, "records": 16 * step, "epochs": -(-16 * step // 400)}
    order = {"seed": 0, "shuffle": True, "batch_size": 16, "tail": "carry"}
    assert (data["source"], data["records"], data["order"]) == ("npy:train", 400, order)

    changed = np.load(tmp_path / "train" / "image.npy")
    changed[333, 0, 0] ^= 1
    np.save(tmp_path / "train" / "image.npy", changed)
    steps = ("--steps", str(step + 5))
    refused = launch(*JOB, *steps)
    assert refused.returncode == 1
    assert "have changed since: image.npy: 25,728 bytes then and now, but other bytes" in refused.stderr
    run = start(*JOB, *steps, "--data-changed", "ok")
    assert run.wait(HANGS) == 0, run.stderr
    assert f"allowed, from step {step + 1} on" in run.stderr
    now = run.result["data"]
    assert now["used"]["steps"] == 5 and now["content"] != data["content"]
    assert [(each["from_step"], each["content"]) for each in now["data_history"]] == [(1, data["content"])]

    command = [sys.executable, "-X", "importtime", "-m", "hostmesh", "checkpoint", "saved"]
    shown = subprocess.run(command, cwd=tmp_path, env=clean_env(), capture_output=True, text=True, check=True)
    assert f"since      step {step + 1}; the steps before were trained on other data:" in shown.stdout
    assert f"content {data['content']}" in shown.stdout and "source     npy:train\n" in shown.stdout
    assert f"used       {step + 5} batches, {16 * (step + 5):,} records" in shown.stdout
    assert " jax\n" not in shown.stderr and " numpy\n" not in shown.stderr


def show(folder: Path, *options: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "hostmesh", "checkpoint", str(folder), *options]
    return subprocess.run(command, env=clean_env(), capture_output=True, text=True)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ((), "has no saved step; wanted a folder of hostmesh.Checkpoint"),
        (("--step", "x"), "argument --step: invalid int value: 'x'; python -m hostmesh checkpoint --help shows how"),
    ],
)
@pytest.mark.quick("options0")
def test_a_folder_without_steps_is_told_in_one_line(tmp_path: Path, options: tuple[str, ...], said: str) -> None:
    done = show(tmp_path, *options)
    assert done.returncode == 2 and said in done.stderr and len(done.stderr.splitlines()) == 1


def test_a_file_in_a_store_is_known_by_the_stores_word_for_it() -> None:
    """Nothing is read of it, then or now."""

    def mark(size: int, version: str) -> list[marks.Mark]:
        content = of_remote([RemoteFile("s3://bucket/train.npy", size, version, "")])
        return [marks.Mark.from_json(each.to_json()) for each in marks.mark_content(content, content.read_all())]

    huge = 10 << 40
    assert marks.compare_marks(mark(huge, "one"), mark(huge, "one"), 1) == []
    assert marks.compare_marks(mark(huge, "one"), mark(huge, "two"), 1) == [
        f"train.npy: another version in the store, of {huge:,} bytes then and now; its bytes were not compared"
    ]
    assert marks.compare_marks(mark(8, "one"), mark(9, "one"), 1) == ["train.npy: 8 bytes then, 9 now"]
