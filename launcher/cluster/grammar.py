"""What each key of a cluster file may hold: one check a key, and the tables of keys."""

from __future__ import annotations

import math
import os
import re
from typing import Any

from hostmesh.launcher.cluster.gcloud import TpuPod
from hostmesh.launcher.cluster.host_names import NamePattern, parse_names
from hostmesh.launcher.cluster.kubernetes import read_kubernetes
from hostmesh.launcher.cluster.model import (
    AT_DISAGREEMENT,
    COMPILE_CACHE,
    GUARDS,
    MAX_PROCESSES,
    METRICS_OF,
    TRANSPORTS,
    HangTimeout,
    Job,
    Kubernetes,
    Preemption,
    Setup,
    Ssh,
    Sync,
)
from hostmesh.launcher.cluster.yaml_values import (
    TEXT,
    WHOLE,
    Check,
    Value,
    boolean,
    one_of,
    scalar,
    seconds,
    sequence,
    whole_number,
)
from hostmesh.launcher.engines.slurm.grammar import read_slurm
from hostmesh.launcher.engines.slurm.settings import Slurm

MAX_HOSTS, MAX_DEVICES = 10_000, 64

# Neither NUL nor half a surrogate pair can be handed to a process.
_any_text = scalar((TEXT,), "[^\0\ud800-\udfff]*", "text without NUL characters")
_line = scalar((TEXT,), "[^\0\ud800-\udfff\r\n]+", "text on one line")
_path = scalar((TEXT,), "(?!-)[^\0\ud800-\udfff\r\n]+", "a path on one line that does not begin with '-'")
_word = scalar((TEXT, WHOLE), "[^\0\ud800-\udfff]*", "text in quotes (without NUL) or a whole number")
_module = scalar((TEXT,), r"[^\W\d]\w*(\.[^\W\d]\w*)*", "a dotted name such as package.module")
_variable = scalar(
    (TEXT,),
    "(?!HOSTMESH_(?!DATA_))[A-Za-z_][A-Za-z0-9_]*",
    "a name of letters, digits and _ that begins with neither a digit nor the reserved HOSTMESH_",
)
_processes = whole_number(1, MAX_PROCESSES, f"from 1 to {MAX_PROCESSES} processes")
# ssh would take a leading dash for an option, an @ for a user and a lone colon for a port.
_address = scalar(
    (TEXT,),
    r"(?!-)(?![^:]*:[^:]*$)(?=.{1,255}$)([A-Za-z0-9_.:%-]|\[[^][]*\])+",
    "a host name or address such as gpu-7 or gpu-[0-7]; user and port have keys of their own",
)


def _names(value: Value) -> NamePattern | None:
    text = _address(value)
    if text is None:
        return None
    pattern = parse_names(text)
    if pattern is None:
        value.reject("brackets with a rising range or a list, such as [0-3] or [a,b]")
    return pattern


# A value that names hosts, and the settings of one of them.
HostEntry = tuple[Value, dict[str, Any]]


def _hosts(value: Value) -> list[HostEntry] | TpuPod | Slurm | Kubernetes:
    """Each host's own settings beside the value that names it, or who knows the hosts or hands them out."""
    if value.kind == "a mapping":
        owners: dict[str, Check] = {"gcloud": _pod, "slurm": read_slurm, "kubernetes": read_kubernetes}
        chosen = value.read(owners)
        if len(chosen) > 1 or not value.node.value:
            value.reject(f"a list of hosts, or one of {', '.join(owners)}", " and ".join(chosen) or "nothing")
        return next(filter(None, chosen.values()), [])
    read = sequence(_host, "a list of hosts", least=1)(value) or ()
    named = [(entry, settings) for entry, settings in read if settings.get("address")]
    total = sum(settings["address"].count for _, settings in named)
    if total > MAX_HOSTS:
        value.reject(f"at most {MAX_HOSTS}", f"{total} hosts")
        return []
    return [(entry, each) for entry, settings in named for each in _spell_out(entry, settings)]


def _pod(value: Value) -> TpuPod | None:
    settings = value.read(_GCLOUD, required=("tpu", "zone"))
    name, zone = settings.pop("tpu", None), settings.pop("zone", None)
    return TpuPod(name, zone, **settings) if name and zone else None


def _host(value: Value) -> HostEntry:
    if value.kind == TEXT:
        return value, {"address": _names(value)}
    if not value.is_a(("a mapping",), "an address or a mapping with an address"):
        return value, {}
    if any(key.node.value == "gcloud" for key, _ in value.pairs()):
        value.reject("it alone, as in hosts: {gcloud: {tpu: NAME, zone: ZONE}}", "gcloud in a list of hosts")
        return value, {}
    return value, value.read(_HOST, required=("address",))


def _spell_out(entry: Value, settings: dict[str, Any]) -> list[dict[str, Any]]:
    addresses, inner = settings["address"].spell(), settings.get("internal_address")
    if inner is None:
        return [{**settings, "address": address} for address in addresses]
    if inner.count != len(addresses):
        wanted = f"{len(addresses)}: one for each address"
        entry.under("internal_address").reject(wanted, f"{inner.count} addresses")
        return []
    pairs = zip(addresses, inner.spell(), strict=True)
    return [{**settings, "address": address, "internal_address": other} for address, other in pairs]


def _devices(value: Value) -> Any:
    wanted = "auto or a list with one list of device ids for each process"
    if value.kind == TEXT:
        return scalar((TEXT,), "auto", wanted)(value)
    device = whole_number(0, 1 << 16, "a device id, 0 or more")
    return sequence(sequence(device, "device ids", 1, MAX_DEVICES), wanted, 1, MAX_PROCESSES)(value)


def _env(value: Value) -> dict[str, Any]:
    variables = {}
    for name, key, text in value.entries("a mapping of names to text"):
        _variable(key)
        variables[name] = _word(text)
    return variables


def _resolve(value: Value) -> str | None:
    """An absolute path. A relative one begins in the folder of the cluster file, wherever launch is started."""
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


def _preemption(value: Value) -> Preemption | None:
    settings = value.read(
        {"file": _path, "command": _line, "every": seconds(lambda seconds: seconds >= 0.1, "0.1 seconds or more")}
    )
    if value.kind == "a mapping" and not {"file", "command"} & settings.keys():
        value.reject("a file, a command, or both", "neither")
    return Preemption(**settings) if None not in settings.values() else None


_budget = whole_number(0, math.inf, "a whole number, 0 or more")
_hang_seconds = seconds(lambda seconds: seconds >= 0, "0 seconds (never) or more")
_phase_name = scalar((TEXT,), "[^\0\ud800-\udfff\r\n]{1,100}", "the name of a phase, such as step or compiling")


def _hang_timeout(value: Value) -> HangTimeout | None:
    """A number for all phases, or a mapping of phases to numbers."""
    if value.kind != "a mapping":
        seconds = _hang_seconds(value)
        return None if seconds is None else HangTimeout(seconds)
    limits = {}
    for name, key, limit in value.entries("a number of seconds, or a mapping of phases to seconds"):
        _phase_name(key)
        limits[name] = _hang_seconds(limit)
    if None in limits.values():
        return None
    return HangTimeout(None, {name: each or math.inf for name, each in limits.items()})


def _run(value: Value) -> Job | None:
    settings = value.read(_JOB)
    kinds = [key for key in settings if key != "args"]
    if value.kind == "a mapping" and len(kinds) != 1:
        value.reject("exactly one of script, module, command", " and ".join(kinds) or "none")
    return Job(**settings) if len(kinds) == 1 and None not in settings.values() else None


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

CLUSTER: dict[str, Check] = {
    "name": _line,
    "transport": one_of(TRANSPORTS),
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
    "restarts": _budget,
    "preemptions": _budget,
    "preemption": _preemption,
    "spares": _budget,
    "min_hosts": whole_number(1, MAX_HOSTS, f"from 1 to {MAX_HOSTS} hosts"),
    "rejoin": seconds(lambda seconds: seconds >= 0, "0 seconds (not at all) or more"),
    "hang_timeout": _hang_timeout,
    "programs": one_of(AT_DISAGREEMENT),
    "guard": one_of(GUARDS),
    "compile_cache": one_of(COMPILE_CACHE),
    "metrics": scalar((TEXT, WHOLE), "|".join(METRICS_OF), "0 (those of process 0) or all"),
    "run": _run,
}
