"""Records a second from data to arrays on two devices: the Loader beside Grain, PyTorch, tf.data and Hugging Face.

All contenders of a table stay open and take turns, so that a noisy machine treats them alike; a contender's number is
the median over the rounds of its speed divided by the first one's in the same round. Each shuffles, converts pixels to
float, and ends with arrays on a mesh of two CPU devices; the peers with one `device_put`. Memory that was freed stays
with the process (`hostmesh.keep_freed_memory()`, as in the built-in job), for all contenders alike.

Records that cost work, JPEG files and text to tokenise, are in loading_jpeg.py and loading_text.py.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
os.environ.setdefault("JAX_PLATFORMS", "cpu")
if "HOSTMESH_PROCESS_ID" not in os.environ:
    os.environ["XLA_FLAGS"] = "--xla_force_host_platform_device_count=2"

import numpy as np

LENGTH, BATCH = 60_000, 256
WARM_UP = 40
SETTLING = 0.4  # seconds in which the threads of the contender before fill their buffers and fall silent
Batches = Iterator[Any]


def make_data(length: int = LENGTH) -> dict[str, np.ndarray]:
    random = np.random.default_rng(0)
    images = random.integers(0, 256, (length, 28, 28), np.uint8)
    return {"image": images, "label": random.integers(0, 10, length).astype(np.int32)}


def to_float(row: dict[str, Any]) -> dict[str, Any]:
    return {"image": row["image"].astype(np.float32) / 255.0, "label": row["label"]}


def sharding() -> Any:
    import jax
    from jax.sharding import Mesh, NamedSharding, PartitionSpec

    return NamedSharding(Mesh(np.array(jax.devices()), "data"), PartitionSpec("data"))


def put(batches: Batches) -> Batches:
    import jax

    where = sharding()
    for batch in batches:
        yield jax.device_put(batch, where)


def endless(epoch: Callable[[int], Batches]) -> Batches:
    """Whole batches only, over and over."""
    number = 0
    while True:
        yield from epoch(number)
        number += 1


# In memory.


def numpy_gather(data: dict[str, np.ndarray]) -> Batches:
    """No device, no assembly: the least that must be done."""

    def epoch(number: int) -> Batches:
        order = np.random.default_rng(number).permutation(LENGTH)
        for start in range(0, LENGTH - BATCH + 1, BATCH):
            ids = order[start : start + BATCH]
            yield to_float({name: np.take(array, ids, axis=0) for name, array in data.items()})

    return endless(epoch)


def load(source: Any, **options: Any) -> Batches:
    import hostmesh

    return iter(hostmesh.Loader(source, hostmesh.make_mesh(data=-1), BATCH, map=to_float, **options))


def grain(source: Any, decode: Callable[[Any], Any] | None = None) -> Batches:
    import grain

    records = grain.MapDataset.source(source).seed(0).shuffle().repeat()
    if decode is not None:
        records = records.map(decode)
    read = grain.ReadOptions(num_threads=2, prefetch_buffer_size=4)
    return put(iter(records.map(to_float).batch(BATCH, drop_remainder=True).to_iter_dataset(read)))


class Rows:
    """A random-access source of records, as Grain and PyTorch want it."""

    def __init__(self, data: dict[str, np.ndarray]) -> None:
        self.data = data

    def __len__(self) -> int:
        return len(self.data["label"])

    def __getitem__(self, index: int) -> dict[str, Any]:
        return {name: array[index] for name, array in self.data.items()}


def torch_collate(records: list[Any]) -> Any:
    from torch.utils.data import default_collate

    return {name: np.asarray(values) for name, values in default_collate(records).items()}


def torch_loader(data: dict[str, np.ndarray]) -> Batches:
    """The tutorial's: record by record, a transform on each, then collated."""
    from torch.utils.data import DataLoader, Dataset

    class Transformed(Dataset):  # type: ignore[type-arg, misc]
        def __len__(self) -> int:
            return len(data["label"])

        def __getitem__(self, index: int) -> dict[str, Any]:
            return to_float({name: array[index] for name, array in data.items()})

    loader = DataLoader(Transformed(), BATCH, shuffle=True, drop_last=True, collate_fn=torch_collate)
    return put(endless(lambda _: iter(loader)))


def torch_batches(data: dict[str, np.ndarray]) -> Batches:
    """PyTorch at its fastest: a sampler of whole batches, and tensors indexed by them."""
    import torch
    from torch.utils.data import BatchSampler, DataLoader, Dataset, RandomSampler

    tensors = {name: torch.from_numpy(array) for name, array in data.items()}

    class Whole(Dataset):  # type: ignore[type-arg, misc]
        def __len__(self) -> int:
            return len(data["label"])

        def __getitem__(self, ids: list[int]) -> dict[str, Any]:
            block = {name: tensor[ids] for name, tensor in tensors.items()}
            return {"image": (block["image"].float() / 255.0).numpy(), "label": block["label"].numpy()}

    dataset = Whole()
    sampler = BatchSampler(RandomSampler(dataset), BATCH, drop_last=True)
    loader = DataLoader(dataset, batch_size=None, sampler=sampler, collate_fn=lambda block: block)
    return put(endless(lambda _: iter(loader)))


def tf_data(data: dict[str, np.ndarray]) -> Batches:
    import tensorflow as tf

    def convert(row: dict[str, Any]) -> dict[str, Any]:
        return {"image": tf.cast(row["image"], tf.float32) / 255.0, "label": row["label"]}

    rows = tf.data.Dataset.from_tensor_slices(data).shuffle(LENGTH, seed=0).repeat().batch(BATCH, drop_remainder=True)
    return put(iter(rows.map(convert, num_parallel_calls=tf.data.AUTOTUNE).prefetch(2).as_numpy_iterator()))


def hugging_face(dataset: Any) -> Batches:
    rows = dataset.with_format("numpy")
    epochs = endless(lambda number: rows.shuffle(seed=number).iter(BATCH, drop_last_batch=True))
    return put(map(to_float, epochs))


# In files.


def write_array_record(path: Path, data: dict[str, np.ndarray]) -> None:
    from array_record.python.array_record_module import ArrayRecordWriter

    writer = ArrayRecordWriter(str(path), "group_size:1")
    for image, label in zip(data["image"], data["label"], strict=True):
        writer.write(image.tobytes() + label.tobytes())
    writer.close()


def decode_record(record: bytes) -> dict[str, Any]:
    image = np.frombuffer(record, np.uint8, 784).reshape(28, 28)
    return {"image": image, "label": np.frombuffer(record, np.int32, 1, 784)[0]}


def prepare_tfds(folder: Path, data: dict[str, np.ndarray]) -> None:
    import tensorflow_datasets as tfds

    images = tfds.features.Tensor(shape=(28, 28), dtype=np.uint8)
    features = tfds.features.FeaturesDict({"image": images, "label": tfds.features.Scalar(np.int32)})
    pairs = zip(data["image"], data["label"], strict=True)
    rows = list(enumerate({"image": image, "label": label} for image, label in pairs))
    tfds.disable_progress_bar()
    tfds.dataset_builders.store_as_tfds_dataset(
        name="rows", version="1.0.0", features=features, split_datasets={"train": rows}, data_dir=folder,
        file_format="array_record", disable_shuffling=True,
    )  # fmt: skip


def tfds_blocks(source: Any) -> Batches:
    """TFDS alone: its data source asked for a batch of records at a time, and no other library."""

    def epoch(number: int) -> Batches:
        order = np.random.default_rng(number).permutation(len(source))
        for start in range(0, len(source) - BATCH + 1, BATCH):
            records = source.__getitems__(order[start : start + BATCH].tolist())
            yield to_float({name: np.stack([record[name] for record in records]) for name in records[0]})

    return put(endless(epoch))


def save_hugging_face(folder: Path, data: dict[str, np.ndarray]) -> None:
    from datasets import Array2D, Dataset, Features, Value, disable_progress_bars

    disable_progress_bars()
    features = Features({"image": Array2D((28, 28), "uint8"), "label": Value("int32")})
    Dataset.from_dict(data, features=features).save_to_disk(folder)


# Measuring.


def speed(
    batches: Batches, seconds: float, batch: int = BATCH, warm_up: int = WARM_UP, settling: float = SETTLING
) -> float:
    """Records a second; what was made before the turn is taken first."""
    import jax

    time.sleep(settling)
    for _ in range(warm_up):
        last = next(batches)
    count, began = 0, time.perf_counter()
    while time.perf_counter() - began < seconds:
        last = next(batches)
        count += 1
    jax.block_until_ready(last)
    return count * batch / (time.perf_counter() - began)


def compare(
    title: str, contenders: dict[str, Batches], rounds: int, seconds: float, unit: int = 1000, **turn: Any
) -> dict[str, list[float]]:
    """`turn` are the other arguments of `speed`; the table counts in so many records, a thousand or one."""
    found: dict[str, list[float]] = {name: [] for name in contenders}
    for _ in range(rounds):
        for name, batches in contenders.items():
            found[name].append(speed(batches, seconds, **turn))
    first, counted = next(iter(found)), "thousand records/s" if unit == 1000 else "records/s"
    print(f"{title}: {counted} and ratio to {first} (median, least to most), {rounds} rounds")
    for name, speeds in found.items():
        ratios = [mine / base for mine, base in zip(speeds, found[first], strict=True)]
        spread = f"{statistics.median(ratios):5.2f}   {min(ratios):.2f} to {max(ratios):.2f}"
        print(f"  {name:<28} {statistics.median(speeds) / unit:8.1f}   {spread}", flush=True)
    return found


def compare_in_memory(rounds: int, seconds: float) -> Any:
    from datasets import Array2D, Dataset, Features, Value

    data = make_data()
    features = Features({"image": Array2D((28, 28), "uint8"), "label": Value("int32")})
    contenders = {
        "hostmesh": load(data),
        "NumPy gather, no device": numpy_gather(data),
        "hostmesh, nothing ahead": load(data, prefetch=0, device_prefetch=0),
        "PyTorch, batch sampler": torch_batches(data),
        "PyTorch DataLoader": torch_loader(data),
        "tf.data": tf_data(data),
        "Hugging Face": hugging_face(Dataset.from_dict(data, features=features)),
        "Grain": grain(Rows(data)),
    }
    return compare("In memory", contenders, rounds, seconds)


def compare_files(folder: Path, rounds: int, seconds: float) -> Any:
    import tensorflow_datasets as tfds
    from datasets import load_from_disk
    from grain.sources import ArrayRecordDataSource

    data = make_data()
    record = folder / "rows.array_record"
    write_array_record(record, data)
    prepare_tfds(folder / "tfds", data)
    save_hugging_face(folder / "hf", data)
    tables = {
        "ArrayRecord": {
            "hostmesh": load(f"arrayrecord:{record}?fields=image:uint8:28x28,label:int32"),
            "Grain": grain(ArrayRecordDataSource(str(record)), decode_record),
        },
        "TFDS": {
            "hostmesh": load(f"tfds:rows/train?data_dir={folder / 'tfds'}"),
            "Grain on tfds.data_source": grain(tfds.data_source("rows", split="train", data_dir=folder / "tfds")),
            "tfds.data_source": tfds_blocks(tfds.data_source("rows", split="train", data_dir=folder / "tfds")),
        },
        "Hugging Face": {
            "hostmesh": load(f"hf:{folder / 'hf'}"),
            "datasets": hugging_face(load_from_disk(folder / "hf")),
        },
        "PyTorch map-style": {"hostmesh": load(torch_rows(data)), "DataLoader": torch_loader(data)},
    }
    return {title: compare(title, contenders, rounds, seconds) for title, contenders in tables.items()}


def torch_rows(data: dict[str, np.ndarray]) -> Any:
    from torch.utils.data import Dataset

    class MapStyle(Rows, Dataset):  # type: ignore[type-arg, misc]
        pass

    return MapStyle(data)


# Inside a run of launch.


def run_inside(loadings: list[str], rounds: int, seconds: float) -> None:
    """Every process prints nothing but the first, which prints the global speed of each strategy."""
    import jax

    import hostmesh

    hostmesh.join()
    data = make_data()
    loaders = {name: load(data, loading=name, steps=1_000_000) for name in loadings}
    found: dict[str, list[float]] = {name: [] for name in loadings}
    for _ in range(rounds):
        for name, batches in loaders.items():
            found[name].append(steps_speed(batches, seconds))
    if jax.process_index() == 0:
        print(json.dumps(found), flush=True)


def steps_speed(batches: Batches, seconds: float) -> float:
    """Of so many steps that all processes do them: how many is settled by the first."""
    import jax

    from hostmesh.worker.process.coordination import exchange

    for _ in range(WARM_UP):
        last = next(batches)
    began = time.perf_counter()
    for _ in range(20):
        last = next(batches)
    jax.block_until_ready(last)
    pace = exchange("settle the number of steps", (time.perf_counter() - began) / 20)
    steps = max(20, int(seconds / max(pace)))
    began = time.perf_counter()
    for _ in range(steps):
        last = next(batches)
    jax.block_until_ready(last)
    return steps * BATCH / (time.perf_counter() - began)


def compare_processes(rounds: int, seconds: float) -> dict[str, Any]:
    loadings = ["per_process", "per_device", "global", "reshard"]
    everything: dict[str, Any] = {}
    for processes in (1, 2, 4):
        launch = [str(Path(sys.executable).parent / "launch"), "--local", str(processes), "--devices", "2"]
        with tempfile.TemporaryDirectory() as runs:
            inside = [__file__, "--inside", *loadings, "--rounds", str(rounds), "--seconds", str(seconds)]
            done = subprocess.run([*launch, "--runs", runs, *inside], capture_output=True, text=True, timeout=900)
        lines = [line.partition("] ")[2] for line in done.stdout.splitlines() if line.startswith("[0 ")]
        if done.returncode:
            raise SystemExit(done.stdout + done.stderr)
        found = everything[str(processes)] = json.loads(lines[-1])
        medians = {name: statistics.median(speeds) for name, speeds in found.items()}
        shown = ", ".join(f"{name} {value / 1000:.0f}" for name, value in medians.items())
        print(f"{processes} processes × 2 devices, thousand records/s of global batches: {shown}", flush=True)
    return everything


# Memory and waiting, each in a process of its own.


def resident() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGESIZE")


def measure_memory() -> None:
    """How far a process grows while it loads large batches: two are read ahead, one is placed ahead, one is in use."""
    import jax

    import hostmesh

    rows = np.zeros((4096, 4096), np.float32)
    loader = hostmesh.Loader(rows, hostmesh.make_mesh(data=-1), 2048, prefetch=2, device_prefetch=1)
    before, size, found, over = resident(), 2048 * 4096 * 4, [0], threading.Event()

    def watch() -> None:
        while not over.wait(0.002):
            found.append(resident())

    watcher = threading.Thread(target=watch)
    watcher.start()
    for batch in loader:
        jax.block_until_ready(batch)
        time.sleep(0.05)  # a step, in which the thread reads ahead
        if loader.step == 60:
            break
    over.set()
    watcher.join()
    usual, most = ((amount - before) / size for amount in (statistics.median(found), max(found)))
    print(f"memory above the source, in batches of {size >> 20} MiB: {usual:.2f} as a rule, {most:.2f} at most")


class SlowRows(Rows):
    """A few milliseconds a batch, as decoding would take."""

    def __getitem__(self, index: int) -> dict[str, Any]:
        row = super().__getitem__(index)
        np.sort(row["image"], axis=None)
        return row


def measure_waiting(steps: int) -> None:
    """The share of time in which a step twice as long as loading a batch had to wait for it."""
    import hostmesh

    large = np.random.default_rng(0).integers(0, 256, (2000, 96, 96, 3), np.uint8)
    sources = {
        "256 rows of 784 bytes": make_data(),
        "256 images of 96 × 96 × 3": {"image": large, "label": np.arange(2000)},
        "256 records, one by one": SlowRows(make_data()),
    }
    for name, source in sources.items():

        def make(source: Any = source, **options: Any) -> Any:
            return hostmesh.Loader(source, hostmesh.make_mesh(data=-1), BATCH, map=to_float, **options)

        print_waiting(name, make, steps)


def print_waiting(name: str, make: Callable[..., Any], steps: int, trial: int = 50, warm_up: int = WARM_UP) -> None:
    """`make` makes a loader; how long it takes for a batch is tried first, with nothing read ahead."""
    loader = make(prefetch=0, device_prefetch=0)
    took = statistics.median(wait_for(loader, trial, pause=0.0))
    loader.close()
    loader = make()
    wait_for(loader, warm_up, 2 * took)
    began = time.perf_counter()
    waited = sum(wait_for(loader, steps, 2 * took))
    share = waited / (time.perf_counter() - began)
    loader.close()
    print(f"waiting for input, {name}: {share:.2%} of the time, steps of {2000 * took:.2f} ms", flush=True)


def wait_for(loader: Any, steps: int, pause: float) -> list[float]:
    """How long each batch was waited for; in the pause the device works, and the host does not."""
    waits = []
    for _ in range(steps):
        before = loader.waited
        next(loader)
        waits.append(loader.waited - before)
        time.sleep(pause)
    return waits


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--seconds", type=float, default=0.7, help="of each turn")
    parser.add_argument("--only", choices=["memory", "waiting", "in-memory", "files", "processes"], nargs="*")
    parser.add_argument("--inside", nargs="*", help=argparse.SUPPRESS)
    parser.add_argument("--json", type=Path, help="also write all speeds to this file")
    options = parser.parse_args()
    import hostmesh

    hostmesh.keep_freed_memory()
    if options.inside:
        return run_inside(options.inside, options.rounds, options.seconds)
    wanted = options.only or ["memory", "waiting", "in-memory", "files", "processes"]
    everything: dict[str, Any] = {}
    if "memory" in wanted:
        measure_memory()
    if "waiting" in wanted:
        measure_waiting(200)
    if "in-memory" in wanted:
        everything["in memory"] = compare_in_memory(options.rounds, options.seconds)
    if "files" in wanted:
        with tempfile.TemporaryDirectory() as folder:
            everything["files"] = compare_files(Path(folder), options.rounds, options.seconds)
    if "processes" in wanted:
        everything["processes"] = compare_processes(options.rounds, options.seconds)
    if options.json:
        options.json.write_text(json.dumps(everything, indent=1))


if __name__ == "__main__":
    main()
