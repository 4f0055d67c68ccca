"""The kubectl program: how it is called, what it answers, and what a user reads when it does not."""

from __future__ import annotations

import json
import subprocess
from typing import Any

from hostmesh.launcher.cluster.model import Kubernetes
from hostmesh.launcher.engines.program import run_program
from hostmesh.launcher.errors import UsageError
from hostmesh.launcher.words import last_lines

TIMEOUT = 60.0
LAST_LINES = 4
HINTS = {
    "does not exist": "kubectl config get-contexts lists the contexts",
    "no context exists": "kubectl config get-contexts lists the contexts",
    "namespaces ": "kubectl get namespaces lists them; kubectl create namespace makes one",
    "connection refused": "is this the right context? kubectl config current-context",
    "no matches for kind": "the cluster does not know this kind; install it there, or write as: pods",
}


class KubectlError(UsageError):
    """`said` is its own complaint."""

    def __init__(self, what: str, said: str) -> None:
        hint = next((hint for words, hint in HINTS.items() if words in said), None)
        super().__init__(f"Kubernetes: {what}: {said}" + (f"; {hint}" if hint else ""))
        self.said = said


class Kubectl:
    def __init__(self, settings: Kubernetes) -> None:
        self._settings = settings

    def argv(self, *args: str) -> list[str]:
        where = [("--context", self._settings.context), ("--namespace", self._settings.namespace)]
        return ["kubectl", *(f"{name}={value}" for name, value in where if value), *args]

    def run(self, *args: str, given: Any = None, timeout: float = TIMEOUT) -> str:
        """`given` becomes its input, as JSON: no value of a manifest is ever on a command line."""
        argv, what = self.argv(*args), f"kubectl {args[0]}"
        try:
            done = run_program(argv, json.dumps(given) if given is not None else "", timeout)
        except FileNotFoundError:
            raise UsageError(
                "Kubernetes: found no program kubectl on this machine; install it, or put it on PATH"
            ) from None
        except OSError as error:
            raise UsageError(f"Kubernetes: kubectl cannot be started: {error.strerror}") from None
        except subprocess.TimeoutExpired:
            raise KubectlError(what, f"no answer within {timeout:g} s") from None
        if done.returncode != 0:
            lines = [line.strip() for line in last_lines(done.stderr, LAST_LINES)]
            raise KubectlError(what, " / ".join(lines) or f"exit code {done.returncode}")
        return done.stdout

    def get(self, *args: str, timeout: float = TIMEOUT) -> dict[str, Any]:
        return parse(self.run("get", *args, "--output=json", timeout=timeout))

    def list(self, *args: str, timeout: float = TIMEOUT) -> list[dict[str, Any]]:
        items = self.get(*args, timeout=timeout).get("items")
        return [each for each in items if isinstance(each, dict)] if isinstance(items, list) else []


def parse(text: str) -> dict[str, Any]:
    try:
        found = json.loads(text)
    except (ValueError, RecursionError):
        found = None
    if not isinstance(found, dict):
        raise UsageError("Kubernetes: kubectl printed no JSON; is this the kubectl of Kubernetes?")
    return found
