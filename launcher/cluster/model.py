"""What a cluster file describes, as frozen values: Cluster, Host, and what runs on them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Literal

from hostmesh.worker.identity import GUARDS as GUARDS

if TYPE_CHECKING:
    from hostmesh.launcher.engines.slurm.settings import Slurm

TRANSPORTS = ("local", "ssh", "docker", "slurm", "kubernetes")
METRICS_OF = ("0", "all")
AT_DISAGREEMENT = ("stop", "warn", "off")
COMPILE_CACHE = ("on", "off")
PODS_AS = ("pods", "job", "jobset")
MAX_PODS = 10_000
MAX_PROCESSES = 1024  # on one host
BUILT_IN_JOB = "hostmesh.worker"


@dataclass(frozen=True)
class Job:
    """What each process runs: exactly one of script, module and command."""

    script: str | None = None
    module: str | None = None
    command: tuple[str, ...] | None = None
    args: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if [self.script, self.module, self.command].count(None) != 2:
            raise ValueError("wanted exactly one of script, module, command")


@dataclass(frozen=True)
class Sync:
    source: str = "."
    exclude: tuple[str, ...] = ()


@dataclass(frozen=True)
class Setup:
    """Commands that prepare a host, and the files that they depend on; without `inputs`, all files of the code."""

    run: tuple[str, ...] = ()
    inputs: tuple[str, ...] = ()


@dataclass(frozen=True)
class Ssh:
    """Settings beside what ~/.ssh/config says. Paths are absolute."""

    accept_new_host_keys: bool = False
    known_hosts: str | None = None  # instead of the user's own file
    identity_files: tuple[str, ...] = ()
    config: str | None = None  # instead of ~/.ssh/config
    jump: str | None = None  # user@host:port, several with commas between
    connect_timeout: float = 20.0
    at_once: int = 64  # how many connections are being made at the same time


@dataclass(frozen=True)
class Preemption:
    """What says, on a host, that it will be taken away soon: a file that is there, or a command that succeeds."""

    file: str | None = None
    command: str | None = None
    every: float = 5.0  # seconds between two looks


@dataclass(frozen=True)
class Kubernetes:
    """Either `pods` are made, so many, or a `selector` finds those that are there."""

    pods: int = 0
    selector: str | None = None
    image: str | None = None
    template: Mapping[str, Any] = field(default_factory=lambda: MappingProxyType({}))  # a manifest of kind Pod
    kind: str = "pods"
    namespace: str | None = None  # None: that of the context
    context: str | None = None  # None: the current one
    container: str | None = None  # None: the first one of a pod
    queue: str | None = None  # Kueue's
    start_timeout: float = 600.0


@dataclass(frozen=True)
class Host:
    address: str
    processes: int
    python: str | None = None
    user: str | None = None
    port: int | None = None
    internal_address: str | None = None


@dataclass(frozen=True)
class HangTimeout:
    """After how many seconds without movement a run is ended: 0 is never, None where nobody has said; and for phases
    that have a limit of their own."""

    seconds: float | None = None
    phases: Mapping[str, float] = field(default_factory=lambda: MappingProxyType({}))

    @property
    def is_given(self) -> bool:
        return self.seconds is not None or bool(self.phases)


@dataclass(frozen=True)
class Cluster:
    hosts: tuple[Host, ...]
    name: str = "local"
    transport: str = "local"
    engine: Slurm | Kubernetes | None = None  # who hands out the hosts, where somebody does
    agent_python: str | None = None
    ssh: Ssh = Ssh()
    workdir: str | None = None
    sync: Sync | None = None
    setup: Setup = Setup()
    env: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}))
    secrets: tuple[str, ...] = ()
    local_devices: Literal["auto"] | tuple[tuple[int, ...], ...] = "auto"
    preload: tuple[str, ...] = ()
    lease: float = 10.0  # seconds of silence after which an agent stops its processes
    grace: float = 3.0  # seconds between the request to stop and SIGKILL, for processes that name no time of their own
    keep_going: bool = False  # a failed process, or a lost host, ends nobody else
    restarts: int = 0
    preemptions: int | None = None  # how many a run survives; None: ten for each restart
    preemption: Preemption | None = None
    spares: int = 0  # the last hosts of the list, which wait
    min_hosts: int | None = None  # a run goes on with no fewer; None: with no fewer than it began with
    rejoin: float | None = None  # seconds that a lost host is waited for; None: a minute, where no spare is to be had
    hang_timeout: HangTimeout = HangTimeout()
    programs: str = "stop"  # what is done when processes compile different ones; `off`: they are not compared
    compile_cache: str = "on"  # compiled programs are kept on the hosts
    guard: str = "sample"  # how much of the rows that processes load is compared between them
    metrics: str = "0"  # whose reports are kept: of process 0, or all
    run: Job | None = None

    @property
    def goes_on(self) -> bool:
        """Whether a failure of some kind is followed by another attempt."""
        return bool(self.restarts or self.preemptions or self.spares or self.min_hosts or self.rejoin)
