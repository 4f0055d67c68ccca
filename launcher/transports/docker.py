"""An agent inside a running container, through `docker exec -i`."""

from __future__ import annotations

import subprocess
from collections.abc import Sequence

from hostmesh.launcher.cluster.model import Host
from hostmesh.launcher.engines.program import run_program
from hostmesh.launcher.errors import Unreachable
from hostmesh.launcher.transports.pipe import PipeStream
from hostmesh.launcher.words import last_lines

ASK_TIMEOUT = 5.0
# What `docker inspect` calls a container's state, and what brings it back.
REMEDIES = {"paused": "docker unpause", "created": "docker start", "exited": "docker start"}


class DockerStream(PipeStream):
    """A container's agent; `docker` itself tells why there is none."""

    def __init__(self, host: Host, command: Sequence[str]) -> None:
        self._container = host.address
        self._has_spoken = False
        super().__init__(exec_argv(host, command))

    def explain_start(self, program: str, error: OSError) -> str:
        if isinstance(error, FileNotFoundError):
            return "found no program docker on this machine; install it, or put it on PATH"
        return super().explain_start(program, error)

    def read(self) -> bytes:
        """Raises Unreachable when the container, and not a program in it, is why nothing ever came."""
        data = super().read()
        if not data and not self._has_spoken and (problem := find_problem(self._container)):
            raise Unreachable(problem)
        self._has_spoken = True
        return data


def exec_argv(host: Host, command: Sequence[str]) -> list[str]:
    user = ["--user", host.user] if host.user else []
    return ["docker", "exec", "--interactive", *user, host.address, *command]


def find_problem(container: str) -> str | None:
    """Ask the engine rather than guess from what `docker exec` printed, which differs between versions."""
    state, _ = ask_docker("container", "inspect", "--format", "{{.State.Status}}", container)
    if state == "running":
        return None
    if state is not None:
        remedy = REMEDIES.get(state)
        fix = f"{remedy} {container}" if remedy else f"see docker logs {container}"
        return f"container {container} is {state}, wanted running; {fix}"
    version, trouble = ask_docker("version", "--format", "{{.Server.Version}}")
    if version is None:
        return f"no Docker engine answers ({trouble}); is it running, and may you use it? try docker ps"
    return f"found no container {container}; docker ps lists those that run"


def ask_docker(*args: str) -> tuple[str | None, str]:
    """Its answer, or None and what it complained of."""
    try:
        done = run_program(["docker", *args], "", ASK_TIMEOUT)
    except subprocess.TimeoutExpired:
        return None, f"no answer to docker {args[0]} within {ASK_TIMEOUT:g} s"
    except OSError as error:
        return None, f"cannot start docker: {error.strerror}"
    if done.returncode == 0:
        return done.stdout.strip(), ""
    return None, "".join(last_lines(done.stderr, 1))
