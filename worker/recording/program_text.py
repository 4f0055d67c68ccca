"""What can be told of a computation from its texts: the lowered module before, and XLA's own after compiling; pure."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Sequence
from itertools import groupby
from typing import Any, NamedTuple

# Bytes of all input shapes of a program in a report; more are cut off.
MAX_SHAPES = 2000
# These say nothing of what is computed: memory addresses of a process and paths of a host, which compiled kernels hold;
# the names that a script gives to outputs. MLIR writes a quote inside of a string as \22.
NO_MATTER = re.compile(r'(?:backend_config|jax\.result_info) = "[^"]*"')
NAME = re.compile(r"module @([^\s]+)")
MAIN = re.compile(r"^ *func\.func public @main\(.*$", re.MULTILINE)
INPUT = re.compile(r"%arg\d+: tensor<((?:[^<>]|<[^<>]*>)*)>")
SHAPE = re.compile(r"((?:\d+x)*)(.*)")
TYPES = {"i1": "bool", "complex<f32>": "c64", "complex<f64>": "c128"}
# Who takes part in a collective: up to the next property of the instruction. Two patterns, because the search for a
# fixed beginning is twenty times as fast as one for alternatives, and a text may have many megabytes.
GROUPS = [re.compile(f"{name}=(.*?)(?:, [a-z]|$)", re.MULTILINE) for name in ("replica_groups", "source_target_pairs")]
COLLECTIVES = ("all-reduce(", "all-gather(", "all-to-all(", "reduce-scatter(", "collective-")
# {{0,1},{2,3}}
LISTED = re.compile(r"\{((?:\{[\d,]*\},?)*)\}")
# [2,4]<=[8] or [4,2]<=[2,4]T(1,0): the ids in the order of an array, transposed, as so many groups of so many
COUNTED = re.compile(r"\[(\d+),(\d+)\]<=\[([\d,]+)\](?:T\(([\d,]+)\))?")
# mesh['data'=2,'model'=4] {'data'}: along these axes of an array of all ids
ALONG_AXES = re.compile(r"mesh\[((?:'[^']*'=\d+,?)+)\] \{((?:'[^']*',?)*)\}(?=,| |$)")
AXIS = re.compile(r"'([^']*)'=(\d+)")


class Described(NamedTuple):
    """A lowered module: `fingerprint` is that of all, `layout` that of its inputs and outputs with their shardings.

    `inputs` are pairs of a shape and how often it comes in a row.
    """

    program: str  # its name
    fingerprint: str
    layout: str
    inputs: list[tuple[str, int]]


def describe_module(text: str, devices: Sequence[int]) -> Described:
    """`devices` in the order in which the computation uses them, which is part of it."""
    name = NAME.search(text)
    text = NO_MATTER.sub("", NAME.sub("", text, count=1))
    main = MAIN.search(text)
    head = main[0] if main else ""
    arguments, _, _ = head.partition(") -> ")
    return Described(
        program=name[1].strip('"') if name else "a computation",
        fingerprint=digest(f"{text}\n{list(devices)}"),
        layout=digest(head),
        inputs=shorten([show_shape(found) for found in INPUT.findall(arguments)]),
    )


def digest(text: str) -> str:
    return hashlib.blake2b(text.encode("utf-8", "replace"), digest_size=12).hexdigest()


def show_shape(tensor: str) -> str:
    """`f32[128,64]` for MLIR's `128x64xf32`."""
    found = SHAPE.match(tensor)
    assert found is not None  # it matches everything
    sizes, kind = found.groups()
    if kind.startswith("ui"):
        kind = f"u{kind[2:]}"
    return f"{TYPES.get(kind, kind)}[{','.join(sizes.split('x')[:-1])}]"


def shorten(shapes: Sequence[str]) -> list[tuple[str, int]]:
    kept: list[tuple[str, int]] = []
    left = MAX_SHAPES
    for shape, times in groupby(shapes):
        left -= len(shape) + 8
        if left < 0:
            return [*kept, ("…", 1)]
        kept.append((shape, len(list(times))))
    return kept


def communicates(text: str, owners: Sequence[int]) -> bool | None:
    """Whether a compiled program sends anything from one process to another; None where that cannot be told.

    `owners` are the processes of its devices. One that does not communicate may as well run on one process alone.
    """
    found = {groups for pattern in GROUPS for groups in pattern.findall(text)}
    answers = {spans_processes(groups, owners) for groups in found}
    if True in answers:
        return True
    is_unknown = None in answers or not found and any(word in text for word in COLLECTIVES)
    return None if is_unknown else False


def spans_processes(groups: str, owners: Sequence[int]) -> bool | None:
    """Of the text that says which devices take part in a collective together."""
    together = parse_groups(groups, len(owners))
    if together is None or any(not 0 <= number < len(owners) for group in together for number in group):
        return None
    return any(len({owners[number] for number in group}) > 1 for group in together)


def parse_groups(text: str, count: int) -> list[list[int]] | None:
    if listed := LISTED.match(text):
        groups = [[int(number) for number in each.split(",") if number] for each in re.findall(r"\{([\d,]*)\}", text)]
        return groups if listed[1] else [list(range(count))]
    import numpy as np  # jax needs it too

    if counted := COUNTED.match(text):
        number, size, dimensions, order = counted.groups()
        ids = _ids([int(each) for each in dimensions.split(",")], count)
        if ids is None or ids.size != int(number) * int(size):
            return None
        turned = ids.transpose([int(each) for each in order.split(",")]) if order else ids
        return _as_lists(turned.reshape(int(number), int(size)))
    if along := ALONG_AXES.match(text):
        axes = AXIS.findall(along[1])
        wanted = re.findall(r"'([^']*)'", along[2])
        ids = _ids([int(size) for _, size in axes], count)
        names = [name for name, _ in axes]
        if ids is None or not set(wanted) <= set(names):
            return None
        moved = np.moveaxis(ids, [names.index(name) for name in wanted], range(len(wanted)))
        rest = moved.shape[: len(wanted)]
        return _as_lists(moved.reshape(int(np.prod(rest, dtype=int)), -1).T)
    return None


def _ids(shape: list[int], count: int) -> Any:
    import numpy as np

    return np.arange(count).reshape(shape) if int(np.prod(shape, dtype=int)) == count else None


def _as_lists(ids: Any) -> list[list[int]]:
    return [[int(number) for number in group] for group in ids]
