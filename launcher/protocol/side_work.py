"""Messages about work beside the processes: compiled programs that are carried, and commands of `launch exec`; stdlib
only, Python 3.9 or newer.
"""

# Without `from __future__ import annotations`: NamedTuple would compile every annotation, a millisecond at each start.
from typing import NamedTuple

# Commands, launcher to agent.


class ShareCompiled(NamedTuple):
    """Tell which compiled programs process 0 uses, now and from now on; answered by CompiledUsed each time."""


class FindCompiled(NamedTuple):
    """Which of these compiled programs does the host lack? Answered by CompiledLacking."""

    folder: str
    names: list[str]


class ReadCompiled(NamedTuple):
    """Send so many bytes of a compiled program, from `start` on; answered by CompiledPiece."""

    folder: str
    name: str
    start: int
    size: int


class StoreCompiled(NamedTuple):
    """Bytes of another host's compiled program, from `start` on; `size` is that of all. Answered by CompiledStored."""

    folder: str
    name: str
    start: int
    size: int
    data: bytes = b""


class Execute(NamedTuple):
    """Run a command of the user's in `workdir`; answered by Printed for what it prints, and by Executed at its end."""

    number: int
    argv: list[str]
    workdir: str | None
    env: dict[str, str]


class CancelExecute(NamedTuple):
    """Nobody waits for this command any more: kill it, and whatever it has started."""

    number: int


# Events, agent to launcher.


class CompiledUsed(NamedTuple):
    """Compiled programs that process 0 has used: their sizes in bytes, by name. `folder` stands for a version of jax
    and a kind of processor."""

    folder: str
    sizes: dict[str, int]


class CompiledLacking(NamedTuple):
    """Those that the host does not have, of the compiled programs that it was asked for."""

    folder: str
    names: list[str]


class CompiledPiece(NamedTuple):
    """Some bytes of a compiled program; none if it is gone."""

    folder: str
    name: str
    start: int
    data: bytes = b""


class CompiledStored(NamedTuple):
    """The bytes from `start` on are on the host's disk; not `ok` if it cannot take them, or they are not what was
    compiled."""

    folder: str
    name: str
    start: int
    ok: bool


class Printed(NamedTuple):
    """What a command of the user's prints."""

    number: int
    data: bytes = b""


class Executed(NamedTuple):
    """A command of the user's has ended, and nothing is left of it; `code` is negative for a signal."""

    number: int
    code: int
