"""Sources in object stores: the same rows as from local files, whatever the store does in between."""

from __future__ import annotations

import io
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import object_stores as stores
import pytest
from array_record.python.array_record_module import ArrayRecordWriter
from object_stores import BUCKET, Proxy, put, put_folder, s3_env
from test_sources import assert_same, check_contract

import hostmesh
from hostmesh.worker.errors import DataError, StoreError
from hostmesh.worker.remote import fetching, ranges, whole
from hostmesh.worker.remote.caching import settings
from hostmesh.worker.remote.fetching import Limits
from hostmesh.worker.remote.stores.direct import Connections
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


@pytest.fixture(scope="session")
def one_proxy(s3: str) -> Iterator[Proxy]:
    between = Proxy(s3)
    yield between
    between.close()


@pytest.fixture
def proxy(one_proxy: Proxy, use: Callable[..., None]) -> Proxy:
    """As if new: a client is made for each address, which takes most of a second."""
    one_proxy.reset()
    use(one_proxy.address)
    return one_proxy


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


def read_all(spec: str, step: int = 200) -> dict[str, np.ndarray]:
    source = open_source(spec)
    blocks = [source.read(np.arange(start, min(start + step, COUNT))) for start in range(0, COUNT, step)]
    return {name: np.concatenate([block[name] for block in blocks]) for name in BLOCK}


@pytest.fixture
def small_requests(monkeypatch: pytest.MonkeyPatch) -> None:
    """Many of them, of which the last of a file is shorter than the others."""
    monkeypatch.setattr(ranges, "BLOCK", 1_000)
    monkeypatch.setattr(whole, "PART", 1_000)


@pytest.mark.parametrize("spec", ["npy:s3://data/columns", "npz:s3://data/both.npz"])
def test_a_store_that_fails_and_cuts_gives_the_same_rows(proxy: Proxy, small_requests: None, spec: str) -> None:
    def choose(number: int, method: str, path: str) -> Any:
        return 503 if number % 10 == 3 else ("cut", 100) if number % 10 == 6 else None

    proxy.choose = choose
    assert_same(read_all(spec), BLOCK)
    assert len(proxy.requests) > 30


def test_rows_that_lie_together_are_fetched_together_and_once(proxy: Proxy) -> None:
    source = open_source("npy:s3://data/columns/image.npy")
    opened = len(proxy.requests)
    for start in range(0, COUNT, 100):
        source.read(np.arange(start, start + 100))
    assert len(proxy.requests) - opened == 1
    open_source("npy:s3://data/columns/image.npy").read(np.arange(COUNT))
    assert [asked for asked in proxy.gets("image") if asked.endswith("-4095")] == ["bytes=0-4095"] * 2
    assert len(proxy.gets("image")) == 3, "its blocks are in the cache, only the header is read again"


def test_of_data_that_do_not_fit_the_cache_only_what_is_asked_for_is_fetched(
    proxy: Proxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("hostmesh.worker.remote.arrays.fits_cache", lambda files: False)
    monkeypatch.setattr(ranges, "MAX_GAP", 24)
    source = open_source("npy:s3://data/columns/image.npy")
    opened = len(proxy.requests)
    ids = np.array([2_000, 5, 7, 9, 100, 101])
    np.testing.assert_array_equal(source.read(ids), BLOCK["image"][ids])
    sizes = sorted(int(end) - int(start) + 1 for start, end in map(parse_range, proxy.gets("image")[1:]))
    assert sizes == [12, 24, 60] and len(proxy.requests) == opened + 3


def parse_range(text: str) -> list[str]:
    return text.removeprefix("bytes=").split("-")


def test_files_that_do_not_fit_the_cache_are_refused_with_the_setting(
    proxy: Proxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(settings, "SMALLEST", 1)
    monkeypatch.setenv("HOSTMESH_DATA_CACHE_SIZE", "20KB")
    with pytest.raises(DataError, match="s3://data/both.npz: .* do not fit into the cache of 20,000 bytes") as told:
        open_source("npz:s3://data/both.npz")
    assert "set HOSTMESH_DATA_CACHE_SIZE to more" in str(told.value)
    assert not proxy.gets("both"), "nothing is fetched in vain"


def test_a_connection_that_the_store_has_closed_is_opened_again(proxy: Proxy) -> None:
    """It says so to nobody: the next request finds out."""
    proxy.hangs_up = True
    connections = Connections(5.0, 5.0)
    for _ in range(3):
        status, _, _ = connections.get(f"{proxy.address}/data/both.npz", {})
        assert status in (200, 403)
    connections.close()
    assert len(proxy.requests) == 3


def test_a_store_that_never_answers_is_given_up_with_its_last_word(proxy: Proxy) -> None:
    proxy.choose = lambda number, method, path: 503
    with pytest.raises(
        StoreError, match=r"s3://data/both.npz cannot be read: the store at http://.* in 6 tries"
    ) as told:
        open_source("npz:s3://data/both.npz")
    assert "HTTP status 503" in str(told.value) and len(proxy.requests) == 6


def test_a_store_that_is_not_there_is_told(use: Callable[..., None]) -> None:
    use("http://127.0.0.1:1")
    with pytest.raises(StoreError, match="the store at http://127.0.0.1:1 gave no good answer in 6 tries"):
        open_source("npz:s3://data/both.npz")


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ("npy:s3://no-such-bucket/a.npy", "there is no bucket no-such-bucket at http://"),
        ("npy:s3://no-such-bucket/folder", "there is no bucket no-such-bucket at http://"),
        ("npy:s3://data/none.npy", "s3://data/none.npy does not exist"),
        ("npz:s3://data/none.npz", "s3://data/none.npz does not exist"),
        ("npy:s3://data/nothing", "holds no .npy file"),
        ("npy:s3://data/both.npz", "holds no .npy file"),
        ("npz:s3://data/tokens.npy", "s3://data/tokens.npy cannot be read: it is an .npy file: write npy:"),
        ("arrayrecord:s3://data/x-*?fields=a:int8", "no file matches s3://data/x-*"),
        ("arrayrecord:s3://data/none?fields=a:int8", "s3://data/none does not exist"),
        ("arrayrecord:s3://data/tokens.npy?fields=a:int8", "s3://data/tokens.npy cannot be read as ArrayRecord"),
        ("tokens:s3://data/train-0.bin?length=10", "s3://data/train-0.bin holds numbers of a kind"),
        ("tokens:s3://data/train-0.bin,s3://data/x.bin,s3://data/y.bin?length=1&dtype=int8", "do not exist"),
        ("tokens:s3://data/columns/image.npy?length=10", "found uint8 of shape (3000, 4, 3)"),
        ("npy:az://data/a.npy", "az:// is no store that is known; wanted one of s3://, gs://"),
        ("npy:s3://data", "wanted s3://BUCKET/PATH"),
    ],
)
def test_bad_input_is_told_in_one_sentence(s3: str, use: Callable[..., None], spec: str, message: str) -> None:
    use(s3)
    with pytest.raises(DataError) as told:
        open_source(spec)
    assert message in str(told.value) and "\n" not in str(told.value)


@pytest.mark.parametrize(
    "url",
    [
        "s3://me:hidden@data/a.npy",
        "s3%3A//me:hidden%40data/a.npy",
        "https://host/a.npy?X-Amz-Signature=hidden",
        "https://host/a.npy%3Ftoken=hidden",
    ],
)
@pytest.mark.parametrize("spec", ["npy:{}", "mix:npy:{}=1,digits:train=2", "mix:digits:train=2,npy:{}", "mix:{}=x"])
def test_credentials_in_a_url_are_refused_and_not_shown(url: str, spec: str) -> None:
    with pytest.raises(DataError, match="holds credentials") as told:
        open_source(spec.format(url))
    assert "hidden" not in str(told.value)


def test_credentials_in_the_parts_of_a_mixture_are_refused_and_not_shown() -> None:
    parts = {"npy:https://me:hidden@h/a.npy": 1.0, "digits:train": 2.0}
    for make in (lambda: hostmesh.mix(parts), lambda: hostmesh.concatenate(*parts)):
        with pytest.raises(DataError, match="holds credentials") as told:
            make()
        assert "hidden" not in str(told.value)
    with pytest.raises(DataError, match="holds credentials") as told:
        open_source("tfds:mnist/train?data_dir=s3://me:hidden@data/x")
    assert "hidden" not in str(told.value)


@pytest.mark.parametrize("status", [401, 403])
def test_refused_credentials_are_told_at_once(proxy: Proxy, status: int) -> None:
    proxy.choose = lambda number, method, path: status
    with pytest.raises(StoreError, match="refuses access .*AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY") as told:
        open_source("npz:s3://data/both.npz")
    assert len(proxy.requests) == 2 and stores.SECRET not in str(told.value) and stores.KEY_ID not in str(told.value)


def test_missing_credentials_are_told(s3: str, use: Callable[..., None], monkeypatch: pytest.MonkeyPatch) -> None:
    use(s3)
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.delenv(name)
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", "/nowhere")
    with pytest.raises(StoreError, match="this process has no credentials; wanted AWS_ACCESS_KEY_ID"):
        open_source("npz:s3://data/both.npz")


@pytest.mark.parametrize("what", ["deleted", "replaced"])
def test_a_file_that_is_not_what_was_opened_is_told(
    s3: str, use: Callable[..., None], small_requests: None, what: str
) -> None:
    use(s3)
    name = f"{what}.npy"
    put(s3, name, npy(np.arange(1_000)))
    source = open_source(f"npy:s3://data/{name}")
    before = source.read(np.arange(10))
    if what == "deleted":
        stores.delete(s3, name)
    else:
        put(s3, name, npy(np.arange(1_000) + 1))
    np.testing.assert_array_equal(source.read(np.arange(10)), before)  # it is in the cache
    wanted = "does not exist .any more: it was there" if what == "deleted" else "has changed since it was opened"
    with pytest.raises(StoreError, match=wanted):
        source.read(np.arange(990, 1_000))
    if what == "replaced":
        np.testing.assert_array_equal(open_source(f"npy:s3://data/{name}").read(np.arange(10)), before + 1)


def npy(array: Any) -> bytes:
    file = io.BytesIO()
    np.save(file, array)
    return file.getvalue()
