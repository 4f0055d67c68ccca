"""Real sources, and mixtures of them with every tail, read by threads and by data processes in several processes: the
same batches everywhere, each record once, also after a stop on another topology."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest
from array_record.python.array_record_module import ArrayRecordWriter
from conftest import Launch, Script
from test_workers_processes import COMPARE, LOADERS

SOURCES = """
def mixed(stop):
    files = {"a": f"hf:{FILE}/hf", "b": f"arrayrecord:{FILE}/rows.array_record?fields=id:int32"}
    return hostmesh.mix({"a": 2, "b": 1}, sources=files, stop=stop)

CASES = {
    "records": lambda: (f"arrayrecord:{FILE}/rows.array_record?fields=id:int32", {"map": noisy}),
    "hugging face": lambda: (f"hf:{FILE}/hf", {"map": noisy}),
    "pictures": lambda: (f"images:{FILE}/images", {"collate": hostmesh.crop_images(8)}),
    "tokens": lambda: (f"tokens:{FILE}/tokens.bin?dtype=uint16&length=16", {"map": noisy}),
    "a mixture that pads": lambda: (mixed("first"), {"map": noisy, "tail": "pad"}),
    "a mixture that drops": lambda: (mixed("all"), {"map": noisy, "tail": "drop"}),
}
"""


def write_files(folder: Path) -> None:
    from datasets import Dataset, Features, Value
    from PIL import Image

    Dataset.from_dict({"id": list(range(44))}, Features({"id": Value("int32")})).save_to_disk(folder / "hf")
    writer = ArrayRecordWriter(str(folder / "rows.array_record"), "group_size:1")
    for n in range(50):
        writer.write(np.int32(n).tobytes())
    writer.close()
    np.arange(800, dtype=np.uint16).tofile(folder / "tokens.bin")
    random = np.random.default_rng(0)
    for n in range(42):
        path = folder / "images" / f"kind-{n % 2}" / f"{n}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(random.integers(0, 255, (12, 16, 3), np.uint8)).save(path)


@pytest.fixture(scope="module")
def reference(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """Whole batches, as one device of this process gets them from one thread; and the folder they come from."""
    folder = tmp_path_factory.mktemp("sources")
    write_files(folder)
    here: dict[str, Any] = {}
    exec(LOADERS + SOURCES, here)
    here["FILE"] = folder
    mesh = jax.sharding.Mesh(jax.devices()[:1], ("data",))
    whole = {
        f"{case}/{step}/{name}": np.asarray(array)
        for case in here["CASES"]
        for step, batch in enumerate(here["make"](case, mesh, "per_process", "0"))
        for name, array in batch.items()
    }
    np.savez(folder / "batches.npz", **whole)
    return folder / "batches.npz", folder


@pytest.mark.slow
@pytest.mark.parametrize(("before", "after"), [((2, 2), (4, 1)), ((4, 2), (1, 2))])
def test_workers_change_no_row_of_any_source(
    launch: Launch,
    script: Script,
    tmp_path: Path,
    reference: tuple[Path, Path],
    before: tuple[int, int],
    after: tuple[int, int],
) -> None:
    program = script(LOADERS + SOURCES + COMPARE)
    for (processes, devices), stop, begins in ((before, 3, 0), (after, -1, 3)):
        topology = ("--local", str(processes), "--devices", str(devices))
        done = launch(*topology, program, *map(str, reference), str(stop), str(begins), "0,4,processes")
        assert done.returncode == 0 and "all the same" in done.stdout, done.stdout + done.stderr
    for result in tmp_path.glob("runs/*/result.json"):
        audit = json.loads(result.read_text())["audit"]["loaders"]
        assert len(audit) == 3 * 6 and all(each["exact"] for each in audit), audit
