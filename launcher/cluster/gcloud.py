"""The hosts of a TPU pod, in worker order, as the `gcloud` command knows them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

from hostmesh.launcher.errors import UsageError

TIMEOUT = 60.0
STDERR_LINES = 6
FIX = {
    "STOPPED": "start it: gcloud compute tpus tpu-vm start {name} --zone={zone}",
    "PREEMPTED": "it is gone; delete it and create it again",
    "TERMINATED": "it is gone; delete it and create it again",
}


@dataclass(frozen=True)
class TpuPod:
    name: str
    zone: str
    project: str | None = None
    internal: bool = False  # reach the hosts at their internal addresses: from inside their network
    user: str | None = None

    def __str__(self) -> str:
        return f"TPU {self.name} in {self.zone}"


class Endpoint(NamedTuple):
    """Where one host is reached from here, and from the other hosts."""

    address: str
    internal_address: str


def find_endpoints(pod: TpuPod, timeout: float = TIMEOUT) -> tuple[Endpoint, ...]:
    """In the order of networkEndpoints, which is that of the worker numbers."""
    node = _parse(pod, _run_gcloud(pod, timeout))
    _check_state(pod, node)
    entries = node.get("networkEndpoints")
    if not isinstance(entries, list) or not entries:
        raise UsageError(f"{pod}: gcloud lists no networkEndpoints, wanted one for each host")
    inner = _read_addresses(pod, entries, ("ipAddress",), "an internal address (ipAddress)")
    if pod.internal:
        return tuple(Endpoint(address, address) for address in inner)
    wanted = "an external address; write internal: true to use the internal ones, from inside their network"
    outer = _read_addresses(pod, entries, ("accessConfig", "externalIp"), wanted)
    return tuple(map(Endpoint, outer, inner))


def describe_argv(pod: TpuPod) -> list[str]:
    project = [f"--project={pod.project}"] if pod.project else []
    what = ["gcloud", "compute", "tpus", "tpu-vm", "describe", pod.name]
    return [*what, f"--zone={pod.zone}", *project, "--format=json"]


def _run_gcloud(pod: TpuPod, timeout: float) -> str:
    import subprocess  # here, because few clusters need it and every start would pay for it

    pipe, argv = subprocess.PIPE, describe_argv(pod)
    try:
        # A session of its own: no terminal to ask for a password on, and one group to end when time is up.
        with subprocess.Popen(
            argv,
            stdin=subprocess.DEVNULL,
            stdout=pipe,
            stderr=pipe,
            text=True,
            errors="replace",
            start_new_session=True,
        ) as process:
            out, err = _communicate(process, timeout)
    except FileNotFoundError:
        fix = "install the Google Cloud CLI and log in (gcloud auth login), or list the addresses of the hosts"
        raise UsageError(f"{pod}: found no gcloud command on PATH; {fix}") from None
    except OSError as error:
        raise UsageError(f"{pod}: gcloud cannot be started: {error.strerror}") from None
    except subprocess.TimeoutExpired:
        tried = f"try it yourself: {' '.join(argv)}"
        raise UsageError(f"{pod}: gcloud gave no answer within {timeout:g} s; {tried}") from None
    if process.returncode != 0:
        raise UsageError("\n  ".join([f"{pod}: gcloud exited with {process.returncode}", *_last_lines(err)]))
    return out


def _communicate(process: Any, timeout: float) -> tuple[str, str]:
    import contextlib
    import os
    import signal

    try:
        out, err = process.communicate(timeout=timeout)
    except BaseException:
        # gcloud is a shell script, and its Python a child of that: end the whole group.
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        raise
    return out, err


def _last_lines(text: str) -> list[str]:
    """The last line that says ERROR and some of what follows it: what to do, or details. Else the last lines."""
    lines = ["".join(c if c.isprintable() else " " for c in line).rstrip()[:300] for line in text.splitlines()]
    said = [line for line in lines if line] or ["it said nothing about why"]
    errors = [number for number, line in enumerate(said) if line.startswith("ERROR:")]
    return said[errors[-1] :][:STDERR_LINES] if errors else said[-STDERR_LINES:]


def _parse(pod: TpuPod, text: str) -> dict[str, Any]:
    import json

    try:
        node = json.loads(text)
    except (ValueError, RecursionError):
        node = None
    if not isinstance(node, dict):
        raise UsageError(
            f"{pod}: gcloud printed no JSON description of it; is this the gcloud of the Google Cloud CLI?"
        )
    return node


def _check_state(pod: TpuPod, node: dict[str, Any]) -> None:
    state = node.get("state")
    if state != "READY":
        fix = FIX.get(str(state), "wait until it is").format(name=pod.name, zone=pod.zone)
        raise UsageError(f"{pod}: found state {state}, wanted READY; {fix}")


def _read_addresses(pod: TpuPod, entries: list[Any], keys: tuple[str, ...], wanted: str) -> list[str]:
    addresses = [_read_address(entry, keys) for entry in entries]
    if missing := [str(worker) for worker, address in enumerate(addresses) if address is None]:
        raise UsageError(f"{pod}: found none for worker {', '.join(missing)}, wanted {wanted}")
    return [address for address in addresses if address is not None]


def _read_address(entry: Any, keys: tuple[str, ...]) -> str | None:
    import ipaddress

    for key in keys:
        entry = entry.get(key) if isinstance(entry, dict) else None
    try:
        return str(ipaddress.ip_address(entry)) if isinstance(entry, str) else None
    except ValueError:
        return None
