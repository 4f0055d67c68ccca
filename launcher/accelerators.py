"""What processes on this machine compute on: what the user set, else its GPUs, else the CPU."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from hostmesh.launcher.agent.inspect.devices import count_devices

PLATFORMS = "JAX_PLATFORMS"
NUM_CPU_DEVICES = "JAX_NUM_CPU_DEVICES"
# What CUDA and ROCm read: which GPUs of a host a process sees.
VISIBLE_GPUS = {"cuda": "CUDA_VISIBLE_DEVICES", "rocm": "HIP_VISIBLE_DEVICES"}
GPU_PLATFORMS = {"gpu", *VISIBLE_GPUS}
# Another way to ask for several CPU devices, in XLA_FLAGS.
FORCED_DEVICES = "--xla_force_host_platform_device_count"


@dataclass(frozen=True)
class LocalGpus:
    """Those of this machine; `seen` is what an environment says about them."""

    kind: str | None  # as JAX_PLATFORMS names it; None where there are none
    count: int
    seen: Mapping[str, str]


def choose_platforms(
    env: Mapping[str, str],
    devices: int | None,
    python: str | None = None,
    inherited: Mapping[str, str] | None = None,
    root: str = "",
    path: Sequence[str] | None = None,
) -> str:
    """A value of JAX_PLATFORMS. `env` is the cluster's, `devices` how many CPU devices were asked for by option."""
    seen = {**(os.environ if inherited is None else inherited), **env}
    if PLATFORMS in seen:
        return seen[PLATFORMS]
    if devices is not None or NUM_CPU_DEVICES in seen or FORCED_DEVICES in seen.get("XLA_FLAGS", ""):
        return "cpu"
    kind, _ = pick_gpus(count_devices(root, seen), seen)
    # Another Python than this one is taken at its word: where it has no such plug-in, jax says so and fails.
    if kind is None or (python is None and not has_plugin(kind, sys.path if path is None else path)):
        return "cpu"
    # Not left to jax, which falls back to the CPU where it cannot use a GPU.
    return f"{kind},cpu"


def find_local_gpus(
    transport: str, env: Mapping[str, str], inherited: Mapping[str, str] | None = None, root: str = ""
) -> LocalGpus | None:
    """None where the processes run elsewhere, or use no GPU: a look at files would tell nothing then."""
    seen = {**(os.environ if inherited is None else inherited), **env}
    platforms = set(seen.get(PLATFORMS, "").split(",")) - {""}
    if transport != "local" or (platforms and not platforms & GPU_PLATFORMS):
        return None
    about = {name: seen[name] for name in (PLATFORMS, *VISIBLE_GPUS.values()) if name in seen}
    return LocalGpus(*pick_gpus(count_devices(root, seen), seen), about)


def pick_gpus(counts: Mapping[str, int], env: Mapping[str, str]) -> tuple[str | None, int]:
    """Of the kind that jax is told to use, else of the first kind there is; and that kind."""
    named = [kind for kind in VISIBLE_GPUS if kind in env.get(PLATFORMS, "").split(",")]
    return next(((kind, int(counts[kind])) for kind in named or VISIBLE_GPUS if counts.get(kind)), (None, 0))


def has_plugin(kind: str, path: Sequence[str]) -> bool:
    """Whether jax could use such GPUs: its plug-ins are packages such as jax_plugins/xla_cuda12."""
    return any(any(Path(folder).glob(f"jax_plugins/xla_{kind}*")) for folder in path)
