"""Cluster, Host: read a cluster YAML, check all of it, freeze it."""

from __future__ import annotations

import itertools
import math
import os
import re
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Any, Literal

from launcher.errors import UsageError
from launcher.yaml_values import (
    TEXT,
    WHOLE,
    Check,
    Problems,
    Value,
    compose,
    read_text,
    scalar,
    seconds,
    sequence,
    whole_number,
)

TRANSPORTS = ("local", "ssh", "docker", "slurm", "kubernetes")
MOST_HOSTS = 10_000
MOST_PROCESSES = 1024
MOST_DEVICES = 64


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
    workdir: str | None = None
    sync: Sync | None = None
    setup: tuple[str, ...] = ()
    env: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}))
    secrets: tuple[str, ...] = ()
    local_devices: Literal["auto"] | tuple[tuple[int, ...], ...] = "auto"
    preload: tuple[str, ...] = ()
    lease: float = 10.0  # seconds of silence after which an agent stops its processes
    restarts: int = 0
    hang_timeout: float | None = None
    run: Job | None = None


def local_cluster(processes: int) -> Cluster:
    """What `--local N` means."""
    if not 1 <= processes <= MOST_PROCESSES:
        raise UsageError(f"--local: found {processes}, wanted from 1 to {MOST_PROCESSES} processes")
    return Cluster((Host("localhost", processes),), env=_environment("local", {}))


def read_cluster(path: str | os.PathLike[str]) -> Cluster:
    """Raises one ClusterError that holds every problem of the file."""
    problems = Problems(os.fspath(path))
    top = Value(compose(read_text(problems.path), problems), "", problems)
    values = {"name": Path(path).stem, "transport": "ssh", "env": {}, **top.read(_CLUSTER, required="hosts")}
    entries = values.pop("hosts", [])
    shared = {"processes": values.pop("processes_per_host", 1), "python": values.pop("python", None)}
    hosts = tuple(Host(**{**shared, **settings}) for _, settings in entries)
    _check_duplicates(entries)
    _check_together(top, values, hosts)
    if problems.found:
        raise problems.error()
    return Cluster(hosts, **{**values, "env": _environment(values["transport"], values["env"])})


def _environment(transport: str, env: Mapping[str, str]) -> Mapping[str, str]:
    default = {"JAX_PLATFORMS": "cpu"} if transport == "local" else {}
    return MappingProxyType({**default, **env})


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
_processes = whole_number(1, MOST_PROCESSES, f"from 1 to {MOST_PROCESSES} processes")
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


def _hosts(value: Value) -> list[Entry]:
    """Each host's own settings beside the entry that names it."""
    read = sequence(_host, "a list of hosts", least=1)(value) or ()
    named = [(entry, settings) for entry, settings in read if settings.get("address")]
    total = sum(_count(settings["address"]) for _, settings in named)
    if total > MOST_HOSTS:
        value.reject(f"at most {MOST_HOSTS}", f"{total} hosts")
        return []
    return [(entry, each) for entry, settings in named for each in _spell_out(entry, settings)]


def _host(value: Value) -> Entry:
    if value.kind == TEXT:
        return value, {"address": _names(value)}
    known = value.is_a(("a mapping",), "an address or a mapping with an address")
    return value, value.read(_HOST, required="address") if known else {}


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
    return sequence(sequence(device, "device ids", 1, MOST_DEVICES), wanted, 1, MOST_PROCESSES)(value)


def _env(value: Value) -> dict[str, Any]:
    found = {}
    for name, key, text in value.entries("a mapping of names to text"):
        _variable(key)
        found[name] = _word(text)
    return found


def _sync(value: Value) -> Sync:
    settings = value.read({"from": _path, "exclude": sequence(_line, "a list of patterns")})
    return Sync(settings.get("from", "."), settings.get("exclude", ()))


def _run(value: Value) -> Job:
    settings = value.read(_JOB)
    kinds = [key for key in settings if key != "args"]
    if value.kind == "a mapping" and len(kinds) != 1:
        value.reject("exactly one of script, module, command", " and ".join(kinds) or "none")
    return Job(**settings)


_HOST: dict[str, Check] = {
    "address": _names,
    "internal_address": _names,
    "user": scalar((TEXT,), r"(?!-)[A-Za-z0-9_.@+\\-]+", "a user name"),
    "port": whole_number(1, 65535, "a port from 1 to 65535"),
    "processes": _processes,
    "python": _path,
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
    "workdir": _path,
    "sync": _sync,
    "setup": sequence(_line, "a list of commands"),
    "env": _env,
    "secrets": sequence(_variable, "a list of environment names"),
    "preload": sequence(_module, "a list of modules"),
    "lease": seconds(lambda seconds: seconds >= 1, "1 second or more"),
    "restarts": whole_number(0, math.inf, "a whole number, 0 or more"),
    "hang_timeout": seconds(lambda seconds: seconds > 0, "more than 0 seconds"),
    "run": _run,
}


def _check_duplicates(entries: list[Entry]) -> None:
    lines: dict[tuple[str, int | None], int] = {}
    for entry, settings in entries:
        host = settings["address"], settings.get("port")
        if host in lines:
            entry.fail(f"host {host[0]} is already on line {lines[host]}")
        lines.setdefault(host, entry.line)


def _check_together(top: Value, values: dict[str, Any], hosts: tuple[Host, ...]) -> None:
    if values["transport"] == "local" and "sync" in values:
        top.under("sync").fail("local processes run in place; remove sync")
    for index, name in enumerate(values.get("secrets") or ()):
        if name in values["env"]:
            top.under("secrets").item(index).reject("a name that env does not set as well")
    if "tpu" in (values["env"].get("JAX_PLATFORMS") or "").split(","):
        _check_tpu(top.under("env").under("JAX_PLATFORMS"), hosts)
    if isinstance(values.get("local_devices"), tuple):
        _check_devices(top.under("local_devices"), values["local_devices"], hosts)


def _check_tpu(platforms: Value, hosts: tuple[Host, ...]) -> None:
    crowded = next((host for host in hosts if (host.processes or 1) > 1), None)
    if crowded:
        reason = "several need the TPU_* bounds variables, which are not supported yet"
        found = f"{platforms.shown} with {crowded.processes} processes on {crowded.address}"
        platforms.reject(f"one process on a TPU host: {reason}", found)


def _check_devices(value: Value, devices: tuple[tuple[int, ...], ...], hosts: tuple[Host, ...]) -> None:
    unequal = next((host for host in hosts if host.processes not in (None, len(devices))), None)
    if unequal:
        wanted = f"{unequal.processes}: one for each process on {unequal.address}"
        value.reject(wanted, f"{len(devices)} lists of devices")
    for device, times in Counter(itertools.chain(*devices)).items():
        if times > 1:
            value.reject("each device once on a host", f"device {device} {times} times")
