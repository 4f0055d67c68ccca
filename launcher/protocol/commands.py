"""What the launcher tells an agent to do: the commands of the agent protocol; stdlib only, Python 3.9 or newer.

Named tuples and not dataclasses: making 18 of those takes 15 ms, at each end of a start.
"""

# Without `from __future__ import annotations`: NamedTuple would compile every annotation, a millisecond at each start.
from typing import Any, NamedTuple


class Lease(NamedTuple):
    """An agent that hears nothing for so many seconds takes the launcher for gone, and ends."""

    seconds: float


class PrepareWorkers(NamedTuple):
    """Find what the workers need and, when warm, start the nursery; answered by Ready or Refused.

    With `warms_later` the nursery is started only once processes run, for those of the next attempt.
    """

    python: str
    workdir: str | None
    env: dict[str, str]
    warm: bool
    preload: list[str]
    warms_later: bool = False


class WatchNotices(NamedTuple):
    """Look every so many seconds whether a file is there, or a command succeeds: then the host will be taken away soon;
    answered by Notice, when that is so."""

    file: str | None
    command: str | None
    every: float


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

    commands: list[str]
    key: str
    workdir: str | None
    env: dict[str, str]


class Inspect(NamedTuple):
    """Report what the host is like, and whether it can resolve `names`; answered by Inspected.

    `launch check` asks with `thorough`, a run without.
    """

    python: str
    workdir: str | None
    env: dict[str, str]
    names: list[str]
    thorough: bool


class Reserve(NamedTuple):
    """Hold a port for the coordinator on each of these addresses that can be bound; with `listen` other agents of the
    run can connect to it until processes are spawned. Answered by Reserved, or by Refused when there is none."""

    addresses: list[str]
    listen: bool


class Reach(NamedTuple):
    """Try to connect to each (address, port), where another agent of the run listens; answered by Reached."""

    targets: list[tuple[str, int]]


class Spawn(NamedTuple):
    """Start a process; answered by Started, or by Exited alone. `at` is the time by the launcher's clock."""

    process_id: int
    env: dict[str, str]
    argv: list[str]
    is_python: bool
    at: float = 0.0


class Signal(NamedTuple):
    """Ask every process to stop, by this signal."""

    number: int


class Acknowledge(NamedTuple):
    """The launcher has handled so many more bytes of output; how soon this comes tells how fast the link is."""

    size: int


class Examine(NamedTuple):
    """Find out where every process is; answered by Examined of each that runs."""


class AskRows(NamedTuple):
    """Let a process read some rows again (worker/guard/loaded.py); it answers by a fact, `rows again`."""

    process_id: int
    question: dict[str, Any]


class Listen(NamedTuple):
    """Listen on a port of any address for some seconds, so that other agents can try to connect; answered by
    Listening."""


class Connect(NamedTuple):
    """Try to connect to each (address, port): agents of the run listen on `targets`, jax on `services`; answered by
    Connected."""

    targets: list[tuple[str, int]]
    services: list[tuple[str, int]]


class Stop(NamedTuple):
    """Send the stacks of every process that can dump them, if `stacks`; kill everything, send what is left, say Bye.

    With `stays` the agent and its nursery stay for another attempt, and it says Cleared instead.
    """

    stacks: bool
    stays: bool = False
