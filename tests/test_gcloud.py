"""The hosts of a TPU pod, from a stand-in `gcloud` that prints what the real one does."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from conftest import Launch, await_true, busyness, clean_env, is_alive

from hostmesh.launcher.cluster.file import read_cluster
from hostmesh.launcher.cluster.gcloud import Endpoint, TpuPod, find_endpoints
from hostmesh.launcher.cluster.model import Host, Ssh
from hostmesh.launcher.errors import ClusterError, UsageError

CONFIGS = Path(__file__).parent.parent / "cluster_configs"
FILE = "hosts: {gcloud: {tpu: v5e-16, zone: us-west4-a}}\npython: /opt/py\n"
POD = TpuPod("v5e-16", "us-west4-a")
INNER = ["10.182.0.41", "10.182.0.38", "10.182.0.40", "10.182.0.39"]
OUTER = ["34.125.10.7", "34.125.99.3", "34.16.200.118", "34.125.61.52"]
# Workers are listed by number, which need not be the order of their addresses.
NODE: dict[str, Any] = {
    "acceleratorConfig": {"topology": "4x4", "type": "V5LITE_POD"},
    "acceleratorType": "v5litepod-16",
    "apiVersion": "V2",
    "cidrBlock": "10.182.0.0/20",
    "createTime": "2025-03-04T09:12:55.120943Z",
    "health": "HEALTHY",
    "id": "4131071937093457293",
    "name": "projects/my-project/locations/us-west4-a/nodes/v5e-16",
    "networkConfig": {
        "enableExternalIps": True,
        "network": "projects/my-project/global/networks/default",
        "queueCount": 0,
        "subnetwork": "projects/my-project/regions/us-west4/subnetworks/default",
    },
    "networkEndpoints": [
        {"accessConfig": {"externalIp": outer}, "ipAddress": inner, "port": 8470}
        for outer, inner in zip(OUTER, INNER, strict=True)
    ],
    "runtimeVersion": "v2-alpha-tpuv5-lite",
    "schedulingConfig": {},
    "serviceAccount": {
        "email": "123456789012-compute@developer.gserviceaccount.com",
        "scope": ["https://www.googleapis.com/auth/cloud-platform"],
    },
    "shieldedInstanceConfig": {},
    "state": "READY",
}
# Records how it was called, then does what the test wants.
PROGRAM = """#!{python}
import json, os, sys, time
with open({calls!r}, "a") as calls:
    calls.write(json.dumps(sys.argv[1:]) + "\\n")
{body}
"""
Gcloud = Callable[[str], Path]


@pytest.fixture(autouse=True)
def gcloud(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Gcloud:
    """Installs a gcloud with the given body, in a home of the test's own; at first there is none."""
    (tmp_path / "bin").mkdir()
    (tmp_path / "home/.ssh").mkdir(parents=True)
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.chdir(tmp_path)

    def install(body: str) -> Path:
        program = tmp_path / "bin/gcloud"
        program.write_text(PROGRAM.format(python=sys.executable, calls=str(tmp_path / "calls"), body=body))
        program.chmod(0o755)
        return program

    return install


def answer(**changes: Any) -> str:
    return f"print({json.dumps({**NODE, **changes})!r})"


def calls() -> list[list[str]]:
    return [json.loads(line) for line in Path("calls").read_text().splitlines()] if Path("calls").exists() else []


def read(text: str = FILE) -> Any:
    Path("cluster.yaml").write_text(text)
    return read_cluster("cluster.yaml")


def problems(text: str = FILE) -> list[str]:
    with pytest.raises(ClusterError) as caught:
        read(text)
    return [problem.removeprefix("cluster.yaml:") for problem in caught.value.problems]


def problem_of_pod(pod: TpuPod = POD, timeout: float = 60) -> str:
    with pytest.raises(UsageError) as caught:
        find_endpoints(pod, timeout)
    return str(caught.value)


def test_a_pods_hosts_keep_the_order_of_its_workers(gcloud: Gcloud) -> None:
    gcloud(answer())
    hosts = read().hosts
    assert hosts == tuple(
        Host(outer, 1, "/opt/py", internal_address=inner) for outer, inner in zip(OUTER, INNER, strict=True)
    )


def test_gcloud_gets_an_argument_list(gcloud: Gcloud) -> None:
    gcloud(answer())
    read()
    read("hosts: {gcloud: {tpu: v5e-16, zone: us-west4-a, project: my-project, user: me}}")
    head = ["compute", "tpus", "tpu-vm", "describe", "v5e-16", "--zone=us-west4-a"]
    assert calls() == [[*head, "--format=json"], [*head, "--project=my-project", "--format=json"]]


def test_user_and_internal_addresses_can_be_asked_for(gcloud: Gcloud) -> None:
    endpoints = [{"ipAddress": inner, "port": 8470} for inner in INNER]
    gcloud(answer(networkEndpoints=endpoints))
    hosts = read("hosts: {gcloud: {tpu: v5e-16, zone: us-west4-a, internal: true, user: me}}").hosts
    assert hosts == tuple(Host(inner, 1, user="me", internal_address=inner) for inner in INNER)


def test_a_warning_beside_the_answer_does_no_harm(gcloud: Gcloud) -> None:
    gcloud(f"print('WARNING: update available', file=sys.stderr)\n{answer()}")
    assert find_endpoints(POD) == tuple(map(Endpoint, OUTER, INNER))


def test_the_key_gcloud_made_is_used_when_there_is_one(gcloud: Gcloud, tmp_path: Path) -> None:
    gcloud(answer())
    assert read().ssh == Ssh()
    key = tmp_path / "home/.ssh/google_compute_engine"
    key.touch()
    assert read(f"{FILE}ssh: {{at_once: 4}}").ssh == Ssh(identity_files=(str(key),), at_once=4)
    (tmp_path / "own").touch()
    assert read(f"{FILE}ssh: {{identity_files: own}}").ssh.identity_files == (str(tmp_path / "own"),)


def test_hosts_that_are_listed_do_not_get_that_key(tmp_path: Path) -> None:
    (tmp_path / "home/.ssh/google_compute_engine").touch()
    assert read("hosts: [a]").ssh == Ssh()


def test_the_line_that_tpu_pod_yaml_suggests_works(gcloud: Gcloud) -> None:
    gcloud(answer())
    text = (CONFIGS / "tpu-pod.yaml").read_text()
    swapped = text.replace("\nhosts: [", "\n# hosts: [").replace("# hosts: {gcloud", "hosts: {gcloud")
    assert [host.address for host in read(swapped).hosts] == OUTER
    assert calls()[0][4:6] == ["my-pod", "--zone=us-west4-a"]


def test_a_dry_run_asks_gcloud_too(gcloud: Gcloud, launch: Launch) -> None:
    gcloud(answer())
    Path("cluster.yaml").write_text(FILE)
    done = launch("--hosts", "cluster.yaml", "--dry-run", "--json", "-m", "m")
    assert done.returncode == 0, done.stderr
    shown = json.loads(done.stdout)
    assert [process["host"] for process in shown["processes"]] == OUTER
    assert shown["coordinator"]["address"] == INNER[0]


TPU = "one process on a TPU host: several need the TPU_* bounds variables, which are not supported yet"
LIST = "gcloud in a list of hosts, wanted it alone, as in hosts: {gcloud: {tpu: NAME, zone: ZONE}}"
A_NAME = "the TPU's name: lower-case letters, digits and -"
KEYS = "tpu, zone, project, internal, user"


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("hosts: {gcloud: {tpu: a}}", "1: hosts.gcloud: missing key 'zone'"),
        ("hosts: {gcloud: {zone: a}}", "1: hosts.gcloud: missing key 'tpu'"),
        ("hosts: {}", "1: hosts: found nothing, wanted a list of hosts, or one of gcloud, slurm, kubernetes"),
        ("hosts: {gcloud: v5e}", f"1: hosts.gcloud: found 'v5e' (text), wanted a mapping with keys from {KEYS}"),
        ("hosts: {gcloud: {tpu: a, zone: b, zome: c}}", "1: hosts.gcloud: unknown key 'zome'; nearest is 'zone'"),
        (
            "hosts: {gcloud: {tpu: a, zone: b}, address: c}",
            "1: hosts: unknown key 'address'; valid keys are gcloud, slurm, kubernetes",
        ),
        ("hosts: {gcloud: {tpu: --x, zone: b}}", f"1: hosts.gcloud.tpu: found '--x', wanted {A_NAME}"),
        ("hosts: {gcloud: {tpu: a b, zone: b}}", f"1: hosts.gcloud.tpu: found 'a b', wanted {A_NAME}"),
        (
            "hosts: {gcloud: {tpu: a, zone: 5}}",
            "1: hosts.gcloud.zone: found 5 (a whole number), wanted a zone such as us-west4-a",
        ),
        (
            "hosts: {gcloud: {tpu: a, zone: b, internal: 1}}",
            "1: hosts.gcloud.internal: found 1 (a whole number), wanted true or false",
        ),
        ("hosts:\n- a\n- gcloud: {tpu: a, zone: b}", f"3: hosts[1]: found {LIST}"),
        ("hosts: [{gcloud: {tpu: a, zone: b}}]", f"1: hosts[0]: found {LIST}"),
        (f"{FILE}processes_per_host: 4", f"3: processes_per_host: found 4 with {POD}, wanted {TPU}"),
        (
            f"{FILE}processes_per_host: 4\nenv: {{JAX_PLATFORMS: tpu}}",
            f"3: processes_per_host: found 4 with {POD}, wanted {TPU}",
        ),
        (
            f"{FILE}transport: docker",
            "3: transport: found 'docker', wanted ssh: that is how the hosts of a TPU are reached",
        ),
        (
            f"{FILE}local_devices: [[0], [1]]",
            "3: local_devices: found 2 lists of devices, wanted 1: one for each process on v5e-16",
        ),
        (f"{FILE}lease: 0", "3: lease: found 0, wanted 1 second or more"),
    ],
)
def test_gcloud_is_not_asked_for_a_bad_file(gcloud: Gcloud, text: str, problem: str) -> None:
    gcloud(answer())
    assert problems(text) == [problem]
    assert calls() == []


def test_a_problem_of_the_pod_is_one_of_the_files_line(gcloud: Gcloud) -> None:
    gcloud(answer(state="CREATING"))
    said = f"{POD}: found state CREATING, wanted READY; wait until it is"
    assert problems(f"name: pod\n{FILE}") == [f"2: hosts.gcloud: {said}"]


def test_a_missing_gcloud_is_named() -> None:
    assert problem_of_pod().startswith(
        f"{POD}: found no gcloud command on PATH; install the Google Cloud CLI and log in"
    )


def test_a_gcloud_that_cannot_be_started_is_named(gcloud: Gcloud) -> None:
    gcloud("").write_text("no program at all")
    assert problem_of_pod() == f"{POD}: gcloud cannot be started: Exec format error"


def test_a_failing_gcloud_says_why(gcloud: Gcloud) -> None:
    why = "ERROR: (gcloud.compute.tpus.tpu-vm.describe) PERMISSION_DENIED: Permission denied on resource"
    details = [f"  detail {number}" for number in range(20)]
    said = "\n".join(["WARNING: old", "", why, "", "- type \x1b[2J", *details])
    gcloud(f"sys.exit({said!r})")
    shown = [f"  {line}" for line in (why, "- type  [2J", *details[:4])]
    assert problem_of_pod().splitlines() == [f"{POD}: gcloud exited with 1", *shown]


def test_a_gcloud_that_crashes_shows_its_last_lines(gcloud: Gcloud) -> None:
    gcloud("for number in range(20): print('line', number, file=sys.stderr)\nsys.exit(1)")
    shown = [f"  line {number}" for number in range(14, 20)]
    assert problem_of_pod().splitlines() == [f"{POD}: gcloud exited with 1", *shown]


def test_a_gcloud_that_fails_silently_is_named(gcloud: Gcloud) -> None:
    gcloud("sys.exit(3)")
    assert problem_of_pod() == f"{POD}: gcloud exited with 3\n  it said nothing about why"


def test_a_gcloud_that_hangs_is_ended_with_all_it_started(gcloud: Gcloud) -> None:
    gcloud("child = os.fork()\nif child: open('pid', 'w').write(str(child))\ntime.sleep(600)")
    began = time.monotonic()
    said = problem_of_pod(timeout=2)
    assert time.monotonic() - began < 20 * busyness()
    command = "gcloud compute tpus tpu-vm describe v5e-16 --zone=us-west4-a --format=json"
    assert said == f"{POD}: gcloud gave no answer within 2 s; try it yourself: {command}"
    child = int(Path("pid").read_text())
    await_true(lambda: not is_alive(child), 5, "the child of gcloud is gone")


def test_gcloud_can_ask_nobody_anything(gcloud: Gcloud) -> None:
    """Neither on stdin nor on a terminal: it would wait for an answer behind the launcher's back."""
    gcloud(f"assert sys.stdin.read() == '' and os.getsid(0) == os.getpid()\n{answer()}")
    ask = f"from hostmesh.launcher.cluster.gcloud import *; print(len(find_endpoints({POD!r})))"
    done = subprocess.run(
        [sys.executable, "-c", ask], env=clean_env(), input="y\n", capture_output=True, text=True, timeout=60
    )
    assert done.stdout == "4\n", done.stderr


@pytest.mark.parametrize(
    ("state", "fix"),
    [
        ("STOPPED", "start it: gcloud compute tpus tpu-vm start v5e-16 --zone=us-west4-a"),
        ("PREEMPTED", "it is gone; delete it and create it again"),
        ("RESTARTING", "wait until it is"),
        (None, "wait until it is"),
    ],
)
def test_a_pod_that_is_not_ready_is_refused(gcloud: Gcloud, state: str | None, fix: str) -> None:
    text = json.dumps({**NODE, "state": state})
    gcloud(f"print({text!r})")
    assert problem_of_pod() == f"{POD}: found state {state}, wanted READY; {fix}"


def test_hosts_without_external_addresses_are_named(gcloud: Gcloud) -> None:
    endpoints = [dict(endpoint) for endpoint in NODE["networkEndpoints"]]
    del endpoints[1]["accessConfig"]
    endpoints[3]["accessConfig"] = {}
    gcloud(answer(networkEndpoints=endpoints))
    wanted = "an external address; write internal: true to use the internal ones, from inside their network"
    assert problem_of_pod() == f"{POD}: found none for worker 1, 3, wanted {wanted}"


@pytest.mark.parametrize("text", ["", "not json", "[]", "null", '"text"', "{", "[" * 100_000])
def test_an_answer_that_is_no_description_is_refused(gcloud: Gcloud, text: str) -> None:
    gcloud(f"print({text!r})")
    assert problem_of_pod().startswith(f"{POD}: gcloud printed no JSON description of it")


@pytest.mark.parametrize("endpoints", [None, [], {}, "text"])
def test_a_pod_without_endpoints_is_refused(gcloud: Gcloud, endpoints: Any) -> None:
    text = json.dumps({**NODE, "networkEndpoints": endpoints})
    gcloud(f"print({text!r})")
    assert problem_of_pod() == f"{POD}: gcloud lists no networkEndpoints, wanted one for each host"


@pytest.mark.parametrize("entry", [{}, None, {"ipAddress": 5}, {"ipAddress": "-oProxyCommand=x"}, {"ipAddress": ""}])
def test_an_address_that_is_none_is_refused(gcloud: Gcloud, entry: Any) -> None:
    text = json.dumps({**NODE, "networkEndpoints": [NODE["networkEndpoints"][0], entry]})
    gcloud(f"print({text!r})")
    assert problem_of_pod() == f"{POD}: found none for worker 1, wanted an internal address (ipAddress)"


def test_nothing_of_gcloud_is_left_when_it_answered(gcloud: Gcloud) -> None:
    gcloud(f"open('pid', 'w').write(str(os.getpid()))\n{answer()}")
    find_endpoints(POD)
    assert not os.path.exists(f"/proc/{Path('pid').read_text()}")
