"""Real processes that hold other rows than they should: each fault is told, by process, step and rows; a run that is
well is told nothing."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

import pytest
from conftest import Launch, Script

# argv: the fault, the mesh, the loading strategy, what the rows come from, and more options. Process 1 is the odd one.
JOB = """
import sys, time
import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec as P
import hostmesh
from hostmesh.worker.loading import tampering

fault, topology, loading, kind, *more = sys.argv[1:]
hostmesh.join()
me, processes = jax.process_index(), jax.process_count()
odd = me == 1
devices = np.array(jax.devices())
spec = P("data")
if topology == "replicated":  # all processes hold all rows
    mesh, spec = Mesh(devices, "data"), P()
elif topology == "pairs":  # two processes each hold the same rows
    mesh = Mesh(devices.reshape(-1, 2), ("data", "model"))
elif topology == "columns":  # process 0 and 2 hold the same columns of all rows
    mesh, spec = Mesh(devices.reshape(-1, 2), ("data", "model")), P(None, "model")
elif topology == "apart":  # nobody holds what another does
    mesh = Mesh(devices, "data")

STEPS, RECORDS, BATCH, FROM = 40, 400, 32, 6
data = np.arange(RECORDS * 8, dtype=np.float32).reshape(RECORDS, 8)
options = {"steps": STEPS, "verify": "unverified" not in more}
if fault == "seed":
    options["seed"] = 1 if odd else 0
batch_size = 64 if fault == "batch" and odd else BATCH
if fault == "data" and odd:
    data[17] += 1
if fault == "map":
    own = np.random.default_rng(me)
    options["map"] = lambda block: {"x": block["x"] + own.random(block["x"].shape, np.float32)}
if fault == "order" and odd:
    options["shuffle"] = False

def swap(step, arrays):
    if odd and step >= FROM:
        for arrays_of_set in arrays:
            rows = arrays_of_set[0]
            rows[[2, 5]] = rows[[5, 2]]

def flip(step, arrays):
    if odd and step == FROM:
        arrays[0][-1][3].view(np.uint8)[3] ^= 1

if fault in ("swap", "flip"):
    tampering.change_rows = {"swap": swap, "flip": flip}[fault]
if "lengths" in more:
    class Texts:
        name = "texts"
        def __len__(self):
            return RECORDS
        def __getitem__(self, number):
            return {"x": np.arange(number, number + 1 + number % 8, dtype=np.float32)}
    source = Texts()
    options["lengths"] = [4, 8]
    options["map"] = None
elif kind == "mixture":
    source = hostmesh.mix({"a": 2, "b": 1}, sources={"a": {"x": data}, "b": {"x": -data}})
elif kind == "stream":
    source = hostmesh.Stream(lambda shard, shards: ({"x": row} for row in data[shard::shards]), shards=4, name="lines")
else:
    source = {"x": data}
for word in more:
    if "=" in word:
        name, value = word.split("=")
        options[name] = int(value)

total = jax.jit(lambda x: x.sum())
if kind == "own":
    sharding = NamedSharding(mesh, spec)
    order = np.random.default_rng(1 if fault == "seed" and odd else 0)
    for step in range(STEPS):
        rows = data[order.permutation(RECORDS)[:BATCH]].copy()
        if fault == "map":
            rows += own.random(rows.shape, np.float32)
        tampering.change_rows and tampering.change_rows(step, [[rows]])
        rows = rows[:24] if fault == "batch" and odd else rows
        array = jax.make_array_from_callback(rows.shape, sharding, lambda index: rows[index])
        hostmesh.check({"x": array}, "images")
        if fault != "batch":
            jax.block_until_ready(total(array))
        time.sleep(0.05)
        if fault == "ends" and odd and step == 12:
            break
else:
    loader = hostmesh.Loader(source, mesh, batch_size, spec=spec, loading=loading, **options)
    for batch in loader:
        jax.block_until_ready(total(batch["x"]))
        time.sleep(0.05)
        if fault == "ends" and odd and loader.step == 12:
            break
print("done")
"""


@dataclass(frozen=True)
class Case:
    """`wanted` is what the message says; `first` whether the case is quick."""

    name: str
    words: str
    wanted: str
    processes: int = 2
    how: tuple[str, ...] = ("--guard", "every")


GAVE = "process 1 on localhost gave other rows than process"
BOTH = r"processes 0 and 1 gave different rows, which should be the same, in step 0 of"
CASES = [
    # Processes that hold the same rows, and fault after fault.
    Case("swap", "swap replicated per_process arrays", GAVE + r" 0 in step 6 of arrays: x, rows 2 to 5 \(records \d+"),
    Case("swap sampled", "swap pairs per_process arrays", GAVE + r" 0 in step 6 of arrays: x, rows 0 to 15", 4, ()),
    Case("flip", "flip pairs per_process arrays", GAVE + r" 0 in step 6 of arrays: x, row 3 \(record \d+\)", 4),
    Case("map", "map replicated per_process arrays", BOTH + r" arrays: x, rows 0 to 31"),
    Case("four maps", "map replicated per_process arrays", r"processes 0, 1, 2 and 3 gave different rows", 4),
    Case("ends", "ends apart per_process arrays", "process 1 on localhost has left after 12 batches of arrays"),
    Case(
        "data",
        "data pairs per_process arrays unverified",
        r"process 1 on localhost gave other rows than process 0 in step \d+ of arrays: x, row \d+ \(record 17\)",
        4,
    ),
    # What the loader itself refuses when it is made.
    Case("seed", "seed replicated per_process arrays", "seed: process 0 has 0, process 1 has 1"),
    Case("batch", "batch replicated per_process arrays", "batch_size: process 0 has 32, process 1 has 64"),
    Case("verified data", "data replicated per_process arrays", "process 1"),
    Case("order", "order replicated per_process arrays", "shuffle: process 0 has "),
    # Other meshes, strategies and sources.
    Case("columns", "swap columns per_process arrays", GAVE + " 3 in step 6 of arrays: x, rows 2 to 5", 4),
    Case("four", "flip replicated per_process arrays", GAVE + "es 0, 2 and 3 in step 6 of arrays: x, row 3", 4),
    Case("per_device", "flip pairs per_device arrays", GAVE + " 0 in step 6 of arrays: x, row 3", 4),
    Case("global", "flip replicated global arrays", GAVE + " 0 in step 6 of arrays: x, row 3"),
    Case("mixture", "swap replicated per_process mixture", GAVE + " 0 in step 6 of .*: x, rows 2 to 5"),
    Case("stream", "swap pairs per_process stream", r"processes 0 and 1 gave different rows.* in step 6 of lines", 4),
    Case("threads", "flip replicated per_process arrays workers=2", GAVE + " 0 in step 6 of arrays: x, row 3"),
    Case("processes", "flip replicated per_process arrays processes=2", GAVE + " 0 in step 6 of arrays: x, row 3"),
    Case("lengths", "flip replicated per_process arrays lengths", GAVE + " 0 in step 6 of Texts: x, row 3"),
    Case("no read-ahead", "flip replicated per_process arrays prefetch=0 device_prefetch=0", GAVE + " 0 in step 6"),
    # Arrays that the script has made itself.
    Case("own swap", "swap replicated - own", GAVE + "es 0, 2 and 3 in call 6 of images: x, rows 2 to 5", 4),
    Case("own flip", "flip pairs - own", r"processes 0 and 1 gave different rows.* in call 6 of images: x, row 3", 4),
    Case("own seed", "seed replicated - own", BOTH.replace("step", "call") + " images: x, rows 0 to 31"),
    Case("own map", "map replicated - own", BOTH.replace("step", "call") + " images: x, rows 0 to 31"),
    Case("own batch", "batch replicated - own", r"process 0 has x float32\[32,8\]; process 1 has x float32\[24,8\]"),
    Case("own ends", "ends apart - own", "process 1 on localhost has left after 13 batches of images"),
]
QUICK = ("flip", "map", "own batch")


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name.replace(" ", "_"))
@pytest.mark.quick(*(name.replace(" ", "_") for name in QUICK))
def test_what_is_wrong_is_told(launch: Launch, script: Script, case: Case) -> None:
    done = launch("--local", str(case.processes), *case.how, script(JOB), *case.words.split())
    assert done.returncode == 1 and re.search(case.wanted, done.stderr), done.stdout + done.stderr


HEALTHY = """
import itertools, sys
import jax
import numpy as np
from jax.sharding import Mesh, PartitionSpec as P
import hostmesh

hostmesh.join()
me, processes = jax.process_index(), jax.process_count()
devices = np.array(jax.devices())
meshes = [(Mesh(devices, "data"), P()), (Mesh(devices, "data"), P("data"))]
if len(devices) % 2 == 0:
    two = Mesh(devices.reshape(-1, 2), ("data", "model"))
    turned = Mesh(devices.reshape(2, -1).T, ("data", "model"))
    meshes += [(two, P("data")), (two, P(None, "model")), (two, P("data", "model")), (turned, P("data"))]
data = {"x": np.arange(300 * 8, dtype=np.float32).reshape(300, 8)}

def change(block, ids, rng):
    return {"x": block["x"] + rng.random()[:, None].astype(np.float32), "id": ids.astype(np.int32)}

class Texts:
    name = "texts"
    def __len__(self):
        return 300
    def __getitem__(self, number):
        return {"x": np.arange(1 + number % 8, dtype=np.float32)}

def lines(shard, shards):
    return ({"x": row} for row in data["x"][shard::shards])

count = itertools.count()
whole = jax.jit(lambda x: x.sum())
for mesh, spec in meshes:
    for loading in ("per_process", "per_device", "global", "reshard"):
        for source, options in (
            (data, {"map": change, "spec": {"x": spec, "id": P(*spec[:1])}}),
            (data, {"tail": "pad", "epochs": 1}),
            (data, {"workers": 2}),
            (hostmesh.mix({"a": 3, "b": 1}, sources={"a": data, "b": data}), {}),
            (hostmesh.Stream(lines, shards=4, name="lines"), {"steps": 9}),
            (Texts(), {"lengths": [4, 8]}),
        ):
            if "lengths" in options and (len(spec) > 1 or loading == "reshard"):
                continue
            turn = next(count)
            if turn % 3 != int(sys.argv[1]):
                continue
            loader = hostmesh.Loader(source, mesh, 48, **{"steps": 12, "spec": spec, **options})
            for batch in loader:
                jax.block_until_ready(whole(batch["x"]))
            for batch in loader:  # once more, and away from it in the middle
                if loader.step == 5:
                    break
            if turn % 4 == 0:
                loader.restore(2)
            hostmesh.check(batch, f"batch {turn}")
            jax.block_until_ready(whole(next(loader)["x"]))
loader = hostmesh.Loader(data, meshes[1][0], 48, steps=12)
next(loader)
if me == 0:  # alone, at its end, and with nobody's help
    batch = next(loader)
    print("one more", np.asarray(batch["x"].addressable_shards[0].data).shape)
print("done", next(count))
"""


@pytest.mark.parametrize("turn", range(3))
@pytest.mark.parametrize("topology", [("2",), ("4",), ("3",), ("2", "--devices", "2")], ids="-".join)
@pytest.mark.slow
def test_nothing_is_told_of_processes_that_are_well(
    launch: Launch, script: Script, topology: tuple[str, ...], turn: int
) -> None:
    done = launch("--local", *topology, "--guard", "every", script(HEALTHY), str(turn))
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.count("done") == int(topology[0]) and "does each process load" not in done.stderr
    assert "gave" not in done.stderr and "dropped" not in done.stderr


def test_the_same_rows_of_every_process_are_told_and_end_nothing(launch: Launch, script: Script) -> None:
    """Each process gives the rows that belong to the first one; and without the guard nobody says so."""
    text = """
import jax, numpy as np, hostmesh
from jax.sharding import NamedSharding, PartitionSpec as P
hostmesh.join()
sharding = NamedSharding(hostmesh.make_mesh(data=-1), P("data"))
rows = np.arange(128, dtype=np.float32).reshape(16, 8)
array = jax.make_array_from_process_local_data(sharding, rows, (32, 8))
hostmesh.check(array, "rows")
"""
    done = launch("--local", "2", script(text))
    assert done.returncode == 0, done.stderr
    (note,) = (line for line in done.stderr.splitlines() if "the same values that process" in line)
    assert re.search(r"process [01] gives as rows \d+ to \d+ of rows the same values that process [01] gives as", note)


@pytest.mark.slow
def test_off_compares_nothing(launch: Launch, script: Script) -> None:
    done = launch("--local", "2", "--guard", "off", script(JOB), *["swap", "replicated", "per_process", "arrays"])
    assert done.returncode == 0 and done.stdout.count("done") == 2, done.stderr


def options_of(**options: Any) -> str:
    return ", ".join(f"{name}={value!r}" for name, value in options.items())


@pytest.mark.parametrize("mode", ["every", "off"])
@pytest.mark.slow
def test_a_loader_may_have_a_guard_of_its_own(launch: Launch, script: Script, mode: str) -> None:
    text = JOB.replace("loading=loading, ", f"loading=loading, {options_of(guard=mode)}, ")
    asked = "off" if mode == "every" else "every"
    done = launch("--local", "2", "--guard", asked, script(text), *["flip", "replicated", "per_process", "arrays"])
    assert done.returncode == (1 if mode == "every" else 0), done.stderr


RESUMED = """
import os, sys, time
import jax, numpy as np, hostmesh
from jax.sharding import PartitionSpec as P
hostmesh.join()
attempt = hostmesh.Identity.from_env().attempt
mesh = hostmesh.make_mesh(data=-1)
# What a stream gives depends on when it was opened: the rows of step 3 are others in the second attempt.
stream = hostmesh.Stream(lambda shard, shards: ({"x": np.full(64, 100.0 * attempt + n)} for n in range(400)), name="s")
loader = hostmesh.Loader(stream, mesh, 16, spec=P(), steps=12)
total = jax.jit(lambda x: x.sum())
for batch in loader:
    jax.block_until_ready(total(batch["x"]))
    time.sleep(0.05)
    if attempt == 1 and loader.step == 6 and jax.process_index() == 1:
        os.kill(os.getpid(), 9)
print("done", attempt)
"""


@pytest.mark.slow
def test_attempts_are_not_compared_with_each_other(launch: Launch, script: Script) -> None:
    done = launch("--local", "2", "--guard", "every", "--restarts", "1", script(RESUMED))
    assert done.returncode == 0 and done.stdout.count("done 2") == 2, done.stdout + done.stderr


START = """
import itertools, subprocess, sys, time
import jax, numpy as np, hostmesh
from jax.sharding import NamedSharding, PartitionSpec as P
hostmesh.join()
me = jax.process_index()
mesh = hostmesh.make_mesh(data=-1)
data = {"x": np.arange(640, dtype=np.float32).reshape(80, 8)}
total = jax.jit(lambda x: x.sum())
own = np.random.default_rng(me)
def change(block, *_):
    return {"x": block["x"] + own.random(block["x"].shape, np.float32)}
"""


@dataclass(frozen=True)
class Odd:
    """What a script does that begins with START; `wanted` is in what is shown."""

    name: str
    text: str
    wanted: str
    fails: bool = True
    how: tuple[str, ...] = ("--guard", "every")


ODD = [
    Odd(
        "names of calls",
        """
loader = hostmesh.Loader(data, mesh, 16, spec=P(), map=lambda b, *_: change(b) if done else b, steps=90)
done = False
batch = next(loader)
for step in range(450):
    hostmesh.check(batch, f"batch {step}")
    if step % 10 == 0:
        time.sleep(0.05)
time.sleep(2)
done = True
for batch in loader:
    jax.block_until_ready(total(batch["x"]))
    time.sleep(0.05)
""",
        r"launch: more than 300 names: give hostmesh.check one name(.|\n)*processes 0 and 1 gave different rows",
    ),
    Odd(
        "waits for another loader",
        """
train, ev = hostmesh.Loader(data, mesh, 16, steps=9), hostmesh.Loader(data, mesh, 16)
for _ in range(2 - me):
    batch = next(ev)
for batch in train:
    jax.block_until_ready(total(batch["x"]))
hostmesh.check(batch, "batch")
if me == 0:
    subprocess.run(["sleep", "8"])
""",
        "",
        fails=False,
    ),
    Odd(
        "a first batch alone",
        """
train = hostmesh.Loader(data, mesh, 16, steps=9)
ev = hostmesh.Loader(data, mesh, 16, tail="pad", epochs=1)
if me == 0:
    next(ev)
for batch in train:
    jax.block_until_ready(total(batch["x"]))
""",
        r"process 0 asks for loader 2 \(arrays\), process 1 asks for loader 1 \(arrays\): no process takes the first",
    ),
    Odd(
        "a map of a sharded stream",
        """
mesh = hostmesh.make_mesh(data=1, model=-1, span_processes=True)
stream = hostmesh.Stream(lambda shard, shards: ({"x": row} for row in data["x"]), name="lines")
loader = hostmesh.Loader(stream, mesh, 16, sharded=True, map=change, steps=30)
for batch in loader:
    jax.block_until_ready(total(batch["x"]))
    time.sleep(0.2)
""",
        "processes 0 and 1 gave different rows, which should be the same, in step 0 of lines: x, rows 0 to 15",
    ),
    Odd(
        "a sharded stream",
        """
mesh = hostmesh.make_mesh(data=1, model=-1, span_processes=True)
stream = hostmesh.Stream(lambda shard, shards: ({"x": row} for row in data["x"]), name="lines")
shift = lambda b, ids, rng: {"x": b["x"] + rng.random()[:, None]}
loader = hostmesh.Loader(stream, mesh, 16, sharded=True, map=shift, steps=5)
for batch in itertools.chain(loader, loader):
    jax.block_until_ready(total(batch["x"]))
    time.sleep(0.1)
""",
        "",
        fails=False,
    ),
    Odd(
        "another guard",
        "hostmesh.Loader(data, mesh, 16, guard=['every', 'off'][me])",
        'guard: process 0 has "every", process 1 has "off"',
    ),
    Odd(
        "another pass",
        """
loader = hostmesh.Loader(data, mesh, 16, steps=200)
for taken, batch in zip(range(150), loader):
    jax.block_until_ready(total(batch["x"]))
    time.sleep(0.01)  # what it tells, four times a second, comes in parts
    if taken == 10 and me == 1:
        loader.restore(5)
time.sleep(1)
""",
        "stay in different passes over arrays, .*: process 0 in pass 1, process 1 in pass 2",
        fails=False,
    ),
    Odd(
        "a state",
        """
whole = NamedSharding(mesh, P())
def make(number):
    key = jax.random.key(7)
    return {"count": jax.numpy.int32(number), "key": key, "keys": jax.random.split(key, 4), "x": jax.numpy.ones((8, 8))}
for number in range(20):
    state = jax.jit(make, static_argnums=0, out_shardings=whole)(number)
    hostmesh.check(state, "state")
parts = [np.int32(me if number == 19 else 3)]
count = jax.make_array_from_single_device_arrays((), whole, [jax.device_put(parts[0], jax.local_devices()[0])])
hostmesh.check({**state, "count": count}, "state")
time.sleep(2)
""",
        "processes 0 and 1 gave different rows, which should be the same, in call 20 of state: count, row 0",
    ),
    Odd(
        "a local array",
        """
hostmesh.check({"count": jax.numpy.int32(1)}, "state")
""",
        r"hostmesh.check wants global jax.Arrays; count is local, on devices of this process alone: jax.device",
    ),
]


@pytest.mark.parametrize("odd", ODD, ids=lambda odd: odd.name.replace(" ", "_"))
@pytest.mark.slow
def test_odd_scripts(launch: Launch, script: Script, odd: Odd) -> None:
    done = launch("--local", "2", *odd.how, script(START + odd.text))
    assert done.returncode == int(odd.fails) and re.search(odd.wanted, done.stderr), done.stdout + done.stderr
