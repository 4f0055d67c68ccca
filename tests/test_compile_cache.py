"""Second starts of real processes: they compile nothing, and get the same numbers; the user's own choice wins."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

import pytest
from conftest import HANGS, LAUNCH, Launch, Script, Start, await_true, cache_folder, clean_env
from sshd import Sshd, needs_sshd

from hostmesh.worker.compiling.store import PART

# Programs that span the processes, with and without collectives, and programs of each process alone. The events are
# jax's own.
TRAIN = """
import os, time
import jax, jax.numpy as jnp
from jax.sharding import NamedSharding, PartitionSpec as P

seen = []
jax.monitoring.register_event_listener(lambda event, **_: seen.append(event.rpartition("/")[2]))
jax.distributed.initialize()
mesh = jax.make_mesh((jax.device_count(),), ("data",), axis_types=(jax.sharding.AxisType.Auto,))
rows = jax.make_array_from_callback(
    (16, 32), NamedSharding(mesh, P("data")), lambda index: jnp.arange(512.0).reshape(16, 32)[index] / 700
)
weights = jax.device_put(jnp.eye(32), NamedSharding(mesh, P()))

@jax.jit
def step(weights, rows):
    loss, slope = jax.value_and_grad(lambda weights: (jnp.sin(rows @ weights) ** 2).mean())(weights)
    return weights - 0.1 * slope, loss

for _ in range(5):
    weights, loss = step(weights, rows)
own = jnp.cumsum(jnp.arange(5.0) * jax.process_index())
compiled = seen.count("compile_requests_use_cache") - seen.count("cache_hits")
print("numbers", float(loss).hex(), float(abs(weights.addressable_data(0)).sum()).hex(), float(own.sum()))
print("compiled", compiled, "of", seen.count("compile_requests_use_cache"), flush=True)
"""
PLAIN = {"JAX_ENABLE_COMPILATION_CACHE": "false"}


class Result:
    def __init__(self, text: str) -> None:
        lines = [line.split("] ", 1)[1] for line in text.splitlines() if "] " in line]
        self.numbers = sorted(line for line in lines if line.startswith("numbers"))
        counts = [line.split() for line in lines if line.startswith("compiled")]
        self.compiled = [int(words[1]) for words in counts]
        self.programs = {int(words[3]) for words in counts}


def entries(cache: str | Path) -> list[Path]:
    """All but those that are being written."""
    return sorted(path for path in Path(cache).glob("hostmesh/compiled/*/*") if path.is_file() and path.suffix != PART)


def read_entries(cache: str | Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in entries(cache)}


Train = Callable[..., Result]


@pytest.fixture
def train(launch: Launch, script: Script) -> Train:
    program = script(TRAIN)

    def run(*args: str, env: dict[str, str] | None = None) -> Result:
        done = launch(*(args or ("--local", "4")), program, env=env)
        assert done.returncode == 0, done.stdout + done.stderr
        return Result(done.stdout)

    return run


class Kept(NamedTuple):
    first: Result
    cache: Path


@pytest.fixture(scope="module")
def first_start(tmp_path_factory: pytest.TempPathFactory) -> Kept:
    """What two processes came to, and what they have kept."""
    folder = tmp_path_factory.mktemp("first")
    (folder / "script.py").write_text(TRAIN)
    command = [*LAUNCH, "--show", "all", "--local", "2", "script.py"]
    env = clean_env({"XDG_CACHE_HOME": str(folder / "cache")})
    done = subprocess.run(command, cwd=folder, env=env, capture_output=True, text=True, timeout=HANGS)
    assert done.returncode == 0, done.stdout + done.stderr
    return Kept(Result(done.stdout), folder / "cache")


@pytest.fixture
def kept(first_start: Kept) -> Result:
    """The first start, whose programs this test has a copy of."""
    shutil.copytree(first_start.cache, cache_folder())
    return first_start.first


of_the_first_start = pytest.mark.xdist_group("compiled programs of one start")


@pytest.mark.newest
@of_the_first_start
def test_a_second_start_compiles_nothing_and_gives_the_same_numbers(train: Train, kept: Result) -> None:
    plain, second = train("--local", "2", env=PLAIN), train("--local", "2")
    assert len(plain.numbers) == 2 and plain.numbers == kept.numbers == second.numbers
    assert max(kept.compiled) > 5 and second.compiled == [0, 0]
    assert len(entries(cache_folder())) == max(kept.programs)  # processes share what each has alone


@pytest.mark.slow
@pytest.mark.parametrize("processes", [1, 4])
def test_a_second_start_compiles_nothing_with_any_number_of_processes(train: Train, processes: int) -> None:
    args = ("--local", str(processes))
    plain, first, second = train(*args, env=PLAIN), train(*args), train(*args)
    assert len(plain.numbers) == processes and plain.numbers == first.numbers == second.numbers
    assert max(first.compiled) > 5 and second.compiled == [0] * processes
    assert len(entries(cache_folder())) == max(first.programs)  # processes share what each has alone


def test_another_attempt_compiles_nothing(launch: Launch, script: Script) -> None:
    fails = "if os.environ['HOSTMESH_ATTEMPT'] == '1': os._exit(3)\n"
    done = launch("--local", "2", "--restarts", "1", script(TRAIN + fails))
    assert done.returncode == 0, done.stdout + done.stderr
    compiled = Result(done.stdout).compiled
    assert compiled[0] > 5 and compiled[-2:] == [0, 0]  # one of the first two may not have come so far


@pytest.mark.slow
@of_the_first_start
def test_corrupt_entries_are_replaced(train: Train, kept: Result) -> None:
    good = {path: path.read_bytes()[:52] for path in entries(cache_folder())}
    for path in good:
        path.write_bytes(path.read_bytes()[:-3] + b"xyz")
    again = train("--local", "2")
    assert again.numbers == kept.numbers and max(again.compiled) > 5
    assert entries(cache_folder()) == sorted(good)
    third = train("--local", "2")
    assert third.compiled == [0, 0] and third.numbers == kept.numbers


@pytest.mark.slow
@of_the_first_start
def test_an_entry_that_jax_cannot_load_is_replaced(train: Train, kept: Result) -> None:
    from hostmesh.worker.compiling.store import Store

    for path in entries(cache_folder()):
        Store(str(path.parent.parent), path.parent.name).put(path.name, b"whole, but no program")
    again = train("--local", "2")
    assert again.numbers == kept.numbers
    assert train("--local", "2").compiled == [0, 0]


@pytest.mark.parametrize(
    ("env", "before"),
    [
        ({"JAX_COMPILATION_CACHE_DIR": "own"}, ""),
        ({}, "import os; os.environ['JAX_COMPILATION_CACHE_DIR'] = 'own'\n"),
        ({}, "import jax; jax.config.update('jax_compilation_cache_dir', 'own')\n"),
        (PLAIN, ""),
        ({}, "import jax; jax.config.update('jax_enable_compilation_cache', False)\n"),
    ],
    ids=["folder", "late folder", "folder in the script", "off", "off in the script"],
)
@pytest.mark.quick("off in")
def test_the_users_own_choice_wins(
    env: dict[str, str], before: str, launch: Launch, script: Script, tmp_path: Path
) -> None:
    small = {"JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0", **env}
    is_own = "own" in f"{env}{before}"
    for _ in range(2 if is_own else 1):
        done = launch("--local", "2", script(before + TRAIN), env=small)
        assert done.returncode == 0, done.stdout + done.stderr
    assert entries(cache_folder()) == []
    assert any((tmp_path / "own").glob("*")) == is_own


@pytest.mark.slow
def test_a_cluster_file_can_turn_it_off(train: Train, tmp_path: Path) -> None:
    (tmp_path / "c.yaml").write_text(
        json.dumps({"transport": "local", "hosts": [{"address": "here", "processes": 2}], "compile_cache": "off"})
    )
    assert min(train("--hosts", "c.yaml").compiled) > 5
    assert entries(cache_folder()) == []


@pytest.mark.slow
def test_a_folder_that_cannot_be_used_is_told_once_and_nothing_else_changes(
    launch: Launch, script: Script, tmp_path: Path
) -> None:
    """As a file in its place is: root could write to a folder whatever its mode."""
    (tmp_path / "hostmesh").write_bytes(b"")
    done = launch("--local", "2", script(TRAIN), env={"XDG_CACHE_HOME": str(tmp_path)})
    assert done.returncode == 0 and len(Result(done.stdout).numbers) == 2
    assert (done.stdout + done.stderr).count("compiled programs are not kept on localhost: ") == 1


@pytest.mark.parametrize("after", ["nothing", "the same program everywhere"])
@pytest.mark.quick("nothing")
def test_programs_from_the_store_are_still_compared(launch: Launch, script: Script, after: str) -> None:
    """A second start, with one process that runs another program, which is kept as well."""
    other = "** 2).mean() * (1 + int(os.environ['OTHER']) * jax.process_index())"
    differs = TRAIN.replace("** 2).mean()", other)
    program = script(differs)
    if after != "nothing":
        assert launch("--local", "2", program, env={"OTHER": "0"}).returncode == 0
    for _ in range(2):
        done = launch("--local", "2", "--programs", "stop", program, env={"OTHER": "1"})
        assert done.returncode != 0 and "another computation" in done.stdout + done.stderr


# Hosts with folders of their own.

# Only two processes train; others wait, as a spare does, and compile nothing.
TWO_TRAIN = f"""
import os, time
number = int(os.environ["HOSTMESH_PROCESS_ID"])
if number > 1:
    time.sleep(600)
{TRAIN}
time.sleep(600)
""".replace(
    "initialize()", "initialize(os.environ['HOSTMESH_COORDINATOR_ADDRESS'], num_processes=2, process_id=number)"
)


@pytest.fixture
def servers(tmp_path: Path) -> Iterator[dict[str, Sshd]]:
    """Hosts that are all this machine, each with a folder of its own for compiled programs."""
    found = {name: Sshd(tmp_path / f"sshd-{name}") for name in "abc"}
    yield found
    for server in found.values():
        server.close()


@pytest.fixture
def cluster(servers: dict[str, Sshd], tmp_path: Path) -> Callable[[str], str]:
    """Write a cluster file with these hosts, and give its name."""
    hosts = [
        f"Host {name}\n  HostName 127.0.0.1\n  Port {server.port}\n  IdentityFile {server.identity}\n"
        f"  UserKnownHostsFile {server.known_hosts}\n  IdentitiesOnly yes\n"
        for name, server in servers.items()
    ]
    (tmp_path / "ssh_config").write_text("\n".join(hosts))

    def write(names: str) -> str:
        settings = {
            "hosts": [{"address": name, "internal_address": "127.0.0.1"} for name in names],
            "ssh": {"config": "ssh_config"},
            "python": sys.executable,
            "workdir": str(tmp_path),
            "env": {"JAX_PLATFORMS": "cpu"},
        }
        (tmp_path / "c.yaml").write_text(json.dumps(settings))
        return "c.yaml"

    return write


@pytest.mark.slow
@needs_sshd
def test_every_host_keeps_what_it_compiled(
    train: Train, cluster: Callable[[str], str], servers: dict[str, Sshd]
) -> None:
    first = train("--hosts", cluster("ab"))
    assert [len(entries(servers[name].cache)) for name in "ab"] == [*first.programs] * 2
    second = train("--hosts", cluster("ab"))
    assert second.compiled == [0, 0] and second.numbers == first.numbers


@needs_sshd
def test_a_host_that_compiles_nothing_is_carried_the_programs(
    start: Start, train: Train, script: Script, cluster: Callable[[str], str], servers: dict[str, Sshd]
) -> None:
    run = start("--hosts", cluster("abc"), script(TWO_TRAIN, "two.py"))
    await_true(lambda: run.stderr.count("] compiled ") == 2, 120, "two processes train")
    kept = read_entries(servers["a"].cache)
    await_true(lambda: read_entries(servers["c"].cache).keys() >= kept.keys(), 60, "all programs are carried")
    assert len(kept) > 5
    carried = read_entries(servers["c"].cache)  # some may have been made since
    assert carried == {name: data for name, data in read_entries(servers["a"].cache).items() if name in carried}
    first = Result(run.stderr)
    run.close()
    second = train("--hosts", cluster("cb"))  # in the place of host a
    assert second.compiled == [0, 0] and second.numbers == first.numbers
