"""Cluster, Host: read a cluster YAML, check all of it, freeze it."""

from __future__ import annotations

import itertools
import math
import os
import re
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import MappingProxyType
from typing import Any, Literal

from hostmesh.launcher.accelerators import PLATFORMS, VISIBLE_GPUS, choose_platforms
from hostmesh.launcher.cluster.gcloud import TpuPod, find_endpoints
from hostmesh.launcher.cluster.yaml_values import (
    TEXT,
    WHOLE,
    Check,
    Problems,
    Value,
    boolean,
    compose,
    read_text,
    scalar,
    seconds,
    sequence,
    whole_number,
)
from hostmesh.launcher.errors import UsageError

TRANSPORTS = ("local", "ssh", "docker", "slurm", "kubernetes")
MAX_HOSTS = 10_000
MAX_PROCESSES = 1024
MAX_DEVICES = 64
METRICS_OF = ("0", "all")
GOOGLE_KEY = "~/.ssh/google_compute_engine"  # made by the first `gcloud compute … ssh`

BUILT_IN_JOB = "hostmesh.worker"


@dataclass(frozen=True)
class Job:
    """What each process runs: exactly one of script, module and command."""

    script: str | None = None
    module: str | None = None
    command: tuple[str, ...] | None = None
    args: tuple[str, ...] = ()


@dataclass(frozen=True)
class Sync:
    source: str = "."
    exclude: tuple[str, ...] = ()


@dataclass(frozen=True)
class Setup:
    """Commands that prepare a host, and the files that they depend on: all of the code where none are named."""

    run: tuple[str, ...] = ()
    inputs: tuple[str, ...] = ()


@dataclass(frozen=True)
class Ssh:
    """Beside what ~/.ssh/config says. Paths are absolute by now."""

    accept_new_host_keys: bool = False
    known_hosts: str | None = None  # instead of the user's own file
    identity_files: tuple[str, ...] = ()
    config: str | None = None  # instead of ~/.ssh/config
    jump: str | None = None  # user@host:port, several with commas between
    connect_timeout: float = 20.0
    at_once: int = 64  # how many connections are being made at the same time


@dataclass(frozen=True)
class Host:
    address: str
    processes: int
    python: str | None = None
    user: str | None = None
    port: int | None = None
    internal_address: str | None = None


@dataclass(frozen=True)
class Cluster:
    hosts: tuple[Host, ...]
    name: str = "local"
    transport: str = "local"
    agent_python: str | None = None
    ssh: Ssh = Ssh()
    workdir: str | None = None
    sync: Sync | None = None
    setup: Setup = Setup()
    env: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}))
    secrets: tuple[str, ...] = ()
    local_devices: Literal["auto"] | tuple[tuple[int, ...], ...] = "auto"
    preload: tuple[str, ...] = ()
    lease: float = 10.0  # seconds of silence after which an agent stops its processes
    grace: float = 3.0  # seconds between the request to stop and SIGKILL, for processes that name no time of their own
    keep_going: bool = False  # a failed process, or a lost host, ends nobody else
    restarts: int = 0
    hang_timeout: float | None = None
    metrics: str = "0"  # whose reports are kept: of process 0, or all
    run: Job | None = None


def local_cluster(processes: int, devices: int | None = None) -> Cluster:
    """What `--local N` means; `devices` are the CPU devices that each process is to have."""
    if not 1 <= processes <= MAX_PROCESSES:
        raise UsageError(f"--local: found {processes}, wanted from 1 to {MAX_PROCESSES} processes")
    hosts = (Host("localhost", processes),)
    return Cluster(hosts, env=_environment("local", {}, hosts, devices))


def read_cluster(path: str | os.PathLike[str], devices: int | None = None) -> Cluster:
    """Raises one ClusterError that holds every problem of the file; only then is gcloud asked for a pod's hosts."""
    problems = Problems(os.fspath(path))
    top = Value(compose(read_text(problems.path), problems), "", problems)
    values = {"name": Path(path).stem, "transport": "ssh", "env": {}, **top.read(_CLUSTER, required=("hosts",))}
    named = values.pop("hosts", [])
    pod = named if isinstance(named, TpuPod) else None
    entries = [(top.under("hosts"), {"address": pod.name})] if pod else named
    shared = {"processes": values.pop("processes_per_host", 1), "python": values.pop("python", None)}
    hosts = tuple(Host(**{**shared, **settings}) for _, settings in entries)
    _check_entries(entries, values["transport"])
    _check_together(top, values, hosts, pod)
    if problems.found:
        raise problems.error()
    if pod:
        hosts = _find_hosts(pod, top.under("hosts").under("gcloud"), shared)
        values["ssh"] = _add_google_key(values.get("ssh", Ssh()))
    return Cluster(hosts, **{**values, "env": _environment(values["transport"], values["env"], hosts, devices)})


def _find_hosts(pod: TpuPod, place: Value, shared: dict[str, Any]) -> tuple[Host, ...]:
    try:
        endpoints = find_endpoints(pod)
    except UsageError as error:
        place.fail(str(error))
        raise place.problems.error() from None
    return tuple(Host(**shared, **endpoint._asdict(), user=pod.user) for endpoint in endpoints)


def _add_google_key(ssh: Ssh) -> Ssh:
    key = os.path.expanduser(GOOGLE_KEY)
    return ssh if ssh.identity_files or not os.path.isfile(key) else replace(ssh, identity_files=(key,))


def _environment(
    transport: str, env: Mapping[str, str], hosts: tuple[Host, ...], devices: int | None
) -> Mapping[str, str]:
    """On this machine JAX_PLATFORMS is settled here, where what the processes would inherit is known."""
    if transport != "local":
        return MappingProxyType(dict(env))
    platforms, processes = choose_platforms(env, devices, hosts[0].python), sum(host.processes for host in hosts)
    if "tpu" in platforms.split(",") and processes > 1:
        raise UsageError(f"JAX_PLATFORMS: found {platforms} with {processes} processes, wanted {ONE_PROCESS}")
    return MappingProxyType({PLATFORMS: platforms, **env})


# Neither NUL nor half a surrogate pair can be handed to a process.
_any_text = scalar((TEXT,), "[^\0\ud800-\udfff]*", "text without NUL characters")
_line = scalar((TEXT,), "[^\0\ud800-\udfff\r\n]+", "text on one line")
_path = scalar((TEXT,), "(?!-)[^\0\ud800-\udfff\r\n]+", "a path on one line that does not begin with '-'")
_word = scalar((TEXT, WHOLE), "[^\0\ud800-\udfff]*", "text in quotes (without NUL) or a whole number")
_module = scalar((TEXT,), r"[^\W\d]\w*(\.[^\W\d]\w*)*", "a dotted name such as package.module")
_variable = scalar(
    (TEXT,),
    "(?!HOSTMESH_)[A-Za-z_][A-Za-z0-9_]*",
    "a name of letters, digits and _ that begins with neither a digit nor the reserved HOSTMESH_",
)
_processes = whole_number(1, MAX_PROCESSES, f"from 1 to {MAX_PROCESSES} processes")
# ssh would take a leading dash for an option, an @ for a user and a lone colon for a port.
_address = scalar(
    (TEXT,),
    r"(?!-)(?![^:]*:[^:]*$)(?=.{1,255}$)([A-Za-z0-9_.:%-]|\[[^][]*\])+",
    "a host name or address such as gpu-7 or gpu-[0-7]; user and port have keys of their own",
)


# The choices of one bracket: numbers, and the format that spells them.
Choices = list[tuple[range, str]]


def _names(value: Value) -> list[Choices] | None:
    """The parts of an address, in a form that can be counted before it is spelt out."""
    text = _address(value)
    if text is None:
        return None
    pieces = enumerate(re.split(r"\[([^]]*)\]", text))
    parts = [_choices(piece) if index % 2 else [(range(1), piece)] for index, piece in pieces]
    if all(parts):
        return parts
    value.reject("brackets with a rising range or a list, such as [0-3] or [a,b]")
    return None


def _choices(bracket: str) -> Choices:
    """`08-11,x` as choices; none when it makes no sense."""
    choices = []
    for item in bracket.split(","):
        ends = re.fullmatch("([0-9]{1,9})-([0-9]{1,9})", item)
        if ends and int(ends[1]) <= int(ends[2]):
            choices.append((range(int(ends[1]), int(ends[2]) + 1), f"{{:0{len(ends[1])}d}}"))
        elif re.fullmatch("[A-Za-z0-9_.]+", item):
            choices.append((range(1), item))
        else:
            return []
    return choices


def _count(parts: list[Choices]) -> int:
    return math.prod(sum(len(numbers) for numbers, _ in part) for part in parts)


def _spell(parts: list[Choices]) -> list[str]:
    spelt = [[form.format(number) for numbers, form in part for number in numbers] for part in parts]
    return ["".join(pieces) for pieces in itertools.product(*spelt)]


Entry = tuple[Value, dict[str, Any]]


def _hosts(value: Value) -> list[Entry] | TpuPod:
    """Each host's own settings beside the entry that names it, or the pod whose hosts gcloud knows."""
    if value.kind == "a mapping":
        return value.read({"gcloud": _pod}, required=("gcloud",)).get("gcloud") or []
    read = sequence(_host, "a list of hosts", least=1)(value) or ()
    named = [(entry, settings) for entry, settings in read if settings.get("address")]
    total = sum(_count(settings["address"]) for _, settings in named)
    if total > MAX_HOSTS:
        value.reject(f"at most {MAX_HOSTS}", f"{total} hosts")
        return []
    return [(entry, each) for entry, settings in named for each in _spell_out(entry, settings)]


def _pod(value: Value) -> TpuPod | None:
    settings = value.read(_GCLOUD, required=("tpu", "zone"))
    name, zone = settings.pop("tpu", None), settings.pop("zone", None)
    return TpuPod(name, zone, **settings) if name and zone else None


def _host(value: Value) -> Entry:
    if value.kind == TEXT:
        return value, {"address": _names(value)}
    if not value.is_a(("a mapping",), "an address or a mapping with an address"):
        return value, {}
    if any(key.node.value == "gcloud" for key, _ in value.pairs()):
        value.reject("it alone, as in hosts: {gcloud: {tpu: NAME, zone: ZONE}}", "gcloud in a list of hosts")
        return value, {}
    return value, value.read(_HOST, required=("address",))


def _spell_out(entry: Value, settings: dict[str, Any]) -> list[dict[str, Any]]:
    addresses, inner = _spell(settings["address"]), settings.get("internal_address")
    if not inner:
        return [{**settings, "address": address} for address in addresses]
    if _count(inner) != len(addresses):
        wanted = f"{len(addresses)}: one for each address"
        entry.under("internal_address").reject(wanted, f"{_count(inner)} addresses")
        return []
    pairs = zip(addresses, _spell(inner), strict=True)
    return [{**settings, "address": address, "internal_address": other} for address, other in pairs]


def _devices(value: Value) -> Any:
    wanted = "auto or a list with one list of device ids for each process"
    if value.kind == TEXT:
        return scalar((TEXT,), "auto", wanted)(value)
    device = whole_number(0, 1 << 16, "a device id, 0 or more")
    return sequence(sequence(device, "device ids", 1, MAX_DEVICES), wanted, 1, MAX_PROCESSES)(value)


def _env(value: Value) -> dict[str, Any]:
    found = {}
    for name, key, text in value.entries("a mapping of names to text"):
        _variable(key)
        found[name] = _word(text)
    return found


def _resolve(value: Value) -> str | None:
    """An absolute path; a relative one begins at the cluster file, wherever launch is started."""
    text = _path(value)
    return text and os.path.abspath(os.path.join(os.path.dirname(value.problems.path), os.path.expanduser(text)))


def _file(value: Value) -> str | None:
    path = _resolve(value)
    if path is not None and not _is_readable(path):
        value.reject(f"a file that can be read; there is none at {path!r}")
        return None
    return path


def _is_readable(path: str) -> bool:
    return os.access(path, os.R_OK) and not os.path.isdir(path)


def _identity_files(value: Value) -> tuple[str | None, ...] | None:
    return (_file(value),) if value.kind == TEXT else sequence(_file, "a file or a list of files")(value)


def _ssh(value: Value) -> Ssh:
    settings = value.read(_SSH)
    hosts_file = settings.get("known_hosts")
    may_be_new = settings.get("accept_new_host_keys") and not os.path.exists(hosts_file or "")
    if hosts_file is not None and not may_be_new:
        _file(value.under("known_hosts"))
    return Ssh(**settings)


def _sync(value: Value) -> Sync:
    settings = value.read({"from": _path, "exclude": sequence(_line, "a list of patterns")})
    return Sync(settings.get("from", "."), settings.get("exclude", ()))


_commands = sequence(_line, "a list of commands")


def _setup(value: Value) -> Setup:
    if value.kind != "a mapping":
        return Setup(_commands(value) or ())
    inputs = sequence(_line, "a list of files or patterns", least=1)
    settings = value.read({"run": _commands, "inputs": inputs}, required=("run",))
    return Setup(settings.get("run") or (), settings.get("inputs") or ())


def _run(value: Value) -> Job:
    settings = value.read(_JOB)
    kinds = [key for key in settings if key != "args"]
    if value.kind == "a mapping" and len(kinds) != 1:
        value.reject("exactly one of script, module, command", " and ".join(kinds) or "none")
    return Job(**settings)


_user = scalar((TEXT,), r"(?!-)[A-Za-z0-9_.@+\\-]+", "a user name")

_HOST: dict[str, Check] = {
    "address": _names,
    "internal_address": _names,
    "user": _user,
    "port": whole_number(1, 65535, "a port from 1 to 65535"),
    "processes": _processes,
    "python": _path,
}

# None may begin with a dash: they become arguments of gcloud.
_GCLOUD: dict[str, Check] = {
    "tpu": scalar((TEXT,), "[a-z][a-z0-9-]*", "the TPU's name: lower-case letters, digits and -"),
    "zone": scalar((TEXT,), "[a-z][a-z0-9-]*", "a zone such as us-west4-a"),
    "project": scalar((TEXT,), "[a-z][a-z0-9.:-]*", "a project's id: lower-case letters, digits and -"),
    "internal": boolean,
    "user": _user,
}

_HOP = r"(?!-)([A-Za-z0-9_.+\\-]+@)?(?!-)([A-Za-z0-9_.-]+|\[[0-9A-Fa-f:.]+(%\w+)?\])(:[1-9][0-9]{0,4})?"


def _have_ports(hops: str) -> bool:
    return all(int(port) <= 65535 for port in re.findall(":([0-9]+)(?=,|$)", hops))


_SSH: dict[str, Check] = {
    "accept_new_host_keys": boolean,
    "known_hosts": _resolve,
    "identity_files": _identity_files,
    "config": _file,
    "jump": scalar(
        (TEXT,), f"{_HOP}(,{_HOP})*", "jump hosts such as me@bastion:22, with commas between them", test=_have_ports
    ),
    "connect_timeout": seconds(lambda seconds: 1 <= seconds <= 600, "from 1 to 600 seconds"),
    "at_once": whole_number(1, 1000, "from 1 to 1000 connections"),
}

_JOB: dict[str, Check] = {
    "script": _path,
    "module": _module,
    "command": sequence(_any_text, "a program and its arguments", least=1),
    "args": sequence(_word, "a list of arguments"),
}

_CLUSTER: dict[str, Check] = {
    "name": _line,
    "transport": scalar((TEXT,), "|".join(TRANSPORTS), f"one of {', '.join(TRANSPORTS)}"),
    "hosts": _hosts,
    "processes_per_host": _processes,
    "local_devices": _devices,
    "python": _path,
    "agent_python": _path,
    "ssh": _ssh,
    "workdir": _path,
    "sync": _sync,
    "setup": _setup,
    "env": _env,
    "secrets": sequence(_variable, "a list of environment names"),
    "preload": sequence(_module, "a list of modules"),
    "lease": seconds(lambda seconds: seconds >= 1, "1 second or more"),
    "grace": seconds(lambda seconds: seconds > 0, "more than 0 seconds"),
    "keep_going": boolean,
    "restarts": whole_number(0, math.inf, "a whole number, 0 or more"),
    "hang_timeout": seconds(lambda seconds: seconds > 0, "more than 0 seconds"),
    "metrics": scalar((TEXT, WHOLE), "|".join(METRICS_OF), "0 (those of process 0) or all"),
    "run": _run,
}


ONE_PROCESS = "one process on a TPU host: several need the TPU_* bounds variables, which are not supported yet"


def _check_pod(top: Value, transport: str | None, pod: TpuPod, processes: int | None) -> None:
    if transport not in ("ssh", None):
        top.under("transport").reject("ssh: that is how the hosts of a TPU are reached")
    if (processes or 1) > 1:
        top.under("processes_per_host").reject(ONE_PROCESS, f"{processes} with {pod}")


def _check_entries(entries: list[Entry], transport: str | None) -> None:
    lines: dict[tuple[str, int | None], int] = {}
    for entry, settings in entries:
        host = settings["address"], settings.get("port")
        if host in lines:
            entry.fail(f"host {host[0]} is already on line {lines[host]}")
        lines.setdefault(host, entry.line)
    with_port = {id(entry): entry for entry, settings in entries if settings.get("port")}
    for entry in with_port.values() if transport == "docker" else ():
        entry.under("port").fail("docker reaches a container by its name; remove port")


def _check_together(top: Value, values: dict[str, Any], hosts: tuple[Host, ...], pod: TpuPod | None) -> None:
    transport, env = values["transport"], values["env"]
    if "sync" in values and transport == "local":
        top.under("sync").fail("local processes run in place; remove sync")
    elif "sync" in values and "workdir" not in values:
        top.under("sync").reject("a workdir beside it: where on the hosts the code lands", "no workdir")
    if "setup" in values and values["setup"].inputs and "sync" not in values:
        place = top.under("setup").under("inputs")
        place.reject("a sync beside it: inputs are among the files that it sends", "no sync")
    if "ssh" in values and transport not in ("ssh", None):
        top.under("ssh").fail(f"transport {transport} does not use SSH; remove ssh")
    for index, name in enumerate(values.get("secrets") or ()):
        if name in env:
            top.under("secrets").item(index).reject("a name that env does not set as well")
    if pod:
        _check_pod(top, transport, pod, hosts[0].processes)
    elif "tpu" in (env.get("JAX_PLATFORMS") or "").split(","):
        _check_tpu(top.under("env").under("JAX_PLATFORMS"), hosts)
    if isinstance(values.get("local_devices"), tuple):
        _check_devices(top.under("local_devices"), values["local_devices"], hosts)
        for name in env.keys() & set(VISIBLE_GPUS.values()):
            top.under("env").under(name).reject("either this or local_devices, which sets it for each process")


def _check_tpu(platforms: Value, hosts: tuple[Host, ...]) -> None:
    crowded = next((host for host in hosts if (host.processes or 1) > 1), None)
    if crowded:
        platforms.reject(ONE_PROCESS, f"{platforms.shown} with {crowded.processes} processes on {crowded.address}")


def _check_devices(value: Value, devices: tuple[tuple[int, ...], ...], hosts: tuple[Host, ...]) -> None:
    unequal = next((host for host in hosts if host.processes not in (None, len(devices))), None)
    if unequal:
        wanted = f"{unequal.processes}: one for each process on {unequal.address}"
        value.reject(wanted, f"{len(devices)} lists of devices")
    for device, times in Counter(itertools.chain(*devices)).items():
        if times > 1:
            value.reject("each device once on a host", f"device {device} {times} times")
