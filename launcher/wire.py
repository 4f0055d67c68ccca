"""The agent protocol: framed commands down, framed events up; stdlib only, Python 3.9 or newer.

A frame is two big-endian lengths, a JSON head `["Output", {"process_id": 3}]` and raw bytes (`data`, often empty).
Whatever a host prints before the agent's MAGIC (banners, shell start-up noise) is skipped.
"""

from __future__ import annotations

import json
import struct
from typing import Any, Dict, List, NamedTuple, Optional, Tuple

MAGIC = b"\x00hostmesh-agent-1\n"
LENGTHS = struct.Struct(">II")
MAX_PART = 64 << 20
MAX_NOISE = 1 << 20
# As much as an agent sends of what a process wrote last.
TAIL_LENGTH = 16 << 10
HEAD_LENGTH = 4 << 10


class WireError(Exception):
    """The other end does not speak the agent protocol."""


# Commands, launcher to agent. Named tuples and not dataclasses: making 18 of those takes 15 ms, at each end of a start.


class Lease(NamedTuple):
    """Silence for so many seconds means that the launcher is gone."""

    seconds: float


class PrepareWorkers(NamedTuple):
    """Check what the workers need and, when warm, start the nursery; answered by Ready or Refused."""

    python: str
    workdir: Optional[str]
    env: Dict[str, str]
    warm: bool
    preload: List[str]


class Code(NamedTuple):
    """What workers import (see launcher/bundle.py); comes before PrepareWorkers."""

    data: bytes = b""


class Sync(NamedTuple):
    """Make `workdir` hold the tree that `data` lists (launcher/sync/tree.py); answered by FilesNeeded or Refused."""

    workdir: str
    data: bytes = b""


class FileChunk(NamedTuple):
    """Some bytes (compressed) of the tree's entry `number`; after the last wanted one Synced or Refused comes."""

    number: int
    last: bool
    data: bytes = b""


class SkipFile(NamedTuple):
    """Do without the tree's entry `number`, some of which may have come: what was listed is not to be had any more."""

    number: int


class RunSetup(NamedTuple):
    """Run commands in `workdir`, unless they succeeded there under this `key`; answered by SetupDone or Refused."""

    commands: List[str]
    key: str
    workdir: Optional[str]
    env: Dict[str, str]


class Inspect(NamedTuple):
    """Look at the host, and whether it can resolve `names`; answered by Inspected. A run does not ask for all."""

    python: str
    workdir: Optional[str]
    env: Dict[str, str]
    names: List[str]
    thorough: bool


class Reserve(NamedTuple):
    """Hold a port for the coordinator on each of these addresses that can be bound; with `listen` other agents of the
    run can try them until processes are spawned. Answered by Reserved, or Refused when there is none."""

    addresses: List[str]
    listen: bool


class Reach(NamedTuple):
    """Try to connect to each (address, port), where another agent of the run listens; answered by Reached."""

    targets: List[Tuple[str, int]]


class Spawn(NamedTuple):
    """`at` is the launcher's clock."""

    process_id: int
    env: Dict[str, str]
    argv: List[str]
    is_python: bool
    at: float = 0.0


class Signal(NamedTuple):
    number: int


class Acknowledge(NamedTuple):
    """So many more bytes of output have been dealt with; how soon this comes tells how fast the link is."""

    size: int


class Stop(NamedTuple):
    """Take the stacks of every process that can give them, if asked to; kill everything, send the rest, say Bye."""

    stacks: bool


# Events, agent to launcher.


class Hello(NamedTuple):
    """`addresses` are those of the host's interfaces."""

    pid: int
    guardian_pid: int
    python: str
    addresses: List[str]


class FilesNeeded(NamedTuple):
    """Which entries of the tree the host does not have yet."""

    numbers: List[int]


class BytesStored(NamedTuple):
    """So many more bytes of pieces are on the host's disk, and as many may be sent."""

    size: int


class Synced(NamedTuple):
    written: int
    deleted: int


class SetupOutput(NamedTuple):
    data: bytes = b""


class SetupDone(NamedTuple):
    """`ran` is False when the same commands had succeeded before."""

    ran: bool
    seconds: float


class Inspected(NamedTuple):
    """What agent/inspect.py found."""

    found: Dict[str, Any]


class Reached(NamedTuple):
    """For each address that was tried: what went wrong, or None."""

    problems: Dict[str, Optional[str]]


class Ready(NamedTuple):
    python: str


class Refused(NamedTuple):
    """`said` is the end of what a program printed about it; the launcher takes secrets out and shows its last lines."""

    problem: str
    said: str = ""


class Reserved(NamedTuple):
    """Ports by address; the addresses are numbers, whatever was asked for."""

    ports: Dict[str, int]


class Started(NamedTuple):
    process_id: int
    pid: int
    warm: bool


class Output(NamedTuple):
    process_id: int
    data: bytes = b""


class Exited(NamedTuple):
    """`code` is negative for a signal; `data` holds the last bytes the process wrote.

    `at` is the host's clock; it is `ahead` of the launcher's by no more than that (see launcher/supervisor/clocks.py).
    """

    process_id: int
    code: int
    at: float = 0.0
    ahead: Optional[float] = None
    data: bytes = b""


class Drained(NamedTuple):
    """All output of an exited process has been sent."""

    process_id: int


class Stacks(NamedTuple):
    process_id: int
    data: bytes = b""


class Fact(NamedTuple):
    """Something a worker (or, with no process id, the host) says about itself."""

    name: str
    process_id: Optional[int] = None
    detail: Dict[str, Any] = {}


class Bye(NamedTuple):
    """`survivors` are pids that outlived SIGKILL."""

    survivors: List[int]


# Both ways.


class Beat(NamedTuple):
    pass


KINDS: Dict[str, Any] = {
    kind.__name__: kind
    for kind in (
        *(
            Lease,
            Code,
            Sync,
            FileChunk,
            SkipFile,
            RunSetup,
            Inspect,
            PrepareWorkers,
            Reserve,
            Reach,
            Spawn,
            Signal,
            Acknowledge,
            Stop,
        ),
        *(
            Beat,
            Hello,
            FilesNeeded,
            BytesStored,
            Synced,
            SetupOutput,
            SetupDone,
            Inspected,
            Ready,
            Refused,
            Reserved,
            Reached,
        ),
        *(Started, Output, Exited, Drained, Stacks, Fact, Bye),
    )
}


def encode(message: Any) -> bytes:
    fields = message._asdict()
    data: bytes = fields.pop("data", b"")
    head = json.dumps([type(message).__name__, fields]).encode()
    return LENGTHS.pack(len(head), len(data)) + head + data


class Decoder:
    """Bytes in, messages out, however the bytes are cut."""

    def __init__(self, after_magic: bool = False) -> None:
        self.noise: Tuple[bytes, ...] = ()
        self._waiting_for_magic = after_magic
        self._buffer = bytearray()

    def feed(self, data: bytes) -> List[Any]:
        self._buffer += data
        if self._waiting_for_magic and not self._skip_noise():
            return []
        messages = []
        while (frame := self._take_frame()) is not None:
            messages.append(_parse(*frame))
        return messages

    def _skip_noise(self) -> bool:
        start = self._buffer.find(MAGIC)
        if start < 0:
            self.noise = _keep_ends(self._buffer)
            if len(self._buffer) > MAX_NOISE:
                raise WireError("the host printed 1 MiB and no agent answered")
            return False
        self._waiting_for_magic = False
        del self._buffer[: start + len(MAGIC)]
        return True

    def _take_frame(self) -> Optional[Tuple[bytes, bytes]]:
        if len(self._buffer) < LENGTHS.size:
            return None
        head_length, data_length = LENGTHS.unpack_from(self._buffer)
        if max(head_length, data_length) > MAX_PART:
            raise WireError(f"a frame of {head_length} + {data_length} bytes")
        middle = LENGTHS.size + head_length
        end = middle + data_length
        if len(self._buffer) < end:
            return None
        head, data = bytes(self._buffer[LENGTHS.size : middle]), bytes(self._buffer[middle:end])
        del self._buffer[:end]
        return head, data


def _keep_ends(noise: bytearray) -> Tuple[bytes, ...]:
    """Its beginning and its end: one tells what was printed at all, the other what went wrong."""
    if len(noise) <= HEAD_LENGTH + TAIL_LENGTH:
        return (bytes(noise),)
    return bytes(noise[:HEAD_LENGTH]), bytes(noise[-TAIL_LENGTH:])


def _parse(head: bytes, data: bytes) -> Any:
    try:
        name, fields = json.loads(head)
        return KINDS[name](**fields, **({"data": data} if data else {}))
    except (ValueError, KeyError, TypeError) as error:
        said = head[:TAIL_LENGTH].decode(errors="replace")  # last and as it is: a secret in it must be recognised
        raise WireError(f"not a message ({error}): {said}") from None
