"""The plan: ids, hosts, environment and coordinator, from a cluster and a job alone."""

from __future__ import annotations

import json
from pathlib import Path
from types import MappingProxyType

from conftest import REPO

from launcher.cluster import Cluster, Host, Job, local_cluster, read_cluster
from launcher.plan import make_plan, plan_json, plan_table
from worker.identity import Identity

TWO_HOSTS = Cluster(
    (Host("a", 2, python="/opt/py"), Host("b", 1, internal_address="10.0.0.2")),
    name="pair",
    transport="ssh",
    env=MappingProxyType({"A": "1"}),
    secrets=("KEY",),
)
JOB = Job(script="train.py", args=("--steps", "3"))


def test_process_ids_are_dense_and_follow_the_hosts() -> None:
    plan = make_plan(TWO_HOSTS, JOB)
    assert [(p.process_id, p.host, p.local_process_id) for p in plan.processes] == [(0, 0, 0), (1, 0, 1), (2, 1, 0)]


def test_the_coordinator_is_process_0_at_an_address_others_reach() -> None:
    assert make_plan(local_cluster(2), JOB).coordinator == "127.0.0.1"
    assert make_plan(TWO_HOSTS, JOB).coordinator == "a"
    turned = Cluster(TWO_HOSTS.hosts[::-1], transport="ssh")
    assert make_plan(turned, JOB).coordinator == "10.0.0.2"


def test_an_ipv6_coordinator_gets_brackets() -> None:
    plan = make_plan(Cluster((Host("fe80::1", 1),), transport="ssh"), JOB)
    assert plan.identity(plan.processes[0], "r", 1, 99).coordinator_address == "[fe80::1]:99"


def test_identity_survives_the_environment() -> None:
    plan = make_plan(TWO_HOSTS, JOB)
    identity = plan.identity(plan.processes[2], "1116-abc", 2, 1234)
    assert Identity.from_env(identity.to_env()) == identity
    assert identity == Identity("1116-abc", 2, "b", 2, 3, 0, "a:1234")
    assert Identity.from_env({}) is None


def test_devices_become_a_variable_and_win_over_the_file() -> None:
    cluster = Cluster((Host("a", 1),), env=MappingProxyType({"JAX_NUM_CPU_DEVICES": "2"}))
    assert make_plan(cluster, JOB, devices=4).env["JAX_NUM_CPU_DEVICES"] == "4"
    assert make_plan(cluster, JOB).env["JAX_NUM_CPU_DEVICES"] == "2"


def test_listed_devices_are_each_process_own() -> None:
    cluster = Cluster((Host("a", 2),), local_devices=((0, 1), (2, 3)))
    assert [p.env for p in make_plan(cluster, JOB).processes] == [
        {"JAX_LOCAL_DEVICE_IDS": "0,1"},
        {"JAX_LOCAL_DEVICE_IDS": "2,3"},
    ]


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


def test_every_file_in_cluster_configs_can_be_planned() -> None:
    files = sorted(Path(REPO / "cluster_configs").glob("*.yaml"))
    assert len(files) >= 3
    for file in files:
        cluster = read_cluster(file)
        assert cluster.run is not None
        assert len(make_plan(cluster, cluster.run).processes) == sum(host.processes for host in cluster.hosts)
