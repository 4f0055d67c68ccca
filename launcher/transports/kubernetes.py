"""An agent inside a running pod, through `kubectl exec -i`."""

from __future__ import annotations

from collections.abc import Sequence

from hostmesh.launcher.cluster.model import Cluster, Host, Kubernetes
from hostmesh.launcher.engines.kubernetes.engine import find_pods
from hostmesh.launcher.engines.kubernetes.kubectl import Kubectl, KubectlError
from hostmesh.launcher.engines.kubernetes.manifests import name_of
from hostmesh.launcher.engines.kubernetes.pods import explain_end, is_running, tell_waiting
from hostmesh.launcher.errors import HostmeshError, Unreachable
from hostmesh.launcher.transports.pipe import PipeStream

ASK_TIMEOUT = 5.0


class PodStream(PipeStream):
    """A pod's agent. What `kubectl exec` exits with says nothing: only the agent's own words count."""

    def __init__(self, kubectl: Kubectl, settings: Kubernetes, pod: str, command: Sequence[str]) -> None:
        self._kubectl, self._pod = kubectl, pod
        self._has_spoken = False
        super().__init__(exec_argv(kubectl, settings, pod, command))

    def explain_start(self, program: str, error: OSError) -> str:
        if isinstance(error, FileNotFoundError):
            return "found no program kubectl on this machine; install it, or put it on PATH"
        return super().explain_start(program, error)

    def read(self) -> bytes:
        """Raises Unreachable when the pod, and not a program in it, is why nothing ever came."""
        data = super().read()
        if not data and not self._has_spoken and (problem := find_problem(self._kubectl, self._pod)):
            raise Unreachable(problem)
        self._has_spoken = True
        return data


def open_pod_streams(
    cluster: Cluster, run_id: str, hosts: Sequence[Host], commands: Sequence[Sequence[str]]
) -> list[PodStream]:
    settings = cluster.engine if isinstance(cluster.engine, Kubernetes) else Kubernetes()
    kubectl = Kubectl(settings)
    named = _name_pods(kubectl, settings, run_id, hosts)
    return [
        PodStream(kubectl, settings, named.get(host.address, host.address), command)
        for host, command in zip(hosts, commands, strict=True)
    ]


def exec_argv(kubectl: Kubectl, settings: Kubernetes, pod: str, command: Sequence[str]) -> list[str]:
    container = [f"--container={settings.container}"] if settings.container else []
    return kubectl.argv("exec", "--stdin", pod, *container, "--", *command)


def find_problem(kubectl: Kubectl, pod: str) -> str | None:
    try:
        found = kubectl.get("pod", pod, timeout=ASK_TIMEOUT)
    except KubectlError as error:
        return f"found no pod {pod}: {error.said}"
    except HostmeshError as error:
        return str(error)
    if is_running(found):
        return None
    return f"pod {pod} does not run: {explain_end(found) or tell_waiting(found)}"


def _name_pods(kubectl: Kubectl, settings: Kubernetes, run_id: str, hosts: Sequence[Host]) -> dict[str, str]:
    """By host. Those of a job get their names from the cluster."""
    if not settings.pods:
        return {}
    numbers = {host.address: int(host.address.removeprefix("pod-")) for host in hosts}
    if settings.kind == "pods":
        return {name: name_of(run_id, number) for name, number in numbers.items()}
    try:
        found = find_pods(kubectl, run_id)
    except HostmeshError:
        found = {}  # whoever reads is told what is wrong
    return {name: found[number] for name, number in numbers.items() if number in found}
