"""What the cluster says about a pod: whether it runs, why it waits, and why it is gone; pure."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from hostmesh.launcher.engines.kubernetes.manifests import HOST_LABEL, INDEX

# No time heals these.
HOPELESS = frozenset({"InvalidImageName", "ErrImageNeverPull", "CreateContainerConfigError", "RunContainerError"})
TAKEN_AWAY = frozenset({"DisruptionTarget", "TerminationTarget"})


def number_of(pod: dict[str, Any]) -> int | None:
    """Which host of the run it is."""
    metadata = pod.get("metadata") or {}
    for found in (metadata.get("labels") or {}, metadata.get("annotations") or {}):
        for key in (HOST_LABEL, INDEX):
            if str(found.get(key, "")).isdecimal():
                return int(found[key])
    return None


def name_of_pod(pod: dict[str, Any]) -> str:
    return str((pod.get("metadata") or {}).get("name"))


def is_running(pod: dict[str, Any]) -> bool:
    status = pod.get("status") or {}
    states = list(status.get("containerStatuses") or ())
    started = bool(states) and all("running" in (each.get("state") or {}) for each in states)
    return status.get("phase") == "Running" and started and not _is_leaving(pod)


def find_hopeless(pod: dict[str, Any]) -> str | None:
    """Why it will never run."""
    for reason, text in _list_waiting(pod):
        if reason in HOPELESS:
            return text
    if (pod.get("status") or {}).get("phase") in ("Failed", "Succeeded"):
        return explain_end(pod) or "ended before it was used"
    return None


def tell_waiting(pod: dict[str, Any]) -> str:
    """`Unschedulable (0/4 nodes are available: …)`."""
    for _, text in _list_waiting(pod):
        return text
    status = pod.get("status") or {}
    for condition in status.get("conditions") or ():
        if condition.get("status") == "False" and condition.get("reason") == "Unschedulable":
            return _with(condition.get("reason"), condition.get("message"))
    return str(status.get("phase") or "Pending")


def explain_end(pod: dict[str, Any]) -> str | None:
    """Why it is gone, or goes; None where nothing says so."""
    status = pod.get("status") or {}
    for condition in status.get("conditions") or ():
        if condition.get("type") in TAKEN_AWAY and condition.get("status") == "True":
            return f"preempted: {_with(condition.get('reason'), condition.get('message'))}"
    if status.get("reason"):
        return _with(str(status["reason"]).replace("Evicted", "evicted"), status.get("message"))
    for each in status.get("containerStatuses") or ():
        ended = (each.get("state") or {}).get("terminated") or {}
        if ended.get("reason") == "OOMKilled":
            return f"OOMKilled (container {each.get('name')} went beyond its memory limit)"
    if _is_leaving(pod):
        return "the pod was deleted"
    for each in status.get("containerStatuses") or ():
        if ended := (each.get("state") or {}).get("terminated"):
            what = f"container {each.get('name')} ended with exit code {ended.get('exitCode')}"
            return _with(what, ended.get("reason") if ended.get("reason") != "Completed" else None)
    return None


def _is_leaving(pod: dict[str, Any]) -> bool:
    return bool((pod.get("metadata") or {}).get("deletionTimestamp"))


def _list_waiting(pod: dict[str, Any]) -> Iterator[tuple[str, str]]:
    status = pod.get("status") or {}
    for each in (*(status.get("initContainerStatuses") or ()), *(status.get("containerStatuses") or ())):
        waiting = (each.get("state") or {}).get("waiting") or {}
        if waiting.get("reason"):
            yield str(waiting["reason"]), _with(waiting["reason"], waiting.get("message"))


def _with(reason: Any, message: Any) -> str:
    said = " ".join(str(message or "").split())
    return f"{reason} ({said[:300]})" if said else str(reason)
