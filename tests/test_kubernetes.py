"""Kubernetes as an engine, with a stand-in for kubectl: what is asked for, said while waiting, and given back."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import yaml
from conftest import HANGS, LAUNCH, Launch, Script, Start, await_true, busyness, clean_env, processes_of

from hostmesh.launcher.cluster.file import read_cluster
from hostmesh.launcher.cluster.model import Cluster, Kubernetes
from hostmesh.launcher.engines.kubernetes import manifests
from hostmesh.launcher.engines.kubernetes.manifests import make_manifests
from hostmesh.launcher.engines.kubernetes.pods import explain_end, find_hopeless, is_running, tell_waiting
from hostmesh.launcher.errors import ClusterError

FAKE = Path(__file__).parent / "fake_kubectl.py"
POD = {"apiVersion": "v1", "kind": "Pod", "spec": {"containers": [{"name": "main", "image": "a/b:1"}]}}


class FakeKubernetes:
    def __init__(self, folder: Path) -> None:
        self.folder = folder
        (folder / "calls").touch()

    @property
    def objects(self) -> list[str]:
        return sorted(path.stem for path in self.folder.glob("*.object"))

    @property
    def calls(self) -> list[list[str]]:
        return [json.loads(line) for line in (self.folder / "calls").read_text().splitlines()]

    def say(self, *statuses: dict[str, Any]) -> None:
        """What pods are, at each look; the last one stays."""
        (self.folder / "statuses").write_text("\n".join(map(json.dumps, statuses)))


@pytest.fixture
def kubernetes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> FakeKubernetes:
    folder, bin_folder = tmp_path / "kubernetes", tmp_path / "bin"
    folder.mkdir()
    bin_folder.mkdir()
    program = bin_folder / "kubectl"
    program.write_text(f'#!/bin/sh\nexec {sys.executable} -I -S {FAKE} "$@"\n')
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{bin_folder}:{os.environ['PATH']}")
    monkeypatch.setenv("FAKE_KUBECTL", str(folder))
    return FakeKubernetes(folder)


def write(folder: Path, **settings: Any) -> str:
    hosts = {"pods": 2, "image": "a/b:1", **settings}
    given = {"hosts": {"kubernetes": {k: v for k, v in hosts.items() if v is not None}}, "python": sys.executable}
    path = folder / "cluster.yaml"
    path.write_text(yaml.safe_dump(given))
    return str(path)


def waiting(reason: str, message: str = "") -> dict[str, Any]:
    state = {"waiting": {"reason": reason, "message": message}}
    return {"phase": "Pending", "containerStatuses": [{"name": "host", "state": state}]}


UNSCHEDULABLE = {
    "phase": "Pending",
    "conditions": [
        {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": "0/1 nodes are available"}
    ],
}
RUNNING = {"phase": "Running", "containerStatuses": [{"name": "host", "state": {"running": {}}}]}


# A run.


def test_a_run_makes_its_pods_uses_them_and_deletes_them(
    kubernetes: FakeKubernetes, launch: Launch, tmp_path: Path
) -> None:
    done = launch("--hosts", write(tmp_path), "--", "sh", "-c", "echo I am $HOSTMESH_PROCESS_ID")
    assert done.returncode == 0, done.stderr
    assert "I am 0" in done.stdout and "I am 1" in done.stdout
    made = [call[0] for call in kubernetes.calls]
    assert made.count("create") == 3 and made.count("exec") == 2 and made.count("delete") == 1
    assert kubernetes.objects == []


def test_environment_and_secrets_are_in_no_manifest_and_no_argument(
    kubernetes: FakeKubernetes, launch: Launch, tmp_path: Path
) -> None:
    file = Path(write(tmp_path))
    settings = {**yaml.safe_load(file.read_text()), "env": {"WORD": "plain-word"}, "secrets": ["API_TOKEN"]}
    file.write_text(yaml.safe_dump(settings))
    done = launch("--hosts", str(file), "--", "sh", "-c", "test $WORD.$API_TOKEN = plain-word.hush-hush",
                  env={"API_TOKEN": "hush-hush"})  # fmt: skip
    assert done.returncode == 0, done.stderr
    calls = (kubernetes.folder / "calls").read_text()
    assert "hush-hush" not in calls and "plain-word" not in calls


def test_why_pods_wait_is_told_once_in_the_engines_words(
    kubernetes: FakeKubernetes, launch: Launch, tmp_path: Path
) -> None:
    (kubernetes.folder / "quota").touch()
    kubernetes.say(UNSCHEDULABLE, UNSCHEDULABLE, waiting("ErrImagePull", "no such host"), RUNNING)
    done = launch("--hosts", write(tmp_path), "--", "true")
    assert done.returncode == 0, done.stderr
    told = [line for line in done.stderr.splitlines() if "waiting for 2 pods" in line]
    assert len(told) == 3
    assert "exceeded quota: small" in told[0]
    assert "Unschedulable (0/1 nodes are available)" in told[1]
    assert "ErrImagePull (no such host)" in told[2]


def test_a_hopeless_pod_ends_the_wait_at_once(kubernetes: FakeKubernetes, launch: Launch, tmp_path: Path) -> None:
    kubernetes.say(waiting("InvalidImageName", 'couldn\'t parse image reference "A:B:C"'))
    done = launch("--hosts", write(tmp_path), "--", "true")
    assert done.returncode == 2 and "cannot run: InvalidImageName" in done.stderr
    assert kubernetes.objects == []


def test_pods_that_never_run_are_given_up_after_the_start_timeout(
    kubernetes: FakeKubernetes, launch: Launch, tmp_path: Path
) -> None:
    kubernetes.say(UNSCHEDULABLE)
    done = launch("--hosts", write(tmp_path, start_timeout=5), "--", "true")
    assert done.returncode == 69, done.stderr
    assert "did not all run within 5 s" in done.stderr.splitlines()[-1]
    assert "Unschedulable (0/1 nodes are available)" in done.stderr.splitlines()[-1]
    assert kubernetes.objects == []


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_request_to_stop_while_waiting_deletes_what_was_made(
    kubernetes: FakeKubernetes, tmp_path: Path, number: int, code: int
) -> None:
    kubernetes.say(UNSCHEDULABLE)
    argv = [*LAUNCH, "--hosts", write(tmp_path), "--", "true"]
    launcher = subprocess.Popen(argv, cwd=tmp_path, env=clean_env(), stderr=subprocess.PIPE)
    try:
        await_true(lambda: len(kubernetes.objects) == 3, 30, "pods that wait")
        launcher.send_signal(number)
        assert launcher.wait(HANGS) == code
    finally:
        launcher.kill()
        launcher.communicate()
    assert kubernetes.objects == []


def test_a_killed_launchers_pods_are_deleted(
    kubernetes: FakeKubernetes, start: Start, script: Script, tmp_path: Path
) -> None:
    run = start("--hosts", write(tmp_path), script("print('up', flush=True)\nimport time\ntime.sleep(600)"))
    await_true(lambda: run.stderr.count("] up") == 2, 60, "both processes")
    assert kubernetes.objects
    run.launcher.kill()
    await_true(lambda: not kubernetes.objects, 10, "the pods are deleted")
    await_true(lambda: not processes_of(run.id), 30, "no process is left")


def test_a_deleted_pod_is_a_lost_host_with_the_engines_word(
    kubernetes: FakeKubernetes, start: Start, script: Script, tmp_path: Path
) -> None:
    run = start("--hosts", write(tmp_path), script("print('up', flush=True)\nimport time\ntime.sleep(600)"))
    await_true(lambda: run.stderr.count("] up") == 2, 60, "both processes")
    evicted = {"phase": "Failed", "reason": "Evicted", "message": "The node was low on resource: memory."}
    (kubernetes.folder / "after").write_text(json.dumps(evicted))
    victim = run.await_event("host connected", host="pod-1")
    os.kill(int(victim["guardian_pid"]), signal.SIGKILL)
    assert run.wait() == 69
    wanted = "pod-1 lost its agent; Kubernetes says: evicted (The node was low on resource: memory.)"
    assert wanted in run.result["message"] and run.result["host"] == "pod-1"
    assert kubernetes.objects == []


def test_a_check_gives_its_pods_back(kubernetes: FakeKubernetes, launch: Launch, tmp_path: Path) -> None:
    done = launch("check", "--hosts", write(tmp_path))
    assert done.returncode == 0 and "all 2 hosts are fine" in done.stdout, done.stderr
    assert kubernetes.objects == [] and [call[0] for call in kubernetes.calls].count("delete") == 1


def test_the_pods_of_a_selector_are_used_and_left(kubernetes: FakeKubernetes, launch: Launch, tmp_path: Path) -> None:
    for name in ("b", "a"):
        pod = {"kind": "Pod", "metadata": {"name": f"mine-{name}"}}
        (kubernetes.folder / f"pod-mine-{name}.object").write_text(json.dumps(pod))
    file = write(tmp_path, pods=None, image=None, selector="app=mine")
    assert [host.address for host in read_cluster(file).hosts] == ["mine-a", "mine-b"]
    done = launch("--hosts", file, "--", "true")
    assert done.returncode == 0, done.stderr
    assert kubernetes.objects == ["pod-mine-a", "pod-mine-b"]


# Bad input.


@pytest.mark.parametrize(
    ("settings", "wanted"),
    [
        ({"context": "nowhere"}, 'context "nowhere" does not exist; kubectl config get-contexts'),
        ({"namespace": "missing"}, 'namespaces "missing" not found; kubectl get namespaces'),
    ],
)
def test_a_cluster_that_is_not_there_gets_one_line(
    kubernetes: FakeKubernetes, launch: Launch, tmp_path: Path, settings: dict[str, str], wanted: str
) -> None:
    done = launch("--hosts", write(tmp_path, **settings), "--", "true")
    assert done.returncode == 2 and wanted in done.stderr and "Traceback" not in done.stderr
    assert kubernetes.objects == []


def test_a_machine_without_kubectl_says_so(launch: Launch, tmp_path: Path) -> None:
    bin_folder = tmp_path / "bin"
    bin_folder.mkdir()
    for name in ("sh", "git"):
        (bin_folder / name).symlink_to(shutil.which(name) or "/bin/sh")
    done = launch("--hosts", write(tmp_path), "--", "true", env={"PATH": str(bin_folder)})
    assert done.returncode == 2 and "found no program kubectl on this machine" in done.stderr


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("{pods: 0, image: a}", "hosts.kubernetes.pods: found 0, wanted from 1 to 10000 pods"),
        ("{pods: 2, selector: a=b, image: a}", "hosts.kubernetes: found both, wanted either pods"),
        ("{image: a}", "hosts.kubernetes: found neither, wanted either pods"),
        ("{pods: 2}", "hosts.kubernetes: found no image, wanted an image, or a template"),
        ("{selector: a=b, image: a}", "hosts.kubernetes.image: pods that are there already are taken as they are"),
        ("{pods: 2, image: a, as: deployment}", "hosts.kubernetes.as: found 'deployment', wanted one of pods, job"),
        ("{pods: 2, image: a, queue: q}", "hosts.kubernetes.queue: bare pods do not wait in a queue"),
        ("{pods: 2, image: a, template: none.yaml}", "hosts.kubernetes.template: found 'none.yaml', wanted a file"),
        ("{pods: 2, image: a, template: job.yaml}", "template: found kind Job, wanted a pod's manifest"),
        ("{pods: 2, image: a, template: empty.yaml}", "template: found no spec.containers, wanted a pod's manifest"),
        ("{pods: 2, image: -a}", "hosts.kubernetes.image: found '-a', wanted one word"),
        ("{pod: 2}", "hosts.kubernetes: unknown key 'pod'; nearest is 'pods'"),
        ("{pods: 2, image: a}\ntransport: ssh", "2: transport: found 'ssh', wanted kubernetes"),
        ("{pods: 2, image: a}\nssh: {}", "2: ssh: transport kubernetes does not use SSH"),
    ],
)
def test_a_bad_setting_gets_a_line_of_its_own(tmp_path: Path, text: str, wanted: str) -> None:
    (tmp_path / "job.yaml").write_text("kind: Job\nspec: {}\n")
    (tmp_path / "empty.yaml").write_text("kind: Pod\nspec: {containers: []}\n")
    file = tmp_path / "cluster.yaml"
    head, _, rest = text.partition("\n")
    file.write_text(f"hosts: {{kubernetes: {head}}}\n{rest}\n")
    with pytest.raises(ClusterError) as error:
        read_cluster(file)
    assert wanted in str(error.value)


def test_a_dry_run_prints_the_manifest_and_starts_nothing(
    kubernetes: FakeKubernetes, launch: Launch, tmp_path: Path
) -> None:
    (tmp_path / "pod.yaml").write_text(yaml.safe_dump({**POD, "metadata": {"labels": {"team": "red"}}}))
    file = write(tmp_path, template="pod.yaml", image=None)
    done = launch("--hosts", file, "--dry-run", "--json", "--", "true")
    pods = [each for each in json.loads(done.stdout)["manifest"] if each["kind"] == "Pod"]
    assert [pod["metadata"]["name"] for pod in pods] == ["hostmesh-RUN-0", "hostmesh-RUN-1"]
    assert pods[0]["metadata"]["labels"]["team"] == "red"
    assert '"name": "hostmesh-RUN-1"' in launch("--hosts", file, "--dry-run", "--", "true").stdout
    assert kubernetes.calls == []


# Manifests.


def test_what_a_template_says_passes_through() -> None:
    spec = {"nodeSelector": {"gpu": "yes"}, "tolerations": [{"operator": "Exists"}]}
    containers = [{"name": "main", "image": "a", "args": ["x"], "resources": {"limits": {"memory": "1Gi"}}}]
    settings = Kubernetes(pods=1, image="b", template={**POD, "spec": {**spec, "containers": containers}})
    _, pod = make_manifests(settings, "r", 10.0)
    assert pod["spec"]["nodeSelector"] == {"gpu": "yes"} and pod["spec"]["tolerations"] == [{"operator": "Exists"}]
    assert pod["spec"]["restartPolicy"] == "Never"
    [container] = pod["spec"]["containers"]
    assert container["image"] == "b" and container["resources"] == {"limits": {"memory": "1Gi"}}
    assert container["command"][0] == "python3" and "args" not in container
    assert containers[0]["args"] == ["x"], "the template itself is left as it is"


def test_a_job_and_a_job_set_make_as_many_indexed_pods() -> None:
    job, service = make_manifests(Kubernetes(pods=3, image="a", kind="job", queue="q"), "r", 10.0)
    assert job["spec"]["completionMode"] == "Indexed" and job["spec"]["completions"] == 3
    assert job["metadata"]["labels"]["kueue.x-k8s.io/queue-name"] == "q" and job["spec"]["suspend"] is True
    assert service["spec"]["clusterIP"] == "None"
    [jobset] = make_manifests(Kubernetes(pods=3, image="a", kind="jobset"), "r", 10.0)
    assert jobset["spec"]["replicatedJobs"][0]["template"]["spec"]["parallelism"] == 3
    assert "suspend" not in jobset["spec"]


def test_a_pod_that_nobody_holds_leaves_by_itself() -> None:
    """In a process namespace of its own, as in a container; there the first process is number 1."""
    unshare = ["unshare", "--pid", "--fork", "--mount-proc", "--kill-child"]
    if subprocess.run([*unshare, "true"], capture_output=True).returncode:
        pytest.skip("no process namespaces here")
    began = time.monotonic()
    subprocess.run([*unshare, sys.executable, "-c", manifests.HOLD, "1", "1"], timeout=HANGS, check=True)
    assert time.monotonic() - began < 10 * busyness()
    text = f"{sys.executable} -c 'import time; time.sleep(4)' & exec {sys.executable} -c \"$0\" 1 1"
    began = time.monotonic()
    subprocess.run([*unshare, "sh", "-c", text, manifests.HOLD], timeout=HANGS, check=True)
    assert 4 < time.monotonic() - began < 15 * busyness()


# What a pod's status says.


def ended(**terminated: Any) -> dict[str, Any]:
    return {"status": {"phase": "Failed", "containerStatuses": [{"name": "m", "state": {"terminated": terminated}}]}}


@pytest.mark.parametrize(
    ("pod", "wanted"),
    [
        ({"status": {"reason": "Evicted", "message": "low on memory"}}, "evicted (low on memory)"),
        (ended(reason="OOMKilled", exitCode=137), "OOMKilled (container m went beyond its memory limit)"),
        (ended(reason="Error", exitCode=1), "container m ended with exit code 1 (Error)"),
        ({"metadata": {"deletionTimestamp": "now"}, "status": {"phase": "Running"}}, "the pod was deleted"),
        (
            {
                "metadata": {"deletionTimestamp": "now"},
                "status": {
                    "conditions": [
                        {
                            "type": "DisruptionTarget",
                            "status": "True",
                            "reason": "PreemptionByScheduler",
                            "message": "preempting",
                        }
                    ]
                },
            },
            "preempted: PreemptionByScheduler (preempting)",
        ),  # fmt: skip
        ({"status": RUNNING}, None),
    ],
)
def test_why_a_pod_is_gone(pod: dict[str, Any], wanted: str | None) -> None:
    assert explain_end(pod) == wanted


def test_a_pod_runs_only_when_its_containers_do() -> None:
    assert is_running({"status": RUNNING})
    assert not is_running({"status": UNSCHEDULABLE}) and not is_running({"status": {"phase": "Running"}})
    assert not is_running({"metadata": {"deletionTimestamp": "now"}, "status": RUNNING})
    assert tell_waiting({}) == "Pending" and find_hopeless({"status": RUNNING}) is None


def test_a_cluster_of_pods_is_one_host_a_pod(tmp_path: Path) -> None:
    cluster = read_cluster(write(tmp_path, pods=3))
    assert isinstance(cluster, Cluster) and cluster.transport == "kubernetes"
    assert [host.address for host in cluster.hosts] == ["pod-0", "pod-1", "pod-2"]


# What is published about manifests.


@pytest.mark.parametrize("kind", ["pods", "job"])
def test_manifests_are_as_the_published_schemas_want_them(kind: str) -> None:
    validate = pytest.importorskip("kubernetes_validate")
    queue = None if kind == "pods" else "q"
    given = {**POD, "metadata": {"labels": {"team": "red"}, "annotations": {"note": "x"}}}
    for manifest in make_manifests(Kubernetes(pods=2, template=given, kind=kind, queue=queue), "r", 10.0):
        validate.validate(manifest, "1.32", strict=True)
        wrong = {**manifest, "spec": {**manifest["spec"], "nonsense": 1}}
        with pytest.raises(validate.ValidationError):
            validate.validate(wrong, "1.32", strict=True)


def test_a_job_set_is_as_its_published_model_wants_it() -> None:
    models = pytest.importorskip("kubeflow_trainer_api.models")
    [jobset] = make_manifests(Kubernetes(pods=2, template=POD, kind="jobset", queue="q"), "r", 10.0)
    read = models.JobsetV1alpha2JobSet.from_dict(jobset)
    assert read.to_dict() == jobset
