"""Processes that run different programs on the same devices, in words for their user; pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import zip_longest

from hostmesh.launcher.supervisor.programs.reports import Inputs
from hostmesh.launcher.words import agree, list_some, name_processes

MAX_SHAPES_TOLD = 2
MAX_SIDES_TOLD = 4
CUT_OFF = "…"


@dataclass(frozen=True)
class Side:
    """What some of the processes run."""

    name: str
    place: str | None
    inputs: Inputs
    layout: str
    processes: tuple[int, ...]


@dataclass(frozen=True)
class Missing:
    """A program that some run, and that those who are `lacking` have not compiled."""

    side: Side
    lacking: tuple[int, ...]
    communicates: bool = False


@dataclass(frozen=True)
class Disagreement:
    """The side of the most processes comes first. `members` is how many share the devices."""

    sides: tuple[Side, ...]
    members: int

    @property
    def minority(self) -> tuple[int, ...]:
        """Those that differ from more than half of all; nobody where no side is so large."""
        first, *others = self.sides
        if 2 * len(first.processes) <= self.members:
            return ()
        return tuple(sorted(number for side in others for number in side.processes))

    def text(self) -> str:
        """`processes 0 and 1 run jit_step with f32[128,64], process 2 with f32[96,64] (train.py:41)`."""
        told = self.sides[:MAX_SIDES_TOLD]
        first = told[0]
        same_name = all(side.name == first.name for side in told)
        same_place = all(side.place == first.place for side in told)
        inputs = tell_inputs([side.inputs for side in told]) if same_name else [""] * len(told)
        what = "" if any(inputs) or not same_name else self._tell_difference()
        parts = []
        for number, (side, shapes) in enumerate(zip(told, inputs, strict=True)):
            runs = "" if number and same_name else f" {agree('runs', len(side.processes))} {side.name}"
            shown = f" with {shapes}" if shapes else " another one" if number and same_name else ""
            where = f" ({side.place})" if side.place and not same_place else ""
            parts.append(f"{name_processes(side.processes)}{runs}{shown}{where}")
        more = len(self.sides) - len(told)
        rest = f", and {more} more kinds" if more else ""
        where = f" ({first.place})" if first.place and same_place else ""
        return f"{', '.join(parts)}{rest}{where}{what}"

    def _tell_difference(self) -> str:
        same_layout = len({side.layout for side in self.sides}) == 1
        return ": the same shapes, " + ("another computation" if same_layout else "other shardings or outputs")


@dataclass(frozen=True)
class Lone(Disagreement):
    """A program that some have run with `lacking`, who have never had it: something else of theirs took part in it."""

    lacking: tuple[int, ...] = ()

    @property
    def minority(self) -> tuple[int, ...]:
        run_by = self.sides[0].processes
        if 2 * len(self.lacking) > self.members:
            return run_by
        return self.lacking if 2 * len(run_by) > self.members else ()

    def text(self) -> str:
        side = self.sides[0]
        has, have = (agree("has", len(each)) for each in (side.processes, self.lacking))
        where = f" ({side.place})" if side.place else ""
        return (
            f"{name_processes(side.processes)} {has} run {side.name}{where} with {name_processes(self.lacking)}, who "
            f"{have} not, and all went on"
        )


def tell_inputs(all_inputs: Sequence[Inputs]) -> list[str]:
    """Of each side the shapes in which it differs from another; empty where none does."""
    expanded = [[shape for shape, times in inputs for _ in range(times)] for inputs in all_inputs]
    is_cut = any(inputs and inputs[-1][0] == CUT_OFF for inputs in all_inputs)
    if len({len(shapes) for shapes in expanded}) > 1 and not is_cut:
        return [f"{len(shapes)} inputs" for shapes in expanded]
    at = [number for number, each in enumerate(zip_longest(*expanded)) if len(set(each)) > 1]
    if not at:
        return [""] * len(expanded)
    return [_list_shapes([shapes[number] for number in at if number < len(shapes)]) for shapes in expanded]


def _list_shapes(shapes: Sequence[str]) -> str:
    return list_some(shapes, MAX_SHAPES_TOLD, MAX_SHAPES_TOLD)
