"""Sources in object stores: the same rows as from local files, whatever the store does in between."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import object_stores as stores
import pytest
from array_record.python.array_record_module import ArrayRecordWriter
from object_stores import BUCKET, Proxy, put_folder, s3_env
from test_sources import assert_same, check_contract

from hostmesh.worker.remote import fetching, ranges, whole
from hostmesh.worker.remote.fetching import Limits
from hostmesh.worker.sources import open_source

pytest.importorskip("s3fs", reason="hostmesh[object-stores]")
pytest.importorskip("moto", reason="hostmesh[test]")

# One process of the test run starts the servers for all.
pytestmark = pytest.mark.xdist_group("object stores")

COUNT = 3_000
random = np.random.default_rng(0)
BLOCK = {
    "image": random.integers(0, 256, (COUNT, 4, 3)).astype(np.uint8),
    "label": random.integers(-(2**31), 2**31, COUNT).astype(np.int32),
}
TOKENS = random.integers(0, 1_000, 50_000).astype("<u2")
FIELDS = "image:uint8:4x3,label:int32"
# As in the product, but without the long pauses.
QUICK = Limits(tries=6, first_pause=0.001, longest_pause=0.01)


@pytest.fixture(scope="session")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same data in every form, as local files."""
    folder = tmp_path_factory.mktemp("data")
    (folder / "columns").mkdir()
    for name, array in BLOCK.items():
        np.save(folder / "columns" / f"{name}.npy", array)
    np.savez(folder / "both.npz", **BLOCK)
    np.save(folder / "tokens.npy", TOKENS)
    np.save(folder / "offsets.npy", np.append(0, np.sort(random.choice(len(TOKENS), 300, replace=False))))
    TOKENS[:20_000].tofile(folder / "train-0.bin")
    TOKENS[20_000:].tofile(folder / "train-1.bin")
    for part, rows in enumerate((range(1_000), range(1_000, COUNT))):
        writer = ArrayRecordWriter(str(folder / f"part-{part}.arrayrecord"), "group_size:1")
        for n in rows:
            writer.write(BLOCK["image"][n].tobytes() + BLOCK["label"][n].astype("<i4").tobytes())
        writer.close()
    return folder


@pytest.fixture(scope="session")
def s3(data: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with stores.serve(stores.S3_SERVER, tmp_path_factory.mktemp("s3") / "log") as address:
        stores.make_bucket(address)
        put_folder(address, data)
        yield address


@pytest.fixture
def cache(tmp_path: Path) -> Path:
    return tmp_path / "cache"


@pytest.fixture
def use(monkeypatch: pytest.MonkeyPatch, cache: Path) -> Callable[..., None]:
    """Environment and limits for one test."""

    def begin(address: str, **more: str) -> None:
        monkeypatch.setattr(fetching, "LIMITS", QUICK)
        for name, value in s3_env(address, cache, **more).items():
            monkeypatch.setenv(name, value)

    return begin


@pytest.fixture
def proxy(s3: str, use: Callable[..., None]) -> Iterator[Proxy]:
    between = Proxy(s3)
    use(between.address)
    yield between
    between.close()


SPECS = [
    "npy:{}/columns/label.npy",
    "npy:{}/columns",
    "npz:{}/both.npz",
    f"arrayrecord:{{}}/part-*.arrayrecord?fields={FIELDS}",
    "tokens:{}/train-0.bin,{}/train-1.bin?dtype=uint16&length=100&next=1",
    "tokens:{}/train-*.bin?dtype=uint16&length=70&stride=33",
    "tokens:{}/tokens.npy?offsets={}/offsets.npy",
    "tokens:{}/train-0.bin?dtype=uint16&separator=7",
]


def check_same(url: str, folder: Path, spec: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """From the store, from the cache, and of data that do not fit into it: all as from local files."""
    local = open_source(spec.replace("{}", str(folder)))
    ids = np.random.default_rng(1).permutation(len(local))[:200]
    wanted = local.records(ids)
    for fits in (True, True, False):
        monkeypatch.setattr("hostmesh.worker.remote.arrays.fits_cache", lambda files, fits=fits: fits)
        source = open_source(spec.replace("{}", url))
        assert len(source) == len(local)
        for found, record in zip(source.records(ids), wanted, strict=True):
            assert_same(found, record)


@pytest.mark.parametrize("spec", SPECS)
def test_a_source_in_s3_is_that_of_the_local_files(
    s3: str, data: Path, use: Callable[..., None], spec: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    use(s3)
    monkeypatch.setattr(ranges, "BLOCK", 4096)  # so that there are many
    monkeypatch.setattr(ranges, "MAX_GAP", 64)
    monkeypatch.setattr(whole, "PART", 10_000)
    check_same(f"s3://{BUCKET}", data, spec, monkeypatch)


def test_columns_in_s3_keep_what_every_source_promises(s3: str, use: Callable[..., None]) -> None:
    use(s3)
    check_contract(open_source(f"npy:s3://{BUCKET}/columns"), BLOCK)
