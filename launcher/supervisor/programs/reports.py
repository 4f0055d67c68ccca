"""What a process says of a program that it compiles, checked: it may say anything; pure."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from hostmesh.launcher.words import as_one_line

MAX_INPUTS = 100_000
MAX_PROCESS = 1 << 20

# Pairs of a shape, and how often it comes in a row.
Inputs = tuple[tuple[str, int], ...]


@dataclass(frozen=True)
class Begun:
    """A program that a process begins to compile; `members` are the processes that share its devices, bit n for n."""

    name: str
    place: str | None
    stack: str
    inputs: Inputs
    layout: str
    fingerprint: str
    devices: str
    members: int
    ahead: bool  # of time: it is called later, or never
    again: bool  # it was compiled ahead of time before, and is now called


def read_begun(process_id: int, detail: dict[str, Any]) -> Begun | None:
    match detail:
        case {
            "program": str(name),
            "stack": str(stack),
            "inputs": list(given),
            "layout": str(layout),
            "fingerprint": str(fingerprint),
            "devices": str(devices),
            "processes": list(ranges),
        }:
            place, inputs, members = detail.get("place"), _read_inputs(given), _read_members(ranges)
            if inputs is None or not members >> process_id & 1:
                return None
            return Begun(
                *(as_one_line(name), as_one_line(place) if isinstance(place, str) else None, stack, inputs),
                *(layout, fingerprint, devices, members),
                ahead=bool(detail.get("ahead")),
                again=bool(detail.get("again")),
            )
    return None


def _read_inputs(given: list[Any]) -> Inputs | None:
    inputs = []
    for each in given:
        match each:
            case [str(shape), int(times)] if 0 < times <= MAX_INPUTS:
                inputs.append((as_one_line(shape), times))
            case _:
                return None
    return tuple(inputs) if sum(times for _, times in inputs) <= MAX_INPUTS else None


def _read_members(ranges: list[Any]) -> int:
    """From the first and last of every run of numbers."""
    members = 0
    for each in ranges:
        match each:
            case [int(first), int(last)] if 0 <= first <= last < MAX_PROCESS:
                members |= (1 << last + 1) - (1 << first)
            case _:
                return 0
    return members


def as_mask(processes: Iterable[int]) -> int:
    return sum(1 << number for number in set(processes))


def as_numbers(mask: int) -> list[int]:
    return [number for number in range(mask.bit_length()) if mask >> number & 1]
