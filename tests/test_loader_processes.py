"""Loaders of several processes: what differs or breaks in one is told, and nobody waits; streams end together."""

from __future__ import annotations

import pytest
from conftest import Launch, Script

# argv names the cases, after what to do with processes that differ; process 1 is the odd one.
CASES = """
import sys
import jax
import numpy as np
import hostmesh
from hostmesh.worker.errors import DisagreementError

hostmesh.join()
me = jax.process_index()
odd = me == 1

class Failing:
    name = "failing"
    def __len__(self):
        return 40
    def read(self, ids):
        if odd and 17 in ids:
            raise OSError("bad sector")
        return {"id": ids}
    def records(self, ids):
        return [{"id": np.int64(record)} for record in ids]

def make_loader(case):
    mesh = hostmesh.make_mesh(data=-1)
    options = {"batch_size": 8, "steps": 5}
    source = {"id": np.arange(40)}
    if case == "length":
        source = {"id": np.arange(41 if odd else 40)}
    elif case == "dtype":
        source = {"id": np.arange(40, dtype=np.float32 if odd else np.int64)}
    elif case == "content":
        source = {"id": np.arange(40)[:: -1 if odd else 1]}
    elif case == "batch size":
        options["batch_size"] = 16 if odd else 8
    elif case == "mesh":
        mesh = jax.sharding.Mesh(jax.devices()[:: -1 if odd else 1], "data")
    elif case == "mapped dtype":
        options["map"] = lambda block: {"id": block["id"].astype(np.float32 if odd else np.int32)}
    elif case == "mapped shape":
        options["map"] = lambda block: {"id": np.stack([block["id"]] * (2 if odd else 3), axis=1)}
    elif case == "record":
        source = Failing()
    elif case == "file":
        source = "npz:nowhere.npz" if odd else source
    elif case == "no device":
        mesh = jax.sharding.Mesh(jax.devices()[:1], "data")
    elif case == "unseeded":
        random = np.random.default_rng(me)
        source = hostmesh.Stream(lambda shard, shards: ({"id": n} for n in random.permutation(40)), name="shuffled")
    elif case == "map":
        def prepare(block):
            return {"id": block["caption" if odd else "id"]}
        options["map"] = prepare
    elif case == "stream record":
        def records(shard, shards):
            for n in range(40):
                if odd and n == 30:
                    raise OSError("bad sector")
                yield {"id": n}
        source = hostmesh.Stream(records, name="numbers")
    return hostmesh.Loader(source, mesh, **options)

for case in sys.argv[2:]:
    total = 0
    try:
        for batch in make_loader(case):
            total += int(batch["id"].sum())
    except DisagreementError as error:
        if sys.argv[1] != "catch":
            raise
        print(case, "raised", error)
    else:
        print(case, "total", total)
"""


DIFFERENCES = {
    "length": ["records: process 0 has 40, process 1 has 41"],
    "dtype": ['rows: process 0 has "id: int64", process 1 has "id: float32"'],
    "content": ["content: process 0 has"],
    "batch size": ["batch_size: process 0 has 8, process 1 has 16"],
    "mesh": ["sharding: process 0 has [\"P('data',) over data=2, devices "],
    "mapped dtype": ['id: process 0 has "int32[]", process 1 has "float32[]"'],
    "mapped shape": ['id: process 0 has "int32[3]", process 1 has "int32[2]"'],
    "unseeded": [
        "shuffled: process 0 and process 1 read different records in shard 0",
        "give every shuffle a seed",
        "sharded=True",
    ],
}


def test_what_differs_is_told_by_every_process_before_they_meet(launch: Launch, script: Script) -> None:
    done = launch("--local", "2", script(CASES), "catch", *DIFFERENCES)
    assert done.returncode == 0, done.stdout + done.stderr
    for case, messages in DIFFERENCES.items():
        lines = [line for line in done.stdout.splitlines() if f"] {case} " in line]
        assert sorted(line[:3] for line in lines) == ["[0 ", "[1 "], done.stdout
        assert all(f"] {case} raised" in line and message in line for line in lines for message in messages), lines


@pytest.mark.parametrize(
    ("case", "message"),
    [
        ("record", "record 17 of failing at script.py:{raising} in read: OSError: bad sector"),
        ("map", "step 0: map at script.py:{mapping} in prepare: KeyError: 'caption'"),
        ("file", "nowhere.npz"),
        ("no device", "process 1 has no device in the mesh"),
        ("stream record", "step 3: numbers at script.py:{streaming} in records: OSError: bad sector"),
    ],
)
@pytest.mark.quick("record", "no device")
def test_what_breaks_in_one_process_ends_the_run_and_names_it(
    launch: Launch, script: Script, case: str, message: str
) -> None:
    done = launch("--local", "2", script(CASES), "raise", case)
    assert done.returncode == 1
    assert "the run failed: process 1 on localhost exited with 1" in done.stderr
    raising, streaming = (n for n, line in enumerate(CASES.splitlines(), 1) if "raise OSError" in line)
    mapping = next(n for n, line in enumerate(CASES.splitlines(), 1) if '"caption"' in line)
    assert message.format(raising=raising, mapping=mapping, streaming=streaming) in done.stderr


STREAM = """
import sys
import jax
import numpy as np
import hostmesh

hostmesh.join()
def read(tail, *lengths):
    def shard(number, shards):
        assert shards == len(lengths)
        return ({"id": 1000 * number + n} for n in range(lengths[number]))
    stream = hostmesh.Stream(shard, shards=len(lengths), name="uneven")
    loader = hostmesh.Loader(stream, hostmesh.make_mesh(data=-1), 16, epochs=1, tail=tail)
    steps, rows = 0, []
    for batch in loader:
        steps += 1
        for nth, part in enumerate(batch["id"].addressable_shards):
            real = np.asarray(batch["mask"].addressable_shards[nth].data) if tail == "pad" else slice(None)
            rows += np.asarray(part.data)[real].tolist()
    print(tail, "steps", steps, "rows", len(rows), "distinct", len(set(rows)))
    assert [sum(1 for _ in loader), sum(1 for _ in loader), loader.step] == [steps] * 3  # it begins again, everywhere
    counted = hostmesh.Loader({"id": np.arange(100)}, hostmesh.make_mesh(data=-1), 16, epochs=1, tail=tail)
    assert [sum(1 for _ in counted), sum(1 for _ in counted), counted.step] == [7 if tail == "pad" else 6] * 3
    again = hostmesh.Loader(stream, hostmesh.make_mesh(data=-1), 16, epochs=1, tail=tail)
    again.restore(2)
    batch = next(again)
    print(tail, lengths, "restored", [int(part.data[0]) for part in batch["id"].addressable_shards])

for words in sys.argv[1:]:
    tail, lengths = words.split()
    read(tail, *map(int, lengths.split(",")))
"""


@pytest.mark.parametrize("processes", [1, 2, 4])
@pytest.mark.quick("2")
def test_streams_end_together_and_go_on_where_they_were(launch: Launch, script: Script, processes: int) -> None:
    """One that ends early somewhere ends everywhere at that step; one that is padded gives all of every shard."""
    streams = ("carry 40,40,19,40", "pad 40,40,19,40", "carry 40,40,40,40")
    done = launch("--local", str(processes), script(STREAM), *streams)
    assert done.returncode == 0, done.stdout + done.stderr
    lines = [line.split("] ", 1)[1] for line in done.stdout.splitlines()]
    assert lines.count(f"carry steps 4 rows {64 // processes} distinct {64 // processes}") == processes

    padded = [line.split() for line in lines if line.startswith("pad steps")]
    assert len(padded) == processes and {words[2] for words in padded} == {"10"}
    assert sum(int(words[4]) for words in padded) == sum(int(words[6]) for words in padded) == 139

    restored = sorted(line for line in lines if line.startswith("carry (40, 40, 40, 40) restored"))
    firsts = {1: [8], 2: [8, 2008], 4: [8, 1008, 2008, 3008]}[processes]
    assert restored == sorted(f"carry (40, 40, 40, 40) restored [{first}]" for first in firsts)
