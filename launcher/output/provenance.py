"""The provenance of a run: its command, commit and versions, found by a thread that the run never waits for."""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import hostmesh
from hostmesh.launcher.output.redact import hide_in_urls
from hostmesh.launcher.output.run_folder import Run
from hostmesh.launcher.planning.plan import Plan, plan_json

GIT_TIMEOUT = 10.0
# Seconds that the end of a run waits for the search, and for it to stop.
END_TIMEOUT = 0.5
STOP_TIMEOUT = 0.2


class Provenance:
    """Writes `plan.json` with what is known at the start, and again once the search is done; `result.json` gets what is
    known at the end. What cannot be found is null."""

    def __init__(self, plan: Plan, run: Run, command: Sequence[str]) -> None:
        self._plan, self._run = plan, run
        self._thread: threading.Thread | None = None
        self._enough = threading.Event()
        self._record: dict[str, Any] = {
            "folder": os.getcwd(),
            "command": [hide_in_urls(word) for word in command],
            "code": {"folder": str(code_folder(plan)), "commit": None, "changed": None},
            "versions": {"hostmesh": hostmesh.__version__, "python": None, "jax": None},
        }

    def write_plan(self) -> str | None:
        return self._run.write_json(self._run.plan, {"run": self._run.id, **self._record, **plan_json(self._plan)})

    def look(self, python: Mapping[str, Any] | None = None) -> None:
        """Starts the search, once processes start; `python` is what the first host said about its Python, if asked."""
        self._thread = threading.Thread(target=self._look, args=(python or {},), name="provenance", daemon=True)
        self._thread.start()

    def finish(self) -> dict[str, Any]:
        if self._thread is None:
            self.look()
        assert self._thread is not None
        self._thread.join(END_TIMEOUT)
        self._enough.set()
        self._thread.join(STOP_TIMEOUT)  # what it started ends with it
        return self._record

    def _look(self, python: Mapping[str, Any]) -> None:
        # Imported only here: the start of the agents would wait for the import.
        from hostmesh.launcher.output.checkout import find_checkout

        record = dict(self._record)
        if (checkout := find_checkout(record["code"]["folder"], GIT_TIMEOUT, self._enough)) is not None:
            record["code"] = {**record["code"], **checkout._asdict()}
            self._record = dict(record)
        record["versions"] = {**record["versions"], **self._find_versions(python)}
        self._record = record
        self.write_plan()

    def _find_versions(self, python: Mapping[str, Any]) -> dict[str, str | None]:
        """Of process 0's Python and its packages."""
        if "version" not in python and self._plan.cluster.transport == "local":
            python = self._ask_python()
        return {"python": python.get("version"), "jax": (python.get("packages") or {}).get("jax")}

    def _ask_python(self) -> Mapping[str, Any]:
        """Processes on this machine start without an inspection of their Python; now there is time for one."""
        python = self._plan.cluster.hosts[0].python or sys.executable
        if python == sys.executable and "PYTHONPATH" not in self._plan.env:
            return {"version": sys.version.split()[0], "packages": {"jax": find_version("jax", sys.path)}}
        from hostmesh.launcher.agent.inspect.host import ask_python

        return ask_python(python, {**os.environ, **self._plan.env})


def find_version(package: str, path: Sequence[str]) -> str | None:
    """As its folder `jax-0.10.2.dist-info` says. importlib.metadata would take 25 ms of every start to import."""
    for folder in path:
        try:
            names = os.listdir(folder)
        except OSError:
            continue
        for name in names:
            if name.startswith(f"{package}-") and name.endswith(".dist-info"):
                return name[len(package) + 1 :].removesuffix(".dist-info")
    return None


def code_folder(plan: Plan) -> Path:
    """Where the code comes from, as far as it is on this machine."""
    cluster = plan.cluster
    if cluster.sync is not None:
        return Path(cluster.sync.source).expanduser().absolute()
    is_here = cluster.transport == "local" and cluster.workdir is not None
    return Path(cluster.workdir or "").expanduser().absolute() if is_here else Path.cwd()
