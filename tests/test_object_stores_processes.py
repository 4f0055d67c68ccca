"""Several processes that read from one store: each file once a host, nothing of credentials, one clear error."""

from __future__ import annotations

import io
import shutil
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import object_stores as stores
import pytest
from conftest import Launch, Script, Start
from object_stores import KEY_ID, SECRET, Proxy, put, s3_env

pytest.importorskip("s3fs", reason="hostmesh[object-stores]")
pytest.importorskip("moto", reason="hostmesh[test]")

pytestmark = pytest.mark.xdist_group("object stores")

COUNT = 4_000
IMAGES = np.random.default_rng(0).integers(0, 256, (COUNT, 75, 80)).astype(np.uint8)
LABELS = (np.arange(COUNT) % 10).astype(np.int32)


@pytest.fixture(scope="module")
def s3(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with stores.serve(stores.S3_SERVER, tmp_path_factory.mktemp("s3") / "log") as address:
        stores.make_bucket(address)
        for name, array in (("rows/image.npy", IMAGES), ("rows/label.npy", LABELS)):
            put(address, name, npy(array))
        file = io.BytesIO()
        np.savez(file, image=IMAGES[:500, :8, :8], label=LABELS[:500])
        put(address, "small.npz", file.getvalue())
        yield address


@pytest.fixture
def proxy(s3: str) -> Iterator[Proxy]:
    between = Proxy(s3)
    yield between
    between.close()


def npy(array: np.ndarray) -> bytes:
    file = io.BytesIO()
    np.save(file, array)
    return file.getvalue()


# Prints a checksum of all batches, what was waited for, and whether data processes read.
READ = """
import sys
import zlib
import jax
import numpy as np
import hostmesh

hostmesh.join()
spec, processes = sys.argv[1], int(sys.argv[2])
crc = 0
loader = hostmesh.Loader(spec, hostmesh.make_mesh(data=-1), 400, epochs=1, tail="drop", processes=processes)
for batch in loader:
    for part in (batch["image"], batch["label"]):
        crc = zlib.crc32(np.asarray(part.addressable_shards[0].data).tobytes(), crc)
print("crc", crc, "steps", loader.step)
print("waited for reading", loader.waited_for["reading"])
"""


def crcs(output: str) -> list[str]:
    return sorted(line.partition("crc ")[2] for line in output.splitlines() if "crc " in line)


def assert_secrets_are_nowhere(folder: Path, output: str) -> None:
    assert SECRET not in output and KEY_ID not in output
    for path in folder.rglob("*"):
        if path.is_file():
            data = path.read_bytes()
            assert SECRET.encode() not in data and KEY_ID.encode() not in data, path


def test_a_slow_store_that_fails_gives_what_local_files_give(
    launch: Launch, script: Script, proxy: Proxy, tmp_path: Path
) -> None:
    """Every tenth request fails, each takes 200 ms: the same batches, and the wait is told as one for reading."""
    name = script(READ)
    np.savez(tmp_path / "rows.npz", image=IMAGES, label=LABELS)
    local = launch("--local", "2", name, f"npz:{tmp_path}/rows.npz", "0")
    assert local.returncode == 0, local.stderr
    proxy.delay, proxy.choose = 0.2, lambda number, method, path: 503 if number % 10 == 9 else None
    remote = launch("--local", "2", name, "npy:s3://data/rows", "0", env=s3_env(proxy.address, tmp_path / "cache"))
    assert remote.returncode == 0, remote.stdout + remote.stderr
    assert crcs(remote.stdout) == crcs(local.stdout) and len(crcs(local.stdout)) == 2
    waits = [float(line.rpartition(" ")[2]) for line in remote.stdout.splitlines() if "waited for reading" in line]
    assert len(waits) == 2 and max(waits) > 0.15
    blocks = [asked for asked in proxy.gets("image") if asked != "bytes=0-4095"]
    failed = len(proxy.requests) // 10
    assert 6 == len(set(blocks)) <= len(blocks) <= 6 + failed, "each process fetched what both read"
    assert_secrets_are_nowhere(tmp_path / "runs", remote.stdout + remote.stderr)


def test_data_processes_read_from_the_store(launch: Launch, script: Script, s3: str, tmp_path: Path) -> None:
    name = script(READ)
    env = s3_env(s3, tmp_path / "cache")
    plain = launch("--local", "1", name, "npy:s3://data/rows", "0", env=env)
    shutil.rmtree(tmp_path / "cache")
    several = launch("--local", "1", name, "npy:s3://data/rows", "2", env=env)
    assert several.returncode == 0, several.stdout + several.stderr
    assert crcs(several.stdout) == crcs(plain.stdout) and len(crcs(plain.stdout)) == 1


@pytest.mark.slow
def test_the_built_in_job_trains_from_a_store(launch: Launch, s3: str, tmp_path: Path) -> None:
    args = ("--source", "npz:s3://data/small.npz", "--eval-source", "npz:s3://data/small.npz", "--steps", "5")
    done = launch("--local", "2", *args, env=s3_env(s3, tmp_path / "cache"))
    assert done.returncode == 0, done.stdout + done.stderr
    assert_secrets_are_nowhere(tmp_path / "runs", done.stdout + done.stderr)


GONE = """
import sys
import hostmesh

hostmesh.join()
ahead = {"prefetch": 0, "device_prefetch": 0}
loader = hostmesh.Loader("npy:s3://data/gone", hostmesh.make_mesh(data=-1), 2, steps=1000, **ahead)
for batch in loader:
    print("step", loader.step, flush=True)
    if loader.step == 2:
        hostmesh.report(loader.step, ready=1)
        sys.stdin.read()
"""


def test_a_file_that_vanishes_between_two_steps_ends_the_run_in_one_sentence(
    start: Start, script: Script, s3: str, tmp_path: Path
) -> None:
    """Of its ten blocks four are fetched when the loader looks at the records, and up to four in the first steps."""
    text = GONE.replace(
        "sys.stdin.read()",
        f"import os, time\n        while os.path.exists({str(tmp_path / 'there')!r}): time.sleep(0.01)",
    )
    large = np.zeros((160_000, 256), np.uint8)
    put(s3, "gone/image.npy", npy(large))
    (tmp_path / "there").touch()
    run = start("--local", "2", script(text), env=s3_env(s3, tmp_path / "cache"))
    run.await_event("metrics")
    stores.delete(s3, "gone/image.npy")
    (tmp_path / "there").unlink()
    assert run.wait() == 1
    assert "s3://data/gone/image.npy does not exist (any more: it was there when it was opened)" in run.stderr
    assert "botocore" not in run.stderr and "Traceback" not in run.stderr
    assert_secrets_are_nowhere(run.run_folder, run.stderr)


@pytest.mark.slow
def test_wrong_credentials_end_the_run_in_one_sentence(
    launch: Launch, script: Script, tmp_path: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """A server that checks them."""
    with stores.serve(stores.S3_SERVER, tmp_path_factory.mktemp("strict") / "log") as address:
        stores.make_bucket(address)
        put(address, "rows.npz", b"")
        stores.ask("POST", f"{address}/moto-api/reset-auth", b"0")
        env = s3_env(address, tmp_path / "cache")
        done = launch("--local", "2", script(READ), "npz:s3://data/rows.npz", "0", env=env)
    assert done.returncode == 1
    assert "s3://data/rows.npz cannot be read: the store at" in done.stderr
    assert "refuses access (InvalidAccessKeyId): check the credentials of this process" in done.stderr
    assert "botocore" not in done.stderr and "Traceback" not in done.stderr
    assert_secrets_are_nowhere(tmp_path / "runs", done.stdout + done.stderr)
