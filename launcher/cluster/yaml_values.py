"""YAML values that know their lines, and checks that note every problem instead of stopping at the first."""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NoReturn

from hostmesh.launcher.errors import ClusterError

MAX_BYTES = 1 << 20
MAX_PROBLEMS = 1000  # aliases let a small file repeat one mistake without end
MAX_ITEMS = 10_000


class Problems:
    def __init__(self, path: str) -> None:
        self.path = path
        self.entries: list[tuple[int, str]] = []

    def add(self, line: int, text: str) -> None:
        self.entries.append((line, text))
        if len(self.entries) == MAX_PROBLEMS:
            self.stop(line, f"found {MAX_PROBLEMS} problems and read no further")

    def stop(self, line: int, text: str) -> NoReturn:
        self.entries.append((line, text))
        raise self.error() from None

    def error(self) -> ClusterError:
        in_order = sorted(self.entries, key=lambda problem: problem[0])
        return ClusterError([f"{self.path}:{line}: {text}" for line, text in in_order])


def read_text(path: str, wanted: str = "a cluster YAML file") -> str:
    try:
        with open(path, "rb") as file:
            data = file.read(MAX_BYTES + 1)
    except OSError as error:
        reason = (error.strerror or str(error)).lower()
        raise ClusterError([f"{path}: {reason}; wanted {wanted}"]) from None
    if len(data) > MAX_BYTES:
        raise ClusterError([f"{path}: found more than {MAX_BYTES} bytes, wanted {wanted}"])
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        raise ClusterError([f"{path}:{line}: found bytes that are no UTF-8, wanted UTF-8 text"]) from None


def compose(text: str, problems: Problems, wanted: str = "a mapping with 'hosts'") -> Any:
    """The text as YAML nodes instead of objects: nodes know their lines, obey no tags, and do not copy aliases."""
    import yaml  # here, because `--local` needs no YAML and starts sooner without it

    try:
        loader = yaml.SafeLoader(text)
        node = loader.get_single_node()
        return node or problems.stop(1, f"found an empty file, wanted {wanted}")
    except yaml.reader.ReaderError as error:
        problems.stop(text.count("\n", 0, error.position) + 1, f"not valid YAML: {error.reason}")
    except yaml.MarkedYAMLError as error:
        line = error.problem_mark.line if error.problem_mark else loader.line
        problems.stop(line + 1, f"not valid YAML: {', '.join(filter(None, (error.context, error.problem)))}")
    except RecursionError:
        problems.stop(loader.line + 1, "found lists or mappings nested too deeply to be read")
    except (ValueError, OverflowError) as error:  # the parser passes "\UFFFFFFFF" on to chr()
        problems.stop(loader.line + 1, f"not valid YAML: {error}")


TEXT, WHOLE, NUMBER, BOOLEAN, NOTHING = "text", "a whole number", "a number", "a boolean", "nothing"
_KIND_OF_TAG = {
    "str": TEXT,
    "int": WHOLE,
    "float": NUMBER,
    "null": NOTHING,
    "bool": BOOLEAN,
    "timestamp": "a date",
}


@dataclass(frozen=True)
class Value:
    """A YAML node, its name such as hosts[1].port, and the collection of problems that it adds its own to."""

    node: Any
    where: str
    problems: Problems

    @property
    def line(self) -> int:
        return int(self.node.start_mark.line) + 1

    @property
    def kind(self) -> str:
        if self.node.id != "scalar":
            return {"sequence": "a list", "mapping": "a mapping"}[self.node.id]
        tag = self.node.tag.removeprefix("tag:yaml.org,2002:")
        return _KIND_OF_TAG.get(tag, f"tagged {_show(tag)}")

    @property
    def shown(self) -> str:
        if self.node.id != "scalar" or self.kind == NOTHING:
            return self.kind
        return f"'{_show(self.node.value)}'" if self.kind == TEXT else _show(self.node.value)

    def fail(self, text: str) -> None:
        self.problems.add(self.line, f"{self.where}: {text}".removeprefix(": "))

    def reject(self, wanted: str, found: str | None = None) -> None:
        self.fail(f"found {found or self.shown}, wanted {wanted}")

    def is_a(self, kinds: tuple[str, ...], wanted: str) -> bool:
        if self.kind not in kinds:
            self.reject(wanted, self.shown if self.shown == self.kind else f"{self.shown} ({self.kind})")
        return self.kind in kinds

    def item(self, index: int) -> Value:
        return Value(self.node.value[index], f"{self.where}[{index}]", self.problems)

    def pairs(self) -> Iterator[tuple[Value, Value]]:
        for key, node in self.node.value:
            name = _show(key.value) if key.id == "scalar" else "?"
            where = f"{self.where}.{name}".removeprefix(".")
            yield Value(key, self.where, self.problems), Value(node, where, self.problems)

    def under(self, name: str) -> Value:
        return next(value for key, value in self.pairs() if key.node.value == name)

    def entries(self, wanted: str) -> Iterator[tuple[str, Value, Value]]:
        """Name, key and value of each pair; keys that are no text or appear again are noted as problems."""
        lines: dict[str, int] = {}
        for key, value in self.pairs() if self.is_a(("a mapping",), wanted) else ():
            name = key.node.value
            if key.node.tag == "tag:yaml.org,2002:merge":
                key.fail("merge keys ('<<') are not supported; write the keys out")
            elif key.is_a((TEXT,), "text as a key; put it in quotes"):
                if name in lines:
                    key.fail(f"duplicate key {key.shown}; it is already on line {lines[name]}")
                else:
                    yield name, key, value
                lines.setdefault(name, key.line)

    def read(self, schema: Mapping[str, Check], required: tuple[str, ...] = ()) -> dict[str, Any]:
        values = {}
        for name, key, value in self.entries(f"a mapping with keys from {', '.join(schema)}"):
            if name in schema:
                values[name] = schema[name](value)
            else:
                near = difflib.get_close_matches(name[:60], schema, n=1)
                hint = f"nearest is '{near[0]}'" if near else f"valid keys are {', '.join(schema)}"
                key.fail(f"unknown key {key.shown}; {hint}")
        for name in required if self.kind == "a mapping" else ():
            if name not in values:
                self.fail(f"missing key '{name}'")
        return values


def _show(text: str) -> str:
    return repr(text if len(text) <= 60 else text[:57] + "...")[1:-1]


# A check gives the value, or None once it has noted a problem.
Check = Callable[[Value], Any]


def scalar(
    kinds: tuple[str, ...],
    pattern: str,
    wanted: str,
    convert: Callable[[str], Any] = str,
    test: Callable[[Any], bool] = lambda _: True,
) -> Check:
    def check(value: Value) -> Any:
        if not value.is_a(kinds, wanted):
            return None
        if re.fullmatch(pattern, value.node.value) and test(convert(value.node.value)):
            return convert(value.node.value)
        value.reject(wanted)
        return None

    return check


def one_of(words: Sequence[str]) -> Check:
    """YAML reads `off` as a boolean."""
    return scalar((TEXT, BOOLEAN), "|".join(words), f"one of {', '.join(words)}")


def whole_number(low: int, high: float, wanted: str) -> Check:
    # YAML also reads 0x16, 022 (eighteen) and 1:30 (ninety); nobody means those here.
    return scalar((WHOLE,), "0|[1-9][0-9]{0,17}", wanted, int, lambda number: low <= number <= high)


def seconds(test: Callable[[float], bool], wanted: str) -> Check:
    return scalar((WHOLE, NUMBER), r"(0|[1-9][0-9]{0,14})(\.[0-9]*)?", wanted, float, test)


_TRUE = ("true", "yes", "on")
boolean = scalar(
    (BOOLEAN,), "(?i:true|yes|on|false|no|off)", "true or false", convert=lambda text: text.lower() in _TRUE
)


def sequence(item: Check, wanted: str, least: int = 0, most: int = MAX_ITEMS) -> Check:
    def check(value: Value) -> tuple[Any, ...] | None:
        if not value.is_a(("a list",), wanted):
            return None
        length = len(value.node.value)
        if not least <= length <= most:
            value.reject(f"{wanted}: {least} to {most} of them", f"{length or 'an empty list'}")
            return None
        items = tuple(item(value.item(index)) for index in range(length))
        return None if None in items else items

    return check
