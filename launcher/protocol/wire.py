"""The messages of the agent protocol: commands down, events up; stdlib only, Python 3.9 or newer.

The commands are in commands.py, those about work beside the processes in side_work.py, and framing.py turns messages
into bytes; all that a caller needs can be had from here.
"""

# Without `from __future__ import annotations`: NamedTuple would compile every annotation, a millisecond at each start.
import json
from typing import Any, NamedTuple

from hostmesh.launcher.protocol.commands import Acknowledge as Acknowledge
from hostmesh.launcher.protocol.commands import AskRows as AskRows
from hostmesh.launcher.protocol.commands import Code as Code
from hostmesh.launcher.protocol.commands import Connect as Connect
from hostmesh.launcher.protocol.commands import Examine as Examine
from hostmesh.launcher.protocol.commands import FileChunk as FileChunk
from hostmesh.launcher.protocol.commands import Inspect as Inspect
from hostmesh.launcher.protocol.commands import Lease as Lease
from hostmesh.launcher.protocol.commands import Listen as Listen
from hostmesh.launcher.protocol.commands import PrepareWorkers as PrepareWorkers
from hostmesh.launcher.protocol.commands import Reach as Reach
from hostmesh.launcher.protocol.commands import Reserve as Reserve
from hostmesh.launcher.protocol.commands import RunSetup as RunSetup
from hostmesh.launcher.protocol.commands import Signal as Signal
from hostmesh.launcher.protocol.commands import SkipFile as SkipFile
from hostmesh.launcher.protocol.commands import Spawn as Spawn
from hostmesh.launcher.protocol.commands import Stop as Stop
from hostmesh.launcher.protocol.commands import Sync as Sync
from hostmesh.launcher.protocol.commands import WatchNotices as WatchNotices
from hostmesh.launcher.protocol.framing import HEAD_LENGTH as HEAD_LENGTH
from hostmesh.launcher.protocol.framing import LENGTHS as LENGTHS
from hostmesh.launcher.protocol.framing import MAGIC as MAGIC
from hostmesh.launcher.protocol.framing import TAIL_LENGTH as TAIL_LENGTH
from hostmesh.launcher.protocol.framing import FrameReader as FrameReader
from hostmesh.launcher.protocol.framing import WireError as WireError
from hostmesh.launcher.protocol.framing import encode as encode
from hostmesh.launcher.protocol.side_work import CancelExecute as CancelExecute
from hostmesh.launcher.protocol.side_work import CompiledLacking as CompiledLacking
from hostmesh.launcher.protocol.side_work import CompiledPiece as CompiledPiece
from hostmesh.launcher.protocol.side_work import CompiledStored as CompiledStored
from hostmesh.launcher.protocol.side_work import CompiledUsed as CompiledUsed
from hostmesh.launcher.protocol.side_work import Execute as Execute
from hostmesh.launcher.protocol.side_work import Executed as Executed
from hostmesh.launcher.protocol.side_work import FindCompiled as FindCompiled
from hostmesh.launcher.protocol.side_work import Printed as Printed
from hostmesh.launcher.protocol.side_work import ReadCompiled as ReadCompiled
from hostmesh.launcher.protocol.side_work import ShareCompiled as ShareCompiled
from hostmesh.launcher.protocol.side_work import StoreCompiled as StoreCompiled

# Events, agent to launcher.


class Hello(NamedTuple):
    """The agent is there; `addresses` are those of its host's interfaces."""

    pid: int
    guardian_pid: int
    python: str
    addresses: list[str]


class FilesNeeded(NamedTuple):
    """Which files of the manifest the host does not have yet, by their numbers."""

    numbers: list[int]


class BytesStored(NamedTuple):
    """The host has stored `size` more bytes of file chunks on its disk: the launcher may send as many again."""

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

    found: dict[str, Any]


class Reached(NamedTuple):
    """For each address that was tried: what went wrong, or None."""

    problems: dict[str, str | None]


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

    ports: dict[str, int]


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
    launcher/supervisor/link/clocks.py). `memory` is what agent/observing/memory.py tells of one that did not end well.
    """

    process_id: int
    code: int
    at: float = 0.0
    ahead: float | None = None
    data: bytes = b""
    memory: dict[str, Any] = {}


class Drained(NamedTuple):
    """All output of an exited process has been sent."""

    process_id: int


class Stacks(NamedTuple):
    """The stacks of a process's threads, as faulthandler dumps them."""

    process_id: int
    data: bytes = b""


class Observed(NamedTuple):
    """What a process is doing, whenever that has changed; `state` is T for one that is stopped.

    The rest is from its record, and is left out where a process keeps none: the step and the phase it is in, the number
    of all changes so far, whether it tells its steps (`is_kept`), and how many seconds it has spent `loading` in all.

    In so many of the agent's `looks` at it, one a second, the process has waited inside jax (`waits`), or had done
    something since the last look (`moves`, of one that does not tell its steps).
    """

    process_id: int
    state: str = ""
    step: int = 0
    phase: str = ""
    changes: int = 0
    is_kept: bool = False
    loading: float = 0.0
    looks: int = 0
    waits: int = 0
    moves: int = 0


class Examined(NamedTuple):
    """Where a process is: `data` are its stacks, `found` what agent/observing/examining.py found out beside them."""

    process_id: int
    found: dict[str, Any] = {}
    data: bytes = b""


class Listening(NamedTuple):
    """Other agents of the run can connect to this port."""

    port: int


class Connected(NamedTuple):
    """For each `address:port` that was tried: what went wrong, or None."""

    problems: dict[str, str | None]


class Fact(NamedTuple):
    """Something a worker (or, with no process id, the host) says about itself."""

    name: str
    process_id: int | None = None
    detail: dict[str, Any] = {}


class Notice(NamedTuple):
    """The host will be taken away soon, and why that is known."""

    reason: str


class Cleared(NamedTuple):
    """All processes of an attempt are gone, and those of the next can be spawned; `survivors` outlived SIGKILL."""

    survivors: list[int]


class Bye(NamedTuple):
    """The agent's last message; `survivors` are pids that outlived SIGKILL."""

    survivors: list[int]


# Both ways.


class Beat(NamedTuple):
    """Whoever sends it is still there."""


COMMANDS = (
    *(Lease, PrepareWorkers, Code, Sync, FileChunk, SkipFile, RunSetup),
    *(Inspect, Reserve, Reach, Spawn, Signal, Acknowledge, AskRows, Examine, Listen, Connect, Stop, WatchNotices),
    *(ShareCompiled, FindCompiled, ReadCompiled, StoreCompiled, Execute, CancelExecute),
)
EVENTS = (
    *(Hello, FilesNeeded, BytesStored, Synced, SetupOutput, SetupDone, Inspected, Reached, Ready, Refused),
    *(Reserved, Started, Output, Exited, Drained, Stacks, Observed, Examined, Listening, Connected),
    *(Fact, Notice, Cleared, Bye, CompiledUsed, CompiledLacking, CompiledPiece, CompiledStored, Printed, Executed),
)
KINDS: dict[str, Any] = {kind.__name__: kind for kind in (*COMMANDS, *EVENTS, Beat)}


class Decoder(FrameReader):
    """Bytes in, messages out, however the bytes are cut."""

    def feed(self, data: bytes) -> list[Any]:
        return [_parse(*frame) for frame in self.split(data)]


def _parse(head: bytes, data: bytes) -> Any:
    try:
        name, fields = json.loads(head)
        return KINDS[name](**fields, **({"data": data} if data else {}))
    except (ValueError, KeyError, TypeError) as error:
        # What was said comes last and unchanged, so that a secret in it is recognised.
        said = head[:TAIL_LENGTH].decode(errors="replace")
        raise WireError(f"not a message ({error}): {said}") from None
