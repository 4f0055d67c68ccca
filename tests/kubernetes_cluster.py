"""A real Kubernetes for tests: that of docker/kubernetes.sh, or the one that HOSTMESH_KUBECONFIG names."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from conftest import REPO

SCRIPT = REPO / "docker" / "kubernetes.sh"
FOLDER = REPO / "docker" / ".kubernetes"
IMAGE = os.environ.get("HOSTMESH_POD_IMAGE", "hostmesh-host")
CONTAINER = {"name": "host", "image": IMAGE, "imagePullPolicy": os.environ.get("HOSTMESH_PULL", "Never")}
LEASE = 15


class KubernetesCluster:
    def __init__(self, kubeconfig: str) -> None:
        self.env = {"KUBECONFIG": kubeconfig, "PATH": f"{FOLDER / 'run' / 'bin'}:{os.environ['PATH']}"}

    def kubectl(self, *args: str) -> str:
        done = subprocess.run(
            ["kubectl", *args], env={**os.environ, **self.env}, capture_output=True, text=True, timeout=60
        )
        assert done.returncode == 0, f"kubectl {' '.join(args)}: {done.stdout}{done.stderr}"
        return done.stdout

    def write_file(self, folder: Path, pods: int = 4, spec: dict[str, Any] | None = None, **engine: Any) -> str:
        """A cluster file in a test's folder; `spec` is added to that of its pods, `resources` to their container."""
        given = dict(spec or {})
        container = {**CONTAINER, **({"resources": given.pop("resources")} if "resources" in given else {})}
        pod = {"apiVersion": "v1", "kind": "Pod", "spec": {"containers": [container], **given}}
        (folder / "pod.yaml").write_text(yaml.safe_dump(pod))
        settings = {
            "hosts": {"kubernetes": {"pods": pods, "template": "pod.yaml", **engine}},
            "python": "/opt/venv/bin/python",
            "workdir": "~/job",
            "sync": {"exclude": ["stderr-*"]},
            "env": {"JAX_PLATFORMS": "cpu", "JAX_NUM_CPU_DEVICES": 2},
            "lease": LEASE,
        }
        path = folder / "cluster.yaml"
        path.write_text(yaml.safe_dump(settings))
        return str(path)

    def find(self, run_id: str, kinds: str = "pods,jobs,services") -> list[dict[str, Any]]:
        found = self.kubectl("get", kinds, f"--selector=hostmesh/run={run_id}", "--output=json")
        items: list[dict[str, Any]] = json.loads(found)["items"]
        return items

    def running(self, run_id: str) -> list[str]:
        pods = self.find(run_id, "pods")
        return [pod["metadata"]["name"] for pod in pods if pod["status"].get("phase") in ("Running", "Pending")]


@pytest.fixture(scope="session", name="kubernetes")
def find_cluster() -> Iterator[KubernetesCluster]:
    given = os.environ.get("HOSTMESH_KUBECONFIG")
    kubeconfig = given or str(FOLDER / "run" / "kubeconfig")
    if not Path(kubeconfig).exists():
        if os.environ.get("HOSTMESH_KUBERNETES") == "required":
            pytest.fail("no Kubernetes is up: make kubernetes-cluster")
        pytest.skip("make test-kubernetes runs these")
    yield KubernetesCluster(kubeconfig)
