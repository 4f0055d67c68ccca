"""Megabytes a second from a local S3 server: hostmesh beside s3fs and a plain loop of GETs, which take turns.

The server is moto's, a process of its own; each answer waits for some milliseconds first, as a store's does. Two kinds
of reading:

  rows   batches of 256 random rows of 4 KiB out of one .npy file of 16 MiB, one epoch, with nothing in the cache
         before; s3fs reads the rows of a batch at once (`cat_ranges`), the loop one after another (boto3);
         `all at once` is what fits into memory, by one GET
  files  eight files of 16 MiB, brought whole to the disk of this host; s3fs by `get`, the loop file by file

The real measurement, about 10 minutes on an idle machine:
    python benchmarks/loading_remote.py --rounds 5
"""

from __future__ import annotations

import argparse
import io
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np

BUCKET, ROW, ROWS, BATCH = "data", 4096, 4_096, 256
FILES, FILE_SIZE = 8, 16 << 20
SERVER = """
import logging, sys, time
from werkzeug.serving import make_server
from moto.server import DomainDispatcherApplication, create_backend_app
logging.getLogger("werkzeug").setLevel(logging.ERROR)
app = DomainDispatcherApplication(create_backend_app)
def slow(environ, start):
    time.sleep(float(sys.argv[1]))
    return app(environ, start)
server = make_server("127.0.0.1", 0, slow, threaded=True)
print(server.port, flush=True)
server.serve_forever()
"""
Contender = Callable[[Path, int], int]  # reads into a folder, at most so many batches; how many bytes


def client() -> object:
    import boto3

    return boto3.client("s3")


def rows_by_hostmesh(folder: Path, batches: int) -> int:
    from hostmesh.worker.sources import open_source

    os.environ["HOSTMESH_DATA_CACHE"] = str(folder)
    source = open_source(f"npy:s3://{BUCKET}/rows.npy")
    return sum(source.read(ids).nbytes for ids in order(batches))


def rows_by_s3fs(folder: Path, batches: int) -> int:
    import s3fs

    store, path = s3fs.S3FileSystem(skip_instance_cache=True), f"{BUCKET}/rows.npy"
    got = 0
    for ids in order(batches):
        starts = (128 + ids * ROW).tolist()
        got += sum(map(len, store.cat_ranges([path] * len(ids), starts, [start + ROW for start in starts])))
    return got


def rows_by_cat(folder: Path, batches: int) -> int:
    import s3fs

    store = s3fs.S3FileSystem(skip_instance_cache=True)
    array = np.load(io.BytesIO(store.cat_file(f"{BUCKET}/rows.npy")))
    return sum(array[ids].nbytes for ids in order(batches))


def rows_by_gets(folder: Path, batches: int) -> int:
    ask, got = client().get_object, 0  # type: ignore[attr-defined]
    for ids in order(batches):
        for start in (128 + ids * ROW).tolist():
            found = ask(Bucket=BUCKET, Key="rows.npy", Range=f"bytes={start}-{start + ROW - 1}")
            got += len(found["Body"].read())
    return got


def order(batches: int) -> list[np.ndarray]:
    ids = np.random.default_rng(0).permutation(ROWS)
    return [ids[n * BATCH : (n + 1) * BATCH] for n in range(min(batches, ROWS // BATCH))]


def files_by_hostmesh(folder: Path, batches: int) -> int:
    from hostmesh.worker.remote.stores.opening import look_at_all
    from hostmesh.worker.remote.whole import LocalFiles

    os.environ["HOSTMESH_DATA_CACHE"] = str(folder)
    files = LocalFiles(look_at_all([f"s3://{BUCKET}/file-{n}" for n in range(FILES)]))
    got = sum(path.stat().st_size for path in files.paths)
    files.close()
    return got


def files_by_s3fs(folder: Path, batches: int) -> int:
    import s3fs

    store = s3fs.S3FileSystem(skip_instance_cache=True)
    store.get([f"{BUCKET}/file-{n}" for n in range(FILES)], [f"{folder}/{n}" for n in range(FILES)])
    return sum(path.stat().st_size for path in folder.iterdir())


def files_by_gets(folder: Path, batches: int) -> int:
    ask, got = client().get_object, 0  # type: ignore[attr-defined]
    for n in range(FILES):
        data = ask(Bucket=BUCKET, Key=f"file-{n}")["Body"].read()
        (folder / str(n)).write_bytes(data)
        got += len(data)
    return got


KINDS: dict[str, dict[str, Contender]] = {
    "rows": {
        "hostmesh": rows_by_hostmesh,
        "s3fs": rows_by_s3fs,
        "loop of GETs": rows_by_gets,
        "s3fs, all at once": rows_by_cat,
    },
    "files": {"hostmesh": files_by_hostmesh, "s3fs": files_by_s3fs, "loop of GETs": files_by_gets},
}
# A contender that asks for each row is measured on fewer batches: its speed is the same in each.
FEWER = {"s3fs": 1, "loop of GETs": 1}


def compare(kind: str, rounds: int) -> None:
    speeds: dict[str, list[float]] = {name: [] for name in KINDS[kind]}
    costs: dict[str, list[float]] = {name: [] for name in KINDS[kind]}
    for nth in range(rounds + 1):  # the first round imports and connects, and does not count
        for name, read in KINDS[kind].items():
            folder = Path(tempfile.mkdtemp(prefix="hostmesh-benchmark-"))
            began, spent = time.perf_counter(), time.process_time()
            got = read(folder, FEWER.get(name, ROWS))
            took, spent = time.perf_counter() - began, time.process_time() - spent
            shutil.rmtree(folder)
            if nth:
                speeds[name].append(got / took / 1e6)
                costs[name].append(spent / got * 1e9)
                print(f"  {kind} {name}: {got / took / 1e6:.1f} MB/s", flush=True)
    ours = speeds["hostmesh"]
    for name, found in speeds.items():
        ratios = sorted(one / other for one, other in zip(ours, found, strict=True))
        print(
            f"{kind:6} {name:18} {statistics.median(found):8.1f} MB/s  ({min(found):.1f} to {max(found):.1f});"
            f" hostmesh is {statistics.median(ratios):.2f} times as fast ({ratios[0]:.2f} to {ratios[-1]:.2f});"
            f" {statistics.median(costs[name]):.2f} s of a core for a GB"
        )


def fill_bucket() -> None:
    store = client()
    store.create_bucket(Bucket=BUCKET)  # type: ignore[attr-defined]
    file, random = io.BytesIO(), np.random.default_rng(0)
    np.save(file, random.integers(0, 256, (ROWS, ROW), np.uint8))
    store.put_object(Bucket=BUCKET, Key="rows.npy", Body=file.getvalue())  # type: ignore[attr-defined]
    for n in range(FILES):
        store.put_object(Bucket=BUCKET, Key=f"file-{n}", Body=random.bytes(FILE_SIZE))  # type: ignore[attr-defined]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--delay", type=float, default=0.02, help="seconds that each answer waits")
    parser.add_argument("--only", choices=list(KINDS))
    options = parser.parse_args()
    command = [sys.executable, "-c", SERVER, str(options.delay)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as server:
        try:
            assert server.stdout is not None
            os.environ |= {
                "AWS_ENDPOINT_URL": f"http://127.0.0.1:{server.stdout.readline().strip()}",
                "AWS_ACCESS_KEY_ID": "benchmark",
                "AWS_SECRET_ACCESS_KEY": "benchmark",
                "AWS_DEFAULT_REGION": "us-east-1",
            }
            fill_bucket()
            print(f"load {os.getloadavg()[0]:.1f}; each answer waits {options.delay * 1e3:.0f} ms", flush=True)
            for kind in [options.only] if options.only else KINDS:
                compare(kind, options.rounds)
            print(f"load at the end {os.getloadavg()[0]:.1f}")
        finally:
            server.kill()


if __name__ == "__main__":
    main()
