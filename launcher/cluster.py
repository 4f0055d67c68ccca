"""Cluster, Host: read a cluster YAML, check all of it, freeze it."""

from __future__ import annotations

import difflib
import itertools
import math
import os
import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Any, Literal, NoReturn

from launcher.errors import ClusterError, UsageError

TRANSPORTS = ("local", "ssh", "docker", "slurm", "kubernetes")
MOST_HOSTS = 10_000
MOST_PROCESSES = 1024
MOST_DEVICES = 64
MOST_BYTES = 1 << 20
MOST_PROBLEMS = 1000  # aliases let a small file repeat one mistake without end


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
    problems = _Problems(os.fspath(path))
    top = _Value(_compose(_read_text(problems.path), problems), "", problems)
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


class _Problems:
    def __init__(self, path: str) -> None:
        self.path = path
        self.found: list[tuple[int, str]] = []

    def add(self, line: int, text: str) -> None:
        self.found.append((line, text))
        if len(self.found) == MOST_PROBLEMS:
            self.stop(line, f"found {MOST_PROBLEMS} problems and read no further")

    def stop(self, line: int, text: str) -> NoReturn:
        self.found.append((line, text))
        raise self.error() from None

    def error(self) -> ClusterError:
        in_order = sorted(self.found, key=lambda problem: problem[0])
        return ClusterError([f"{self.path}:{line}: {text}" for line, text in in_order])


def _read_text(path: str) -> str:
    try:
        with open(path, "rb") as file:
            data = file.read(MOST_BYTES + 1)
    except OSError as error:
        reason = (error.strerror or str(error)).lower()
        raise ClusterError([f"{path}: {reason}; wanted a cluster YAML file"]) from None
    if len(data) > MOST_BYTES:
        raise ClusterError([f"{path}: found more than {MOST_BYTES} bytes, wanted a cluster YAML file"])
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        raise ClusterError([f"{path}:{line}: found bytes that are no UTF-8, wanted UTF-8 text"]) from None


def _compose(text: str, problems: _Problems) -> Any:
    """Nodes, not objects: they know their lines, obey no tags, and share what an alias would copy."""
    import yaml  # here, because `--local` needs no YAML and starts sooner without it

    try:
        loader = yaml.SafeLoader(text)
        node = loader.get_single_node()
        return node or problems.stop(1, "found an empty file, wanted a mapping with 'hosts'")
    except yaml.reader.ReaderError as error:
        problems.stop(text.count("\n", 0, error.position) + 1, f"not valid YAML: {error.reason}")
    except yaml.MarkedYAMLError as error:
        line = error.problem_mark.line if error.problem_mark else loader.line
        problems.stop(line + 1, f"not valid YAML: {', '.join(filter(None, (error.context, error.problem)))}")
    except RecursionError:
        problems.stop(loader.line + 1, "found lists or mappings nested too deeply to be read")
    except (ValueError, OverflowError) as error:  # the parser passes "\UFFFFFFFF" on to chr()
        problems.stop(loader.line + 1, f"not valid YAML: {error}")


_TEXT, _WHOLE, _NUMBER, _NOTHING = "text", "a whole number", "a number", "nothing"
_KINDS = {
    "str": _TEXT,
    "int": _WHOLE,
    "float": _NUMBER,
    "null": _NOTHING,
    "bool": "a boolean",
    "timestamp": "a date",
}


@dataclass(frozen=True)
class _Value:
    """A YAML node, the name of its place such as hosts[1].port, and where its problems go."""

    node: Any
    where: str
    problems: _Problems

    @property
    def line(self) -> int:
        return int(self.node.start_mark.line) + 1

    @property
    def kind(self) -> str:
        if self.node.id != "scalar":
            return {"sequence": "a list", "mapping": "a mapping"}[self.node.id]
        tag = self.node.tag.removeprefix("tag:yaml.org,2002:")
        return _KINDS.get(tag, f"tagged {_show(tag)}")

    @property
    def shown(self) -> str:
        if self.node.id != "scalar" or self.kind == _NOTHING:
            return self.kind
        return f"'{_show(self.node.value)}'" if self.kind == _TEXT else _show(self.node.value)

    def fail(self, text: str) -> None:
        self.problems.add(self.line, f"{self.where}: {text}".removeprefix(": "))

    def reject(self, wanted: str, found: str | None = None) -> None:
        self.fail(f"found {found or self.shown}, wanted {wanted}")

    def is_a(self, kinds: tuple[str, ...], wanted: str) -> bool:
        if self.kind not in kinds:
            self.reject(wanted, self.shown if self.shown == self.kind else f"{self.shown} ({self.kind})")
        return self.kind in kinds

    def item(self, index: int) -> _Value:
        return _Value(self.node.value[index], f"{self.where}[{index}]", self.problems)

    def pairs(self) -> Iterator[tuple[_Value, _Value]]:
        for key, node in self.node.value:
            name = _show(key.value) if key.id == "scalar" else "?"
            where = f"{self.where}.{name}".removeprefix(".")
            yield _Value(key, self.where, self.problems), _Value(node, where, self.problems)

    def under(self, name: str) -> _Value:
        return next(value for key, value in self.pairs() if key.node.value == name)

    def entries(self, wanted: str) -> Iterator[tuple[str, _Value, _Value]]:
        """Name, key and value of each pair whose key is new and text."""
        lines: dict[str, int] = {}
        for key, value in self.pairs() if self.is_a(("a mapping",), wanted) else ():
            name = key.node.value
            if key.node.tag == "tag:yaml.org,2002:merge":
                key.fail("merge keys ('<<') are not supported; write the keys out")
            elif key.is_a((_TEXT,), "text as a key; put it in quotes"):
                if name in lines:
                    key.fail(f"duplicate key {key.shown}; it is already on line {lines[name]}")
                else:
                    yield name, key, value
                lines.setdefault(name, key.line)

    def read(self, schema: Mapping[str, Check], required: str = "") -> dict[str, Any]:
        values = {}
        for name, key, value in self.entries(f"a mapping with keys from {', '.join(schema)}"):
            if name in schema:
                values[name] = schema[name](value)
            else:
                near = difflib.get_close_matches(name[:60], schema, n=1)
                hint = f"nearest is '{near[0]}'" if near else f"valid keys are {', '.join(schema)}"
                key.fail(f"unknown key {key.shown}; {hint}")
        if required and required not in values and self.kind == "a mapping":
            self.fail(f"missing key '{required}'")
        return values


def _show(text: str) -> str:
    return repr(text if len(text) <= 60 else text[:57] + "...")[1:-1]


# A check gives the value, or None once it has noted a problem.
Check = Callable[[_Value], Any]


def _scalar(
    kinds: tuple[str, ...],
    pattern: str,
    wanted: str,
    convert: Callable[[str], Any] = str,
    test: Callable[[Any], bool] = lambda _: True,
) -> Check:
    def check(value: _Value) -> Any:
        if not value.is_a(kinds, wanted):
            return None
        if re.fullmatch(pattern, value.node.value) and test(convert(value.node.value)):
            return convert(value.node.value)
        value.reject(wanted)
        return None

    return check


def _whole(low: int, high: float, wanted: str) -> Check:
    # YAML also reads 0x16, 022 (eighteen) and 1:30 (ninety); nobody means those here.
    return _scalar((_WHOLE,), "0|[1-9][0-9]{0,17}", wanted, int, lambda number: low <= number <= high)


def _seconds(test: Callable[[float], bool], wanted: str) -> Check:
    return _scalar((_WHOLE, _NUMBER), r"(0|[1-9][0-9]{0,14})(\.[0-9]*)?", wanted, float, test)


def _list(item: Check, wanted: str, least: int = 0, most: int = MOST_HOSTS) -> Check:
    def check(value: _Value) -> tuple[Any, ...] | None:
        if not value.is_a(("a list",), wanted):
            return None
        length = len(value.node.value)
        if not least <= length <= most:
            value.reject(f"{wanted}: {least} to {most} of them", f"{length or 'an empty list'}")
            return None
        found = tuple(item(value.item(index)) for index in range(length))
        return None if None in found else found

    return check


# Neither NUL nor half a surrogate pair can be handed to a process.
_any_text = _scalar((_TEXT,), "[^\0\ud800-\udfff]*", "text without NUL characters")
_line = _scalar((_TEXT,), "[^\0\ud800-\udfff\r\n]+", "text on one line")
_path = _scalar((_TEXT,), "(?!-)[^\0\ud800-\udfff\r\n]+", "a path on one line that does not begin with '-'")
_word = _scalar((_TEXT, _WHOLE), "[^\0\ud800-\udfff]*", "text in quotes (without NUL) or a whole number")
_module = _scalar((_TEXT,), r"[^\W\d]\w*(\.[^\W\d]\w*)*", "a dotted name such as package.module")
_variable = _scalar(
    (_TEXT,),
    "(?!HOSTMESH_)[A-Za-z_][A-Za-z0-9_]*",
    "a name of letters, digits and _ that begins with neither a digit nor the reserved HOSTMESH_",
)
_processes = _whole(1, MOST_PROCESSES, f"from 1 to {MOST_PROCESSES} processes")
# ssh would take a leading dash for an option, an @ for a user and a lone colon for a port.
_address = _scalar(
    (_TEXT,),
    r"(?!-)(?![^:]*:[^:]*$)(?=.{1,255}$)([A-Za-z0-9_.:%-]|\[[^][]*\])+",
    "a host name or address such as gpu-7 or gpu-[0-7]; user and port have keys of their own",
)


# The choices of one bracket: numbers, and the format that spells them.
Choices = list[tuple[range, str]]


def _names(value: _Value) -> list[Choices] | None:
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


Entry = tuple[_Value, dict[str, Any]]


def _hosts(value: _Value) -> list[Entry]:
    """Each host's own settings beside the entry that names it."""
    read = _list(_host, "a list of hosts", least=1)(value) or ()
    named = [(entry, settings) for entry, settings in read if settings.get("address")]
    total = sum(_count(settings["address"]) for _, settings in named)
    if total > MOST_HOSTS:
        value.reject(f"at most {MOST_HOSTS}", f"{total} hosts")
        return []
    return [(entry, each) for entry, settings in named for each in _spell_out(entry, settings)]


def _host(value: _Value) -> Entry:
    if value.kind == _TEXT:
        return value, {"address": _names(value)}
    known = value.is_a(("a mapping",), "an address or a mapping with an address")
    return value, value.read(_HOST, required="address") if known else {}


def _spell_out(entry: _Value, settings: dict[str, Any]) -> list[dict[str, Any]]:
    addresses, inner = _spell(settings["address"]), settings.get("internal_address")
    if not inner:
        return [{**settings, "address": address} for address in addresses]
    if _count(inner) != len(addresses):
        wanted = f"{len(addresses)}: one for each address"
        entry.under("internal_address").reject(wanted, f"{_count(inner)} addresses")
        return []
    pairs = zip(addresses, _spell(inner), strict=True)
    return [{**settings, "address": address, "internal_address": other} for address, other in pairs]


def _devices(value: _Value) -> Any:
    wanted = "auto or a list with one list of device ids for each process"
    if value.kind == _TEXT:
        return _scalar((_TEXT,), "auto", wanted)(value)
    device = _whole(0, 1 << 16, "a device id, 0 or more")
    return _list(_list(device, "device ids", 1, MOST_DEVICES), wanted, 1, MOST_PROCESSES)(value)


def _env(value: _Value) -> dict[str, Any]:
    found = {}
    for name, key, text in value.entries("a mapping of names to text"):
        _variable(key)
        found[name] = _word(text)
    return found


def _sync(value: _Value) -> Sync:
    settings = value.read({"from": _path, "exclude": _list(_line, "a list of patterns")})
    return Sync(settings.get("from", "."), settings.get("exclude", ()))


def _run(value: _Value) -> Job:
    settings = value.read(_JOB)
    kinds = [key for key in settings if key != "args"]
    if value.kind == "a mapping" and len(kinds) != 1:
        value.reject("exactly one of script, module, command", " and ".join(kinds) or "none")
    return Job(**settings)


_HOST: dict[str, Check] = {
    "address": _names,
    "internal_address": _names,
    "user": _scalar((_TEXT,), r"(?!-)[A-Za-z0-9_.@+\\-]+", "a user name"),
    "port": _whole(1, 65535, "a port from 1 to 65535"),
    "processes": _processes,
    "python": _path,
}

_JOB: dict[str, Check] = {
    "script": _path,
    "module": _module,
    "command": _list(_any_text, "a program and its arguments", least=1),
    "args": _list(_word, "a list of arguments"),
}

_CLUSTER: dict[str, Check] = {
    "name": _line,
    "transport": _scalar((_TEXT,), "|".join(TRANSPORTS), f"one of {', '.join(TRANSPORTS)}"),
    "hosts": _hosts,
    "processes_per_host": _processes,
    "local_devices": _devices,
    "python": _path,
    "agent_python": _path,
    "workdir": _path,
    "sync": _sync,
    "setup": _list(_line, "a list of commands"),
    "env": _env,
    "secrets": _list(_variable, "a list of environment names"),
    "preload": _list(_module, "a list of modules"),
    "lease": _seconds(lambda seconds: seconds >= 1, "1 second or more"),
    "restarts": _whole(0, math.inf, "a whole number, 0 or more"),
    "hang_timeout": _seconds(lambda seconds: seconds > 0, "more than 0 seconds"),
    "run": _run,
}


def _check_duplicates(entries: list[Entry]) -> None:
    lines: dict[tuple[str, int | None], int] = {}
    for entry, settings in entries:
        host = settings["address"], settings.get("port")
        if host in lines:
            entry.fail(f"host {host[0]} is already on line {lines[host]}")
        lines.setdefault(host, entry.line)


def _check_together(top: _Value, values: dict[str, Any], hosts: tuple[Host, ...]) -> None:
    if values["transport"] == "local" and "sync" in values:
        top.under("sync").fail("local processes run in place; remove sync")
    for index, name in enumerate(values.get("secrets") or ()):
        if name in values["env"]:
            top.under("secrets").item(index).reject("a name that env does not set as well")
    if "tpu" in (values["env"].get("JAX_PLATFORMS") or "").split(","):
        _check_tpu(top.under("env").under("JAX_PLATFORMS"), hosts)
    if isinstance(values.get("local_devices"), tuple):
        _check_devices(top.under("local_devices"), values["local_devices"], hosts)


def _check_tpu(platforms: _Value, hosts: tuple[Host, ...]) -> None:
    crowded = next((host for host in hosts if (host.processes or 1) > 1), None)
    if crowded:
        reason = "several need the TPU_* bounds variables, which are not supported yet"
        found = f"{platforms.shown} with {crowded.processes} processes on {crowded.address}"
        platforms.reject(f"one process on a TPU host: {reason}", found)


def _check_devices(value: _Value, devices: tuple[tuple[int, ...], ...], hosts: tuple[Host, ...]) -> None:
    unequal = next((host for host in hosts if host.processes not in (None, len(devices))), None)
    if unequal:
        wanted = f"{unequal.processes}: one for each process on {unequal.address}"
        value.reject(wanted, f"{len(devices)} lists of devices")
    for device, times in Counter(itertools.chain(*devices)).items():
        if times > 1:
            value.reject("each device once on a host", f"device {device} {times} times")
