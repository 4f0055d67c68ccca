"""TPUs and GPUs as jax names them: what JAX_PLATFORMS asks for, what this machine has, and how GPUs are shared."""

from __future__ import annotations

import itertools
import os
import sys
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from hostmesh.launcher.agent.inspect.devices import count_devices
from hostmesh.launcher.cluster.model import Cluster
from hostmesh.launcher.errors import UsageError
from hostmesh.launcher.words import count_things

PLATFORMS = "JAX_PLATFORMS"
NUM_CPU_DEVICES = "JAX_NUM_CPU_DEVICES"
# As JAX_PLATFORMS names them, and as people do.
DEVICE_NAMES = {"tpu": "TPU", "cuda": "GPU", "rocm": "AMD GPU"}
# The variables of CUDA and ROCm that say which GPUs of a host a process sees.
VISIBLE_GPUS = {"cuda": "CUDA_VISIBLE_DEVICES", "rocm": "HIP_VISIBLE_DEVICES"}
GPU_KINDS = tuple(VISIBLE_GPUS)
GPU_PLATFORMS = {"gpu", *GPU_KINDS}
ONE_TPU_PROCESS = "one process on a TPU host: several need the TPU_* bounds variables, which are not supported yet"
# Another way to ask for several CPU devices, in XLA_FLAGS.
FORCED_DEVICES = "--xla_force_host_platform_device_count"


def split_platforms(value: str | None) -> list[str]:
    """The names in a value of JAX_PLATFORMS, in their order: `cuda,cpu` has two, and an empty value none."""
    return [name for name in (value or "").split(",") if name]


def uses_kind(kind: str, platforms: Collection[str]) -> bool:
    """Whether jax would use devices of this kind; with no platforms named it takes what it finds."""
    return not platforms or kind in platforms or (kind in GPU_KINDS and "gpu" in platforms)


def uses_gpus(platforms: Collection[str]) -> bool:
    return not platforms or not GPU_PLATFORMS.isdisjoint(platforms)


# This machine.


@dataclass(frozen=True)
class LocalGpus:
    """The GPUs of this machine, and the variables about them that its processes would inherit."""

    kind: str | None  # as JAX_PLATFORMS names it; None where there are none
    count: int
    env: Mapping[str, str]


def choose_platforms(
    env: Mapping[str, str],
    devices: int | None,
    python: str | None = None,
    inherited: Mapping[str, str] | None = None,
    root: str = "",
    path: Sequence[str] | None = None,
) -> str:
    """The JAX_PLATFORMS of processes on this machine: what the user set, else its GPUs, else the CPU.

    `env` is the cluster's, `devices` the number of CPU devices that an option asked for.
    """
    seen = {**(os.environ if inherited is None else inherited), **env}
    if PLATFORMS in seen:
        return seen[PLATFORMS]
    if devices is not None or NUM_CPU_DEVICES in seen or FORCED_DEVICES in seen.get("XLA_FLAGS", ""):
        return "cpu"
    kind, _ = pick_gpus(count_devices(root, seen), seen)
    # The packages of another Python are not looked at: if its jax has no plug-in for the GPUs, jax fails and says so.
    if kind is None or (python is None and not has_plugin(kind, sys.path if path is None else path)):
        return "cpu"
    # Not left to jax, which falls back to the CPU where it cannot use a GPU.
    return f"{kind},cpu"


def find_local_gpus(
    transport: str, env: Mapping[str, str], inherited: Mapping[str, str] | None = None, root: str = ""
) -> LocalGpus | None:
    """None where the processes run on other machines, or use no GPU."""
    seen = {**(os.environ if inherited is None else inherited), **env}
    if transport != "local" or not uses_gpus(split_platforms(seen.get(PLATFORMS))):
        return None
    about_gpus = {name: seen[name] for name in (PLATFORMS, *VISIBLE_GPUS.values()) if name in seen}
    return LocalGpus(*pick_gpus(count_devices(root, seen), seen), about_gpus)


def pick_gpus(counts: Mapping[str, int], env: Mapping[str, str]) -> tuple[str | None, int]:
    """The kind that jax is told to use, else the first kind there is; and how many GPUs of it there are."""
    platforms = split_platforms(env.get(PLATFORMS))
    named = [kind for kind in GPU_KINDS if kind in platforms]
    return next(((kind, int(counts[kind])) for kind in named or GPU_KINDS if counts.get(kind)), (None, 0))


def has_plugin(kind: str, path: Sequence[str]) -> bool:
    """Whether jax could use such GPUs: its plug-ins are packages such as jax_plugins/xla_cuda12."""
    return any(any(Path(folder).glob(f"jax_plugins/xla_{kind}*")) for folder in path)


# Sharing GPUs between the processes of a host.


@dataclass(frozen=True)
class UnevenSplit:
    """GPUs that the processes of a host cannot share evenly."""

    gpus: int
    processes: int
    device: str = "GPU"

    @property
    def found(self) -> str:
        return f"found {count_things(self.gpus, self.device)} for {self.processes} processes"

    @property
    def wanted(self) -> str:
        """What a cluster file has to say instead."""
        return f"wanted processes_per_host to be {self._fitting}, or local_devices to list the GPUs of each process"

    @property
    def wanted_here(self) -> str:
        """What to start on this machine instead."""
        return f"wanted {self._fitting}, or {PLATFORMS}=cpu (or --devices D) to simulate on CPU"

    @property
    def _fitting(self) -> str:
        counts = [str(count) for count in range(1, self.gpus + 1) if self.gpus % count == 0]
        return f"one of {', '.join(counts)}" if len(counts) > 1 else "1"


def find_uneven(gpus: int, processes: int, device: str = "GPU") -> UnevenSplit | None:
    return UnevenSplit(gpus, processes, device) if gpus % processes else None


def split_devices(
    cluster: Cluster, host: int, gpus: int, env: Mapping[str, str], kind: str | None = None
) -> list[dict[str, str]]:
    """The variables that show each process of a host its GPUs, once they are counted; one process takes all of them.

    `env` is what the processes would see otherwise: where it says which GPUs are visible, those are split. `kind` is
    that of the GPUs, as JAX_PLATFORMS names it.
    """
    settings, platforms = cluster.hosts[host], split_platforms(env.get(PLATFORMS))
    visible = _visible_gpus(gpus, env, kind or next((kind for kind in GPU_KINDS if kind in platforms), None))
    has_gpus = uses_gpus(platforms) if platforms else bool(visible)
    if settings.processes == 1 or cluster.local_devices != "auto" or not has_gpus:
        return [{} for _ in range(settings.processes)]
    if not visible:
        raise UsageError(
            f"{settings.address}: found no GPUs, but {PLATFORMS} is {env[PLATFORMS]}; is the driver loaded there?"
        )
    if uneven := find_uneven(len(visible), settings.processes):
        wanted = uneven.wanted_here if cluster.transport == "local" else uneven.wanted
        raise UsageError(f"{settings.address}: {uneven.found}, {wanted}")
    each = len(visible) // settings.processes
    return [show_gpus(visible[each * local :][:each], platforms) for local in range(settings.processes)]


def _visible_gpus(gpus: int, env: Mapping[str, str], kind: str | None) -> list[str]:
    """Names the driver knows: its own numbers, or what a variable lists already, up to the -1 that ends such a list."""
    listed = _listed_gpus(env, kind)
    names = map(str, range(gpus)) if listed is None else map(str.strip, listed.split(","))
    return list(itertools.takewhile(lambda name: name and not name.startswith("-"), names))[:gpus]


def _listed_gpus(env: Mapping[str, str], kind: str | None) -> str | None:
    """HIP reads CUDA's variable where its own is not set or empty."""
    cuda, hip = (env.get(VISIBLE_GPUS[each]) for each in ("cuda", "rocm"))
    if kind == "cuda":
        return cuda
    if kind == "rocm":
        return hip or cuda or None
    return cuda if cuda is not None else hip


def show_gpus(names: Iterable[str], platforms: Collection[str]) -> dict[str, str]:
    """The variables that let a process see only these GPUs.

    JAX_LOCAL_DEVICE_IDS is not among them: jax reads it only in initialize(), so a script that does not call that would
    take every GPU, and so would TensorFlow or PyTorch beside jax. Setting both would make jax count among the visible
    ones. Where the platforms do not say whose GPUs they are, both variables are set; each maker reads its own.
    """
    shown = ",".join(names)
    named = [variable for kind, variable in VISIBLE_GPUS.items() if kind in platforms]
    return {variable: shown for variable in named or VISIBLE_GPUS.values()}
