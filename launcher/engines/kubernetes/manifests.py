"""The manifests of a run: its pods, or the job or job set that makes them, and what takes them along; pure."""

from __future__ import annotations

import copy
from typing import Any

from hostmesh.launcher.cluster.model import Kubernetes

RUN_LABEL, HOST_LABEL = "hostmesh/run", "hostmesh/host"
QUEUE_LABEL = "kueue.x-k8s.io/queue-name"
INDEX = "batch.kubernetes.io/job-completion-index"
CONTAINER = "host"
# Seconds that a finished job stays, and longer than which an owner is not without a launcher.
KEPT, OWNER_LEASE = 10, 30
# A pod's first process. It leaves when nobody else has been in its container for so many seconds: an agent ends when
# it no longer hears of its launcher. Before one comes it waits longer. As the first process it also reaps orphans.
HOLD = """
import os, signal, sys, time
first, lease = float(sys.argv[1]), float(sys.argv[2])
signal.signal(signal.SIGTERM, lambda *_: os._exit(0))
until = time.monotonic() + first
while time.monotonic() < until:
    try:
        while os.waitpid(-1, os.WNOHANG)[0]: pass
    except ChildProcessError: pass
    if any(name.isdigit() and int(name) != os.getpid() for name in os.listdir("/proc")):
        until = time.monotonic() + lease
    time.sleep(0.5)
"""


def name_of(run_id: str, number: int | None = None) -> str:
    return f"hostmesh-{run_id}" if number is None else f"hostmesh-{run_id}-{number}"


def make_manifests(settings: Kubernetes, run_id: str, lease: float) -> list[dict[str, Any]]:
    """In the order in which they are made; the first one owns all others."""
    if settings.kind == "job":
        return [make_job(settings, run_id, lease), make_service(run_id)]
    if settings.kind == "jobset":
        return [make_jobset(settings, run_id, lease)]
    return [make_owner(run_id), *(make_pod(settings, run_id, number, lease) for number in range(settings.pods))]


def make_owner(run_id: str) -> dict[str, Any]:
    """A job without pods. Its deadline is put off while a launcher is there; past it, the job and all it owns go."""
    container = {"name": "none", "image": "none"}
    return {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": _metadata(run_id),
        "spec": {
            "parallelism": 0,
            "completions": 1,
            "activeDeadlineSeconds": OWNER_LEASE,
            "ttlSecondsAfterFinished": 0,
            "template": {"spec": {"restartPolicy": "Never", "containers": [container]}},
        },
    }


def make_pod(settings: Kubernetes, run_id: str, number: int, lease: float) -> dict[str, Any]:
    pod = _make_template(settings, run_id, lease)
    pod["metadata"]["labels"][HOST_LABEL] = str(number)
    pod["metadata"]["name"] = name_of(run_id, number)
    return {"apiVersion": "v1", "kind": "Pod", **pod}


def make_job(settings: Kubernetes, run_id: str, lease: float) -> dict[str, Any]:
    """Indexed: each of its pods knows its number."""
    template = _make_template(settings, run_id, lease)
    template["spec"]["subdomain"] = name_of(run_id)
    queue = {QUEUE_LABEL: settings.queue} if settings.queue else {}
    spec = {**_job_spec(settings, template), "ttlSecondsAfterFinished": KEPT}
    spec |= {"suspend": True} if settings.queue else {}  # until Kueue lets it go
    return {"apiVersion": "batch/v1", "kind": "Job", "metadata": _metadata(run_id, queue), "spec": spec}


def make_service(run_id: str) -> dict[str, Any]:
    """Headless: it gives each pod of a job a name."""
    spec = {"clusterIP": "None", "selector": {RUN_LABEL: run_id}}
    return {"apiVersion": "v1", "kind": "Service", "metadata": _metadata(run_id), "spec": spec}


def make_jobset(settings: Kubernetes, run_id: str, lease: float) -> dict[str, Any]:
    queue = {QUEUE_LABEL: settings.queue} if settings.queue else {}
    job = {"template": {"spec": _job_spec(settings, _make_template(settings, run_id, lease))}}
    return {
        "apiVersion": "jobset.x-k8s.io/v1alpha2",
        "kind": "JobSet",
        "metadata": _metadata(run_id, queue),
        "spec": {
            "failurePolicy": {"maxRestarts": 0},
            "ttlSecondsAfterFinished": KEPT,
            **({"suspend": True} if settings.queue else {}),
            "replicatedJobs": [{"name": CONTAINER, "replicas": 1, **job}],
        },
    }


def own(manifest: dict[str, Any], owner: dict[str, Any]) -> dict[str, Any]:
    """The manifest of something that goes when its owner, as the cluster made it, goes."""
    metadata = owner["metadata"]
    reference = {
        "apiVersion": owner["apiVersion"],
        "kind": owner["kind"],
        "name": metadata["name"],
        "uid": metadata["uid"],
    }
    return {**manifest, "metadata": {**manifest["metadata"], "ownerReferences": [reference]}}


def pick_container(settings: Kubernetes, containers: list[dict[str, Any]]) -> dict[str, Any]:
    return next((each for each in containers if each.get("name") == settings.container), containers[0])


def _metadata(run_id: str, labels: dict[str, str] | None = None) -> dict[str, Any]:
    return {"name": name_of(run_id), "labels": {RUN_LABEL: run_id, **(labels or {})}}


def _job_spec(settings: Kubernetes, template: dict[str, Any]) -> dict[str, Any]:
    count = settings.pods
    indexed = {"completionMode": "Indexed", "parallelism": count, "completions": count, "backoffLimit": 0}
    return {**indexed, "template": template}


def _make_template(settings: Kubernetes, run_id: str, lease: float) -> dict[str, Any]:
    given = copy.deepcopy(dict(settings.template))
    metadata, spec = given.get("metadata") or {}, given.get("spec") or {}
    kept = {name: metadata[name] for name in ("annotations",) if name in metadata}
    spec.setdefault("containers", [{"name": settings.container or CONTAINER}])
    container = pick_container(settings, spec["containers"])
    if settings.image:
        container["image"] = settings.image
    container.pop("args", None)
    container["command"] = ["python3", "-c", HOLD.strip(), f"{settings.start_timeout + 60:g}", f"{lease:g}"]
    labels = {**(metadata.get("labels") or {}), RUN_LABEL: run_id}
    return {"metadata": {**kept, "labels": labels}, "spec": {**spec, "restartPolicy": "Never"}}
