"""The plan: ids, hosts, environment and coordinator, from a cluster and a job alone."""

from __future__ import annotations

import json
from dataclasses import replace
from types import MappingProxyType
from typing import Any

import pytest
from conftest import REPO

from hostmesh.launcher.cluster.file import read_cluster
from hostmesh.launcher.cluster.local import local_cluster
from hostmesh.launcher.cluster.model import Cluster, Host, Job
from hostmesh.launcher.errors import UsageError
from hostmesh.launcher.planning.accelerators import pick_gpus, split_devices
from hostmesh.launcher.planning.environment import find_credentials
from hostmesh.launcher.planning.plan import hint_coordinator, make_plan, plan_json, plan_table
from hostmesh.launcher.supervisor.startup.judgement import own_settings
from hostmesh.worker.identity import Identity

TWO_HOSTS = Cluster(
    (Host("a", 2, python="/opt/py"), Host("b", 1, internal_address="10.0.0.2")),
    name="pair",
    transport="ssh",
    env=MappingProxyType({"A": "1"}),
    secrets=("KEY",),
)
CREDENTIALS = {
    "AWS_SECRET_ACCESS_KEY": "hidden",
    "MY_TOKEN": "0",
    "my_db_password": "hidden",
    "WANDB_API_KEY": "hidden",
}
CUDA, HIP = "CUDA_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES"
TURNED = Cluster(TWO_HOSTS.hosts[::-1], transport="ssh")
JOB = Job(script="train.py", args=("--steps", "3"))


def test_process_ids_are_dense_and_follow_the_hosts() -> None:
    plan = make_plan(TWO_HOSTS, JOB)
    assert [(p.process_id, p.host, p.local_process_id) for p in plan.processes] == [(0, 0, 0), (1, 0, 1), (2, 1, 0)]


def test_the_coordinator_is_process_0_at_an_address_others_reach() -> None:
    for cluster, address in ((local_cluster(2), "127.0.0.1"), (TWO_HOSTS, "a"), (TURNED, "10.0.0.2")):
        assert hint_coordinator(cluster, cluster.hosts[0]) == address


def test_an_ipv6_coordinator_gets_brackets() -> None:
    plan = make_plan(TWO_HOSTS, JOB)
    assert plan.identity(plan.processes[0], "r", 1, "fe80::1", 99).coordinator_address == "[fe80::1]:99"


def test_identity_survives_the_environment() -> None:
    plan = make_plan(TWO_HOSTS, JOB)
    identity = plan.identity(plan.processes[2], "1116-abc", 2, "10.0.0.1", 1234)
    assert Identity.from_env(identity.to_env()) == identity
    assert identity == Identity("1116-abc", 2, "b", 2, 3, 0, "10.0.0.1:1234")
    assert Identity.from_env({}) is None


def test_whose_metrics_are_kept_is_known_to_the_processes() -> None:
    plan = make_plan(replace(TWO_HOSTS, metrics="all"), JOB)
    assert [process.env for process in plan.processes] == [{"HOSTMESH_METRICS": "all"}] * 3
    assert plan_json(plan)["metrics"] == "all" and not any(
        process.env for process in make_plan(TWO_HOSTS, JOB).processes
    )


def test_devices_become_a_variable_and_win_over_the_file() -> None:
    cluster = Cluster((Host("a", 1),), env=MappingProxyType({"JAX_NUM_CPU_DEVICES": "2"}))
    assert make_plan(cluster, JOB, devices=4).env["JAX_NUM_CPU_DEVICES"] == "4"
    assert make_plan(cluster, JOB).env["JAX_NUM_CPU_DEVICES"] == "2"


def test_listed_devices_are_each_process_own() -> None:
    cluster = Cluster((Host("a", 2),), local_devices=((0, 1), (2, 3)))
    assert [p.env for p in make_plan(cluster, JOB).processes] == [
        {"CUDA_VISIBLE_DEVICES": "0,1", "HIP_VISIBLE_DEVICES": "0,1"},
        {"CUDA_VISIBLE_DEVICES": "2,3", "HIP_VISIBLE_DEVICES": "2,3"},
    ]
    for platform, variable in (("cuda", CUDA), ("rocm", HIP)):
        cluster = Cluster((Host("a", 1),), local_devices=((1, 2),), env=MappingProxyType({"JAX_PLATFORMS": platform}))
        assert [p.env for p in make_plan(cluster, JOB).processes] == [{variable: "1,2"}]


def gpu_host(processes: int, **settings: Any) -> Cluster:
    return Cluster((Host("other", 1), Host("gpu-a", processes)), transport="ssh", **settings)


def split(processes: int, gpus: int, **env: str) -> list[dict[str, str]]:
    return split_devices(gpu_host(processes), 1, gpus, env)


def test_gpus_are_split_evenly_among_the_processes_of_a_host() -> None:
    assert split(2, 4, JAX_PLATFORMS="cuda") == [{CUDA: "0,1"}, {CUDA: "2,3"}]
    assert split(8, 8, JAX_PLATFORMS="cuda,cpu") == [{CUDA: str(number)} for number in range(8)]
    assert split(2, 2, JAX_PLATFORMS="rocm") == [{HIP: "0"}, {HIP: "1"}]


@pytest.mark.parametrize("env", [{}, {"JAX_PLATFORMS": ""}, {"JAX_PLATFORMS": "gpu"}])
def test_gpus_of_an_unnamed_maker_are_split_for_both(env: dict[str, str]) -> None:
    assert split(2, 2, **env) == [{CUDA: "0", HIP: "0"}, {CUDA: "1", HIP: "1"}]


def test_visible_gpus_are_what_is_split() -> None:
    assert split(2, 4, JAX_PLATFORMS="cuda", **{CUDA: "4, 5,6,7"}) == [{CUDA: "4,5"}, {CUDA: "6,7"}]
    assert split(2, 2, JAX_PLATFORMS="cuda", **{CUDA: "GPU-1a,GPU-2b"}) == [{CUDA: "GPU-1a"}, {CUDA: "GPU-2b"}]
    assert split(2, 8, JAX_PLATFORMS="rocm", **{HIP: "3,1,-1,2"}) == [{HIP: "3"}, {HIP: "1"}]
    assert split(2, 2, JAX_PLATFORMS="rocm", **{CUDA: "", HIP: "2,3"}) == [{HIP: "2"}, {HIP: "3"}]
    assert split(2, 2, JAX_PLATFORMS="cuda", **{CUDA: "4,5", HIP: "2,3"}) == [{CUDA: "4"}, {CUDA: "5"}]
    assert split(2, 8, **{CUDA: ""}) == split(2, 8, **{CUDA: "-1"}) == [{}, {}]


def test_gpus_of_a_kind_are_listed_by_the_variable_of_that_kind() -> None:
    env = {CUDA: "0,1", HIP: "2,3"}
    names = [each[HIP] for each in split_devices(gpu_host(2), 1, 2, env, "rocm")]
    assert names == ["2", "3"]
    found: dict[str, Any] = {"devices": {"cuda": 0, "rocm": 2}, "visible": {HIP: "2,3"}, "platforms": ""}
    assert pick_gpus(found["devices"], own_settings(found)) == ("rocm", 2) and own_settings(found)[HIP] == "2,3"


@pytest.mark.parametrize(("gpus", "platforms"), [(8, "cpu"), (3, "cpu"), (0, "cpu"), (0, "")])
def test_without_gpus_there_is_nothing_to_split(gpus: int, platforms: str) -> None:
    assert split(2, gpus, JAX_PLATFORMS=platforms) == [{}, {}]


@pytest.mark.parametrize("gpus", [0, 1, 7, 8])
def test_one_process_takes_every_gpu(gpus: int) -> None:
    assert split(1, gpus, JAX_PLATFORMS="cuda") == [{}]


def test_listed_devices_are_not_split_again() -> None:
    cluster = gpu_host(2, local_devices=((0,), (2,)))
    assert split_devices(cluster, 1, 3, {"JAX_PLATFORMS": "cuda"}) == [{}, {}]


OR_A_LIST = ", or local_devices to list the GPUs of each process"


@pytest.mark.parametrize(
    ("processes", "gpus", "found", "fit"),
    [
        (3, 8, "8 GPUs for 3 processes", "one of 1, 2, 4, 8"),
        (8, 7, "7 GPUs for 8 processes", "one of 1, 7"),
        (4, 2, "2 GPUs for 4 processes", "one of 1, 2"),
        (2, 1, "1 GPU for 2 processes", "1"),
    ],
)
@pytest.mark.parametrize("env", [{}, {"JAX_PLATFORMS": "cuda"}])
def test_gpus_that_do_not_divide_are_refused(
    processes: int, gpus: int, found: str, fit: str, env: dict[str, str]
) -> None:
    with pytest.raises(UsageError) as caught:
        split(processes, gpus, **env)
    assert str(caught.value) == f"gpu-a: found {found}, wanted processes_per_host to be {fit}{OR_A_LIST}"


@pytest.mark.parametrize("platforms", ["cuda", "gpu", "rocm", "cuda,cpu"])
def test_gpus_that_were_asked_for_must_be_there(platforms: str) -> None:
    with pytest.raises(UsageError, match=f"^gpu-a: found no GPUs, but JAX_PLATFORMS is {platforms}; is the driver"):
        split(2, 0, JAX_PLATFORMS=platforms)


def test_warm_is_for_several_python_processes_on_a_host() -> None:
    plan = make_plan(TWO_HOSTS, JOB)
    assert [plan.is_warm(host) for host in TWO_HOSTS.hosts] == [True, False]
    assert not make_plan(TWO_HOSTS, JOB, cold=True).is_warm(TWO_HOSTS.hosts[0])
    assert not make_plan(TWO_HOSTS, Job(command=("sh",))).is_warm(TWO_HOSTS.hosts[0])


def test_what_runs_is_spelt_as_argv() -> None:
    assert make_plan(TWO_HOSTS, JOB).argv() == ["train.py", "--steps", "3"]
    assert make_plan(TWO_HOSTS, Job(module="a.b", args=("c",))).argv() == ["-m", "a.b", "c"]
    assert make_plan(TWO_HOSTS, Job(command=("sh", "-c", "x"))).argv() == ["sh", "-c", "x"]


def test_the_table_can_be_read_and_the_json_parsed() -> None:
    plan = make_plan(TWO_HOSTS, JOB)
    table = plan_table(plan)
    assert "pair (transport ssh)" in table and "KEY=[redacted]" in table and "3 on 2 hosts" in table
    rows = [line.split() for line in table.splitlines()[-3:]]
    assert rows == [
        ["0", "a", "0", "/opt/py", "warm"],
        ["1", "a", "1", "/opt/py", "warm"],
        ["2", "b", "0", "default", "cold"],
    ]
    shown = json.loads(json.dumps(plan_json(plan)))
    assert [process["host"] for process in shown["processes"]] == ["a", "a", "b"]
    assert shown["secrets"] == ["KEY"] and shown["env"] == {"A": "1"}
    assert (shown["grace"], shown["keep_going"]) == (3.0, False) and "3 s when asked to; all when one fails" in table
    going = plan_table(make_plan(replace(TWO_HOSTS, grace=20.0, keep_going=True), JOB))
    assert "20 s when asked to; the others go on when one fails" in going


def test_the_table_says_where_the_coordinator_is_or_that_it_is_not_known_yet() -> None:
    at = "process 0 at"
    assert f"{at} 127.0.0.1, on a port" in plan_table(make_plan(local_cluster(2), JOB))
    assert f"{at} 10.0.0.2, on a port" in plan_table(make_plan(TURNED, JOB))
    undecided = "an address of a that is chosen when the hosts have answered, on a port"
    assert f"{at} {undecided}" in plan_table(make_plan(TWO_HOSTS, JOB))
    assert plan_json(make_plan(TWO_HOSTS, JOB))["coordinator"]["address"] == "a"


def test_every_shipped_cluster_file_can_be_planned() -> None:
    for file in (REPO / "cluster_configs" / f"{name}.yaml" for name in ("local", "tpu-pod", "gpu-nodes")):
        cluster = read_cluster(file)
        assert cluster.run is not None
        assert len(make_plan(cluster, cluster.run).processes) == sum(host.processes for host in cluster.hosts)


def test_what_lets_somebody_in_is_in_no_plan() -> None:
    """The processes get all of it."""
    words = (
        "--source",
        "mix:npy:https://me:hidden@h/a=1,npy:https://h/b?X-Amz-Signature=hidden=2",
        "s3://me:hidden@b/x",
    )
    env = {**CREDENTIALS, "A": "1", "HTTPS_PROXY": "http://me:hidden@proxy:80/"}
    plan = make_plan(replace(TWO_HOSTS, env=env), Job(script="train.py", args=words))
    shown = plan_json(plan)
    assert "hidden" not in json.dumps(shown) and "hidden" not in plan_table(plan)
    assert shown["env"] == {**dict.fromkeys(CREDENTIALS, "[redacted]"), "A": "1", "HTTPS_PROXY": "http://…@proxy:80/"}
    assert shown["argv"][2:] == ["mix:npy:https://…@h/a=1,npy:https://h/b?X-Amz-Signature=…", "s3://…@b/x"]
    assert plan.argv()[1:] == list(words) and plan.env == env


def test_variables_that_are_credentials_are_known_by_their_names() -> None:
    env = {**CREDENTIALS, "TOKENIZERS_PARALLELISM": "false", "SECRETARY": "hidden by nobody", "HF_TOKEN": "short"}
    hidden = {"AWS_SECRET_ACCESS_KEY": "hidden", "WANDB_API_KEY": "hidden", "HF_TOKEN": "short"}
    assert find_credentials(env) == hidden, "a short value of a name of one's own may be any word of a log"
    assert find_credentials({"MY_DB_PASSWORD": "8 signs."}) == {"MY_DB_PASSWORD": "8 signs."}
    assert find_credentials({"EOS_TOKEN": "<|endoftext|>"}) == {}, "a word of a tokenizer"
