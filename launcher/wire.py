"""The messages of the agent protocol: commands down, events up; stdlib only, Python 3.9 or newer.

launcher/framing.py turns them into bytes; all that a caller needs of it can be had from here.
"""

# Without `from __future__ import annotations`: NamedTuple would compile every annotation, a millisecond at each start.
import json
from typing import Any, Dict, List, NamedTuple, Optional, Tuple

from hostmesh.launcher.framing import HEAD_LENGTH as HEAD_LENGTH
from hostmesh.launcher.framing import LENGTHS as LENGTHS
from hostmesh.launcher.framing import MAGIC as MAGIC
from hostmesh.launcher.framing import TAIL_LENGTH as TAIL_LENGTH
from hostmesh.launcher.framing import FrameReader as FrameReader
from hostmesh.launcher.framing import WireError as WireError
from hostmesh.launcher.framing import encode as encode

# Commands, launcher to agent. Named tuples and not dataclasses: making 18 of those takes 15 ms, at each end of a start.


class Lease(NamedTuple):
    """An agent that hears nothing for so many seconds takes the launcher for gone, and ends."""

    seconds: float


class PrepareWorkers(NamedTuple):
    """Find what the workers need and, when warm, start the nursery; answered by Ready or Refused."""

    python: str
    workdir: Optional[str]
    env: Dict[str, str]
    warm: bool
    preload: List[str]


class Code(NamedTuple):
    """The package that workers import, as launcher/bundle.py packs it; comes before PrepareWorkers."""

    data: bytes = b""


class Sync(NamedTuple):
    """Make `workdir` hold the files of a manifest, which is `data` (agent/sync/manifest.py); answered by FilesNeeded
    or Refused."""

    workdir: str
    data: bytes = b""


class FileChunk(NamedTuple):
    """Some bytes, compressed, of the manifest's file `number`; after the last needed file comes Synced or Refused."""

    number: int
    last: bool
    data: bytes = b""


class SkipFile(NamedTuple):
    """The manifest's file `number` cannot be sent after all, though some chunks of it may have come: do without it."""

    number: int


class RunSetup(NamedTuple):
    """Run commands in `workdir`, unless they succeeded there under this `key`; answered by SetupDone or Refused."""

    commands: List[str]
    key: str
    workdir: Optional[str]
    env: Dict[str, str]


class Inspect(NamedTuple):
    """Report what the host is like, and whether it can resolve `names`; answered by Inspected.

    `launch check` asks with `thorough`, a run without.
    """

    python: str
    workdir: Optional[str]
    env: Dict[str, str]
    names: List[str]
    thorough: bool


class Reserve(NamedTuple):
    """Hold a port for the coordinator on each of these addresses that can be bound; with `listen` other agents of the
    run can connect to it until processes are spawned. Answered by Reserved, or by Refused when there is none."""

    addresses: List[str]
    listen: bool


class Reach(NamedTuple):
    """Try to connect to each (address, port), where another agent of the run listens; answered by Reached."""

    targets: List[Tuple[str, int]]


class Spawn(NamedTuple):
    """Start a process; answered by Started, or by Exited alone. `at` is the time by the launcher's clock."""

    process_id: int
    env: Dict[str, str]
    argv: List[str]
    is_python: bool
    at: float = 0.0


class Signal(NamedTuple):
    """Ask every process to stop, by this signal."""

    number: int


class Acknowledge(NamedTuple):
    """The launcher has handled so many more bytes of output; how soon this comes tells how fast the link is."""

    size: int


class Stop(NamedTuple):
    """Send the stacks of every process that can dump them, if `stacks`; kill everything, send what is left, say Bye."""

    stacks: bool


# Events, agent to launcher.


class Hello(NamedTuple):
    """The agent is there; `addresses` are those of its host's interfaces."""

    pid: int
    guardian_pid: int
    python: str
    addresses: List[str]


class FilesNeeded(NamedTuple):
    """Which files of the manifest the host does not have yet, by their numbers."""

    numbers: List[int]


class BytesStored(NamedTuple):
    """So many more bytes of file chunks are on the host's disk, and as many may be sent."""

    size: int


class Synced(NamedTuple):
    """The workdir holds the manifest's files; how many were written and deleted for that."""

    written: int
    deleted: int


class SetupOutput(NamedTuple):
    """What the setup commands print."""

    data: bytes = b""


class SetupDone(NamedTuple):
    """`ran` is False when the same commands had succeeded before."""

    ran: bool
    seconds: float


class Inspected(NamedTuple):
    """What agent/inspect/host.py found, by the name of the fact."""

    found: Dict[str, Any]


class Reached(NamedTuple):
    """For each address that was tried: what went wrong, or None."""

    problems: Dict[str, Optional[str]]


class Ready(NamedTuple):
    """Workers can be spawned; `python` is the path of theirs."""

    python: str


class Refused(NamedTuple):
    """Why a command cannot be carried out. `said` is the end of what a program printed about it; the launcher redacts
    secrets in it and shows its last lines."""

    problem: str
    said: str = ""


class Reserved(NamedTuple):
    """Ports by address; the addresses are numeric, also where a name was asked for."""

    ports: Dict[str, int]


class Started(NamedTuple):
    """`warm` is whether the nursery forked the process."""

    process_id: int
    pid: int
    warm: bool


class Output(NamedTuple):
    """What a process prints."""

    process_id: int
    data: bytes = b""


class Exited(NamedTuple):
    """`code` is negative for a signal; `data` holds the last bytes the process wrote.

    `at` is the time by the host's clock, which is ahead of the launcher's by at most `ahead` seconds (see
    launcher/supervisor/link/clocks.py). `memory` is what agent/processes/memory.py tells of one that did not end well.
    """

    process_id: int
    code: int
    at: float = 0.0
    ahead: Optional[float] = None
    data: bytes = b""
    memory: Dict[str, Any] = {}


class Drained(NamedTuple):
    """All output of an exited process has been sent."""

    process_id: int


class Stacks(NamedTuple):
    """The stacks of a process's threads, as faulthandler dumps them."""

    process_id: int
    data: bytes = b""


class Fact(NamedTuple):
    """Something a worker (or, with no process id, the host) says about itself."""

    name: str
    process_id: Optional[int] = None
    detail: Dict[str, Any] = {}


class Bye(NamedTuple):
    """The agent's last message; `survivors` are pids that outlived SIGKILL."""

    survivors: List[int]


# Both ways.


class Beat(NamedTuple):
    """Whoever sends it is still there."""


COMMANDS = (
    *(Lease, PrepareWorkers, Code, Sync, FileChunk, SkipFile, RunSetup),
    *(Inspect, Reserve, Reach, Spawn, Signal, Acknowledge, Stop),
)
EVENTS = (
    *(Hello, FilesNeeded, BytesStored, Synced, SetupOutput, SetupDone, Inspected, Reached, Ready, Refused),
    *(Reserved, Started, Output, Exited, Drained, Stacks, Fact, Bye),
)
KINDS: Dict[str, Any] = {kind.__name__: kind for kind in (*COMMANDS, *EVENTS, Beat)}


class Decoder(FrameReader):
    """Bytes in, messages out, however the bytes are cut."""

    def feed(self, data: bytes) -> List[Any]:
        return [_parse(*frame) for frame in self.split(data)]


def _parse(head: bytes, data: bytes) -> Any:
    try:
        name, fields = json.loads(head)
        return KINDS[name](**fields, **({"data": data} if data else {}))
    except (ValueError, KeyError, TypeError) as error:
        # What was said comes last and unchanged, so that a secret in it is recognised.
        said = head[:TAIL_LENGTH].decode(errors="replace")
        raise WireError(f"not a message ({error}): {said}") from None
