"""Pods for a run: asked for, waited for, held while it lasts, explained when they go, and given back."""

from __future__ import annotations

import threading
import time
from typing import Any

from hostmesh.launcher.cluster.model import Kubernetes
from hostmesh.launcher.engines.base import Note
from hostmesh.launcher.engines.kubernetes.kubectl import Kubectl, KubectlError
from hostmesh.launcher.engines.kubernetes.manifests import (
    OWNER_LEASE,
    RUN_LABEL,
    make_manifests,
    name_of,
    own,
)
from hostmesh.launcher.engines.kubernetes.pods import (
    explain_end,
    find_hopeless,
    is_running,
    name_of_pod,
    number_of,
    tell_waiting,
)
from hostmesh.launcher.engines.kubernetes.reaper import Reaper
from hostmesh.launcher.errors import HostmeshError, Unreachable, UsageError
from hostmesh.launcher.words import count_things

LOOK_EVERY, ASK_AGAIN_EVERY = 0.5, 5.0
EXPLAIN_WITHIN, EXPLAIN_EVERY = 2.5, 0.3
RELEASE_TIMEOUT = 20.0
QUOTA = "exceeded quota"
MAX_TOLD, AT_ONCE = 3, 8


class KubernetesEngine:
    name = "Kubernetes"

    def __init__(self, settings: Kubernetes, run_id: str, lease: float, note: Note) -> None:
        self._settings, self._run_id, self._lease, self._note = settings, run_id, lease, note
        self._kubectl = Kubectl(settings)
        self._reaper: Reaper | None = None  # since something was asked for
        self._told = ""
        self._is_over = threading.Event()
        self._names: dict[int, str] = {}

    def acquire(self) -> None:
        if self._settings.selector is not None:
            return
        deadline = time.monotonic() + self._settings.start_timeout
        self._ask(deadline)
        while not self._look():
            if time.monotonic() > deadline:
                raise Unreachable(f"Kubernetes: {self._limit_text()}; {self._told or 'nothing is known of them'}")
            time.sleep(LOOK_EVERY)

    def describe(self) -> dict[str, Any]:
        return {"engine": "kubernetes", "run": self._run_id}

    def explain(self, host_name: str) -> str | None:
        """What the cluster knows may come a moment after the loss itself."""
        pod = self._pod_of(host_name)
        deadline = time.monotonic() + EXPLAIN_WITHIN
        while time.monotonic() < deadline:
            try:
                found = explain_end(self._kubectl.get("pod", pod, timeout=EXPLAIN_WITHIN))
            except KubectlError as error:
                found = f"the pod {pod} is gone: it was deleted" if "not found" in error.said else None
            if found is not None:
                return found
            time.sleep(EXPLAIN_EVERY)
        return None

    def release(self) -> None:
        """All that has the run's label."""
        self._is_over.set()
        if self._reaper is None:
            return
        try:
            self._kubectl.run(*self._delete_all, timeout=RELEASE_TIMEOUT)
        except HostmeshError as error:
            by_hand = " ".join(self._kubectl.argv(*self._delete_all))
            self._note(f"launch: what the run made is not deleted ({error}); do it yourself: {by_hand}")
        self._reaper.dismiss()

    @property
    def _delete_all(self) -> list[str]:
        kinds = "jobsets.jobset.x-k8s.io" if self._settings.kind == "jobset" else "jobs,services,pods"
        return ["delete", kinds, f"--selector={RUN_LABEL}={self._run_id}", "--wait=false", "--ignore-not-found"]

    # Asking.

    def _ask(self, deadline: float) -> None:
        """A quota may be used up by others for a while."""
        try:
            self._reaper = Reaper(self._kubectl.argv(*self._delete_all))
        except OSError as error:
            raise Unreachable(f"Kubernetes: no process can be started here: {error.strerror}") from None
        first, *others = make_manifests(self._settings, self._run_id, self._lease)
        owner = self._create(first, deadline)
        if self._settings.kind == "pods":
            threading.Thread(target=self._hold_owner, name="owner", daemon=True).start()
        from concurrent.futures import ThreadPoolExecutor

        pool = ThreadPoolExecutor(AT_ONCE)
        try:
            made = [pool.submit(self._create, own(manifest, owner), deadline) for manifest in others]
            for each in made:
                each.result()
        except BaseException:
            self._is_over.set()  # whoever still waits for a quota need not any longer
            raise
        finally:
            pool.shutdown(cancel_futures=True)  # nothing is made after this

    def _create(self, manifest: dict[str, Any], deadline: float) -> dict[str, Any]:
        from hostmesh.launcher.engines.kubernetes.kubectl import parse

        while True:
            try:
                return parse(self._kubectl.run("create", "--filename=-", "--output=json", given=manifest))
            except KubectlError as error:
                if QUOTA not in error.said:
                    raise
                self._tell(f"quota: {error.said}")
                if time.monotonic() > deadline:
                    raise Unreachable(f"Kubernetes: {self._limit_text()}; {self._told}") from None
            if self._is_over.wait(ASK_AGAIN_EVERY):
                raise Unreachable(f"Kubernetes: {self._told}")

    def _hold_owner(self) -> None:
        """Its deadline counts from its start and is put off again and again; without us it passes soon."""
        began = time.monotonic()
        while not self._is_over.wait(OWNER_LEASE / 3):
            seconds = int(time.monotonic() - began) + OWNER_LEASE
            patch = f'{{"spec":{{"activeDeadlineSeconds":{seconds}}}}}'
            try:
                self._kubectl.run("patch", "job", name_of(self._run_id), f"--patch={patch}", timeout=OWNER_LEASE / 3)
            except HostmeshError:
                pass  # the next time, or the pods are lost, which is noticed

    # Waiting.

    def _look(self) -> bool:
        """Whether all pods run."""
        found = {number_of(pod): pod for pod in self._list_pods()}
        for pod in found.values():
            if (why := find_hopeless(pod)) is not None:
                raise UsageError(f"Kubernetes: pod {name_of_pod(pod)} cannot run: {why}")
        waiting = {
            name_of_pod(pod): tell_waiting(pod)
            for pod in found.values()
            if number_of(pod) is None or not is_running(pod)
        }
        missing = self._settings.pods - len(found)
        if not waiting and missing <= 0:
            self._tell("") if not self._told else self._note("launch: all pods run")
            return True
        self._tell(self._waiting_text(waiting, missing))
        return False

    def _list_pods(self) -> list[dict[str, Any]]:
        return self._kubectl.list("pods", f"--selector={RUN_LABEL}={self._run_id}")

    def _waiting_text(self, waiting: dict[str, str], missing: int) -> str:
        reasons: dict[str, list[str]] = {}
        for name, reason in waiting.items():
            reasons.setdefault(reason, []).append(name)
        told = [f"{', '.join(names[:MAX_TOLD])}: {reason}" for reason, names in sorted(reasons.items())]
        if missing > 0:
            told.append(f"{count_things(missing, 'pod')} not made yet{self._suspended_text()}")
        return "; ".join(told)

    def _suspended_text(self) -> str:
        """A job waits in a queue of Kueue's as long as it is suspended."""
        if self._settings.kind == "pods":
            return ""
        kind = "job" if self._settings.kind == "job" else "jobsets.jobset.x-k8s.io"
        job = self._kubectl.get(kind, name_of(self._run_id))
        if not (job.get("spec") or {}).get("suspend"):
            return ""
        return f": suspended, in queue {self._settings.queue}" if self._settings.queue else ": suspended"

    def _tell(self, text: str) -> None:
        if text and text != self._told:
            self._note(f"launch: waiting for {count_things(self._settings.pods, 'pod')}: {text}")
        self._told = text

    def _limit_text(self) -> str:
        count = count_things(self._settings.pods, "pod")
        return f"{count} did not all run within {self._settings.start_timeout:g} s (start_timeout gives them longer)"

    def _pod_of(self, host_name: str) -> str:
        """Hosts are called pod-0, pod-1, …; those of a selector as their pods are."""
        number = host_name.removeprefix("pod-")
        if self._settings.selector is not None or not number.isdecimal():
            return host_name
        if self._settings.kind == "pods":
            return name_of(self._run_id, int(number))
        if not self._names:
            self._names = find_pods(self._kubectl, self._run_id)
        return self._names.get(int(number), host_name)


def find_pods(kubectl: Kubectl, run_id: str) -> dict[int, str]:
    """By host number. Where a pod was made again, the one that runs counts."""
    found = kubectl.list("pods", f"--selector={RUN_LABEL}={run_id}")
    found.sort(key=lambda pod: (is_running(pod), str((pod.get("metadata") or {}).get("creationTimestamp"))))
    numbered = ((number_of(pod), pod) for pod in found)
    return {number: name_of_pod(pod) for number, pod in numbered if number is not None}


def find_selected(settings: Kubernetes) -> list[str]:
    """The names of the pods that a selector finds, in order. All of them have to run."""
    pods = Kubectl(settings).list("pods", f"--selector={settings.selector}")
    pods.sort(key=name_of_pod)
    if not pods:
        raise UsageError(f"Kubernetes: found no pod with {settings.selector}, wanted at least one")
    if asleep := [f"{name_of_pod(pod)}: {tell_waiting(pod)}" for pod in pods if not is_running(pod)]:
        raise UsageError(f"Kubernetes: found pods that do not run, wanted all to: {'; '.join(asleep[:MAX_TOLD])}")
    return [name_of_pod(pod) for pod in pods]
