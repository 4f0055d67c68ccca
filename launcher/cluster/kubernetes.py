"""What `hosts: {kubernetes: …}` may hold, and the pod that a template describes."""

from __future__ import annotations

import os
from typing import Any

from hostmesh.launcher.cluster.model import MAX_PODS, PODS_AS, Kubernetes
from hostmesh.launcher.cluster.yaml_values import TEXT, Check, Value, scalar, seconds, whole_number

# None may begin with a dash: they become arguments of kubectl.
_name = scalar((TEXT,), "[a-z0-9]([a-z0-9.-]{0,251}[a-z0-9])?", "a name of lower-case letters, digits, - and .")
_word = scalar((TEXT,), r"(?!-)[^\s\0\ud800-\udfff]+", "one word that does not begin with '-'")
_line = scalar((TEXT,), "(?!-)[^\0\ud800-\udfff\r\n]+", "text on one line that does not begin with '-'")


def read_kubernetes(value: Value) -> Kubernetes | None:
    before = len(value.problems.entries)
    settings = value.read(_KEYS)
    if value.kind != "a mapping":
        return None
    _check_together(value, settings)
    if len(value.problems.entries) > before:
        return None
    return Kubernetes(**{{"as": "kind"}.get(name, name): each for name, each in settings.items()})


def _check_together(value: Value, settings: dict[str, Any]) -> None:
    makes, finds = "pods" in settings, "selector" in settings
    if makes == finds:
        wanted = "either pods (how many to make) or a selector (of those that are there)"
        value.reject(wanted, "both" if makes else "neither")
    if finds:
        for name in {"image", "template", "as", "queue"} & settings.keys():
            value.under(name).fail("pods that are there already are taken as they are; remove it")
    elif makes and not _find_image(settings):
        value.reject("an image, or a template whose container has one", "no image")
    if "queue" in settings and settings.get("as", "pods") == "pods" and not finds:
        value.under("queue").fail("bare pods do not wait in a queue of Kueue's; write as: job or as: jobset beside it")


def _find_image(settings: dict[str, Any]) -> Any:
    """True where that has been complained of already."""
    if "image" in settings or settings.get("template", {}) is None:
        return True
    containers = settings.get("template", {}).get("spec", {}).get("containers") or [{}]
    chosen = [each for each in containers if each.get("name") == settings.get("container")] or containers
    return chosen[0].get("image")


def _template(value: Value) -> dict[str, Any] | None:
    """The manifest in a file; a relative path begins in the folder of the cluster file."""
    import yaml

    text = _line(value)
    if text is None:
        return None
    path = os.path.join(os.path.dirname(os.path.abspath(value.problems.path)), os.path.expanduser(text))
    try:
        with open(path, "rb") as file:
            found = yaml.safe_load(file)
    except OSError as error:
        value.reject(f"a file that can be read; {path!r}: {(error.strerror or str(error)).lower()}")
        return None
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        value.reject(f"a pod's manifest; {path!r} is not one YAML document: {str(error).splitlines()[0]}")
        return None
    problem = find_problem(found)
    if problem is not None:
        value.reject(f"a pod's manifest (kind: Pod, with spec.containers) in {path!r}", problem)
        return None
    pod: dict[str, Any] = found
    return pod


def find_problem(pod: Any) -> str | None:
    """What is there instead of a pod."""
    if not isinstance(pod, dict):
        return "no mapping"
    if pod.get("kind") != "Pod":
        return f"kind {pod.get('kind')}" if pod.get("kind") else "no kind"
    spec = pod.get("spec")
    containers = spec.get("containers") if isinstance(spec, dict) else None
    if not isinstance(containers, list) or not containers:
        return "no spec.containers"
    if not all(isinstance(each, dict) and isinstance(each.get("name"), str) for each in containers):
        return "a container without a name"
    metadata = pod.get("metadata") or {}
    if not isinstance(metadata, dict) or not isinstance(metadata.get("labels") or {}, dict):
        return "metadata or labels that are no mapping"
    return None


_KEYS: dict[str, Check] = {
    "pods": whole_number(1, MAX_PODS, f"from 1 to {MAX_PODS} pods"),
    "selector": _line,
    "image": _word,
    "template": _template,
    "as": scalar((TEXT,), "|".join(PODS_AS), f"one of {', '.join(PODS_AS)}"),
    "namespace": _name,
    "context": _line,
    "container": _name,
    "queue": _name,
    "start_timeout": seconds(lambda seconds: seconds >= 1, "1 second or more"),
}
