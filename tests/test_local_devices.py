"""What processes on this machine compute on: what the user set holds; else GPUs are split, or CPU devices simulated."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from conftest import Launch, Script

from hostmesh.launcher.cluster.file import read_cluster
from hostmesh.launcher.cluster.local import local_cluster
from hostmesh.launcher.cluster.model import Cluster, Host, Job
from hostmesh.launcher.errors import UsageError
from hostmesh.launcher.planning.accelerators import choose_platforms, find_local_gpus
from hostmesh.launcher.planning.plan import Plan, describe_devices, make_plan, plan_table

CUDA, HIP = "CUDA_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES"
PLATFORMS = "JAX_PLATFORMS"
FOUR = ("dev/nvidia0", "dev/nvidia1", "dev/nvidia2", "dev/nvidia3", "dev/nvidiactl")
TWO_OF_AMD = ("dev/kfd", "dev/dri/renderD128", "dev/dri/renderD129")
PLUGINS = ("lib/jax_plugins/xla_cuda13/__init__.py", "lib/jax_plugins/xla_rocm7/__init__.py")
JOB = Job(script="train.py")

Machine = Callable[..., "dict[str, Any]"]


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    """A folder with such files in place of this machine's, and an environment."""

    def make(*files: str, **inherited: str) -> dict[str, Any]:
        for name in files:
            path = tmp_path / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.touch()
        return {"root": str(tmp_path), "inherited": inherited}

    return make


CHOICES = {
    "nothing set, no GPU": ((), {}, None, "cpu"),
    "nothing set, GPUs": (FOUR, {}, None, "cuda,cpu"),
    "nothing set, GPUs of AMD": (TWO_OF_AMD, {}, None, "rocm,cpu"),
    "set, no GPU": ((), {PLATFORMS: "cuda"}, None, "cuda"),
    "set, GPUs": (FOUR, {PLATFORMS: "cpu"}, None, "cpu"),
    "set to nothing, which lets jax choose": (FOUR, {PLATFORMS: ""}, None, ""),
    "CPU devices asked for": (FOUR, {}, 2, "cpu"),
    "CPU devices asked for, and another platform set": (FOUR, {PLATFORMS: "cuda"}, 2, "cuda"),
    "CPU devices asked for by jax's variable": (FOUR, {"JAX_NUM_CPU_DEVICES": "2"}, None, "cpu"),
    "by XLA's": (FOUR, {"XLA_FLAGS": "--xla_force_host_platform_device_count=8"}, None, "cpu"),
    "other flags of XLA's": (FOUR, {"XLA_FLAGS": "--xla_dump_to=x"}, None, "cuda,cpu"),
    "GPUs that are hidden": (FOUR, {CUDA: ""}, None, "cpu"),
}


@pytest.mark.parametrize("situation", CHOICES)
def test_the_platform(machine: Machine, tmp_path: Path, situation: str) -> None:
    files, inherited, devices, wanted = CHOICES[situation]
    here = machine(*files, *PLUGINS, **inherited)
    assert choose_platforms({}, devices, path=["/nowhere", str(tmp_path / "lib")], **here) == wanted


def test_what_the_cluster_file_sets_goes_before_the_environment(machine: Machine) -> None:
    here = machine(*FOUR, **{PLATFORMS: "cpu"})
    assert choose_platforms({PLATFORMS: "cuda"}, None, path=[], **here) == "cuda"


def test_a_jax_without_a_plugin_for_the_gpus_simulates(machine: Machine, tmp_path: Path) -> None:
    here = machine(*FOUR, "lib/jax_plugins/xla_rocm7/__init__.py")
    assert choose_platforms({}, None, path=[str(tmp_path / "lib")], **here) == "cpu"
    assert choose_platforms({}, None, python="/opt/python", path=[], **here) == "cuda,cpu"


def planned(cluster: Cluster, here: dict[str, Any], devices: int | None = None) -> Plan:
    return make_plan(cluster, JOB, devices, gpus=find_local_gpus(cluster.transport, cluster.env, **here))


def local(processes: int, platforms: str = "cuda,cpu", **settings: Any) -> Cluster:
    return Cluster((Host("localhost", processes),), env={PLATFORMS: platforms}, **settings)


SHARES = {
    "evenly": (FOUR, {}, local(2), ["0,1", "2,3"], ", 2 of 4 GPUs each"),
    "of those that are visible": (FOUR, {CUDA: "3,1"}, local(2), ["3", "1"], ", 1 of 2 GPUs each"),
    "all to one process": (FOUR, {}, local(1), [None], ", 4 GPUs"),
    "as listed": (FOUR, {}, local(1, local_devices=((2,),)), ["2"], ", GPUs as listed in local_devices"),
    "between hosts that are all this machine": (
        FOUR,
        {},
        Cluster((Host("a", 1), Host("b", 1)), env={PLATFORMS: "cuda,cpu"}),
        ["0,1", "2,3"],
        ", 2 of 4 GPUs each",
    ),
    "where jax is to choose": (FOUR, {}, local(4, ""), ["0", "1", "2", "3"], ", 1 of 4 GPUs each"),
}


@pytest.mark.parametrize("how", SHARES)
def test_gpus_are_shared(machine: Machine, how: str) -> None:
    files, inherited, cluster, wanted, said = SHARES[how]
    plan = planned(cluster, machine(*files, **inherited))
    assert [process.env.get(CUDA) for process in plan.processes] == wanted
    assert describe_devices(plan) == said
    assert all(f"{CUDA}={each}" in plan_table(plan) for each in filter(None, wanted))


@pytest.mark.parametrize(
    ("processes", "files", "found"),
    [
        (3, FOUR, "4 GPUs for 3 processes, wanted one of 1, 2, 4"),
        (4, FOUR[:1], "1 GPU for 4 processes, wanted 1"),
    ],
)
def test_gpus_that_cannot_be_shared_are_refused(
    machine: Machine, processes: int, files: tuple[str, ...], found: str
) -> None:
    with pytest.raises(UsageError) as caught:
        planned(local(processes), machine(*files))
    assert str(caught.value) == f"localhost: found {found}, or {PLATFORMS}=cpu (or --devices D) to simulate on CPU"


SAID = {
    "several processes": (local(4, "cpu"), None, ", simulated on CPU"),
    "with devices": (local(4, "cpu"), 2, ", simulated on CPU, 2 devices each"),
    "one process": (local(1, "cpu"), None, ", on CPU"),
    "another platform": (local(1, "tpu"), None, ", JAX_PLATFORMS=tpu"),
    "jax's choice": (local(2, ""), None, ", on what jax finds"),
    "other hosts": (Cluster((Host("a", 2),), transport="ssh"), 2, ""),
}


@pytest.mark.parametrize("what", SAID)
def test_the_first_line_says(machine: Machine, what: str) -> None:
    cluster, devices, said = SAID[what]
    assert describe_devices(planned(cluster, machine(), devices)) == said


def test_several_processes_on_a_tpu_are_refused(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv(PLATFORMS, "tpu")
    assert local_cluster(1).env == {PLATFORMS: "tpu"}
    with pytest.raises(
        UsageError, match="^JAX_PLATFORMS: found tpu with 2 processes, wanted one process on a TPU host"
    ):
        local_cluster(2)
    (tmp_path / "c.yaml").write_text("transport: local\nhosts: [a, b]\n")
    with pytest.raises(UsageError, match="^JAX_PLATFORMS: found tpu with 2 processes"):
        read_cluster(tmp_path / "c.yaml")


PRINTS = "import os\nprint('seen', *(os.environ.get(name) for name in ('JAX_PLATFORMS', 'NPROC', 'XLA_FLAGS')))\n"
SET = {"JAX_PLATFORMS": "cpu,", "NPROC": "5", "XLA_FLAGS": "--xla_dump_to=x"}


@pytest.mark.parametrize("where", ["environment", "cluster file"])
@pytest.mark.slow
def test_what_the_user_set_reaches_the_processes(launch: Launch, script: Script, tmp_path: Path, where: str) -> None:
    """A value that means CPU and that hostmesh itself would never set."""
    how, env = ["--local", "2"], SET
    if where == "cluster file":
        (tmp_path / "c.yaml").write_text(f"transport: local\nhosts: [a]\nprocesses_per_host: 2\nenv: {SET}\n")
        how, env = ["--hosts", "c.yaml"], {}
    done = launch(*how, script(PRINTS), env=env)
    assert done.stdout.count("seen cpu, 5 --xla_dump_to=x") == 2, done.stdout + done.stderr


def test_gpus_that_were_asked_for_and_are_not_there_are_no_cpu_run(launch: Launch, script: Script) -> None:
    done = launch("--local", "2", script(PRINTS), env={PLATFORMS: "cuda", CUDA: ""})
    assert done.returncode == 2 and "found no GPUs, but JAX_PLATFORMS is cuda" in done.stderr
    assert "seen" not in done.stdout


def test_a_run_says_that_it_simulates(launch: Launch, script: Script) -> None:
    done = launch("--local", "2", "--devices", "2", script(PRINTS), env={CUDA: ""})
    assert done.stderr.startswith("launch: 2 processes on localhost, simulated on CPU, 2 devices each; logs in runs/")
    assert done.stdout.count("seen cpu") == 2
