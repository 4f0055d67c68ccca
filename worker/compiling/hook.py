"""Hooks into jax: where the user has named no folder for compiled programs, they are kept in ours."""

from __future__ import annotations

import copy
import functools
import inspect
import os
from collections.abc import Callable, Mapping
from contextlib import suppress
from types import ModuleType
from typing import Any

from hostmesh.worker.identity import COMPILED, COMPILED_USED

# Private functions of jax that are hooked or called, and how their parameters begin.
OF_THE_CACHE = {
    "_get_cache": ("backend",),
    "get_cache_key": ("module", "devices", "compile_options", "backend"),
    "put_executable_and_time": ("cache_key", "module_name", "executable", "backend", "compile_time"),
}
OPTIONS = ("enable_compilation_cache", "share_binary_between_hosts")
OF_THE_KEY = {"_hash_accelerator_config": ("hash_obj", "accelerators")}
OF_THE_COMPILER = {
    # Up to jax 0.10 the program's host callbacks come last: such a program is not kept there.
    "_cache_write": ("cache_key", "compile_time_secs", "module_name", "backend", "executable"),
}
# Where each process compiles for itself. On GPUs processes tune a program that spans them together: one that had it
# already would leave the others waiting, and what another process has compiled may order collectives differently.
COMPILED_APART = ("cpu", "tpu")
OFF = "off"


def keep_programs(compiler: ModuleType) -> None:
    """Called with jax's own module, right after its import. A version of jax that has other functions is left alone."""
    cache = getattr(compiler, "compilation_cache", None)
    key, config = getattr(cache, "cache_key", None), getattr(compiler, "config", None)
    has_functions = _has(cache, OF_THE_CACHE) and _has(key, OF_THE_KEY) and _has(compiler, OF_THE_COMPILER)
    if has_functions and all(hasattr(config, name) for name in OPTIONS):
        Hook(compiler).install()


def _has(module: ModuleType | None, wanted: Mapping[str, tuple[str, ...]]) -> bool:
    for name, parameters in wanted.items():
        function = getattr(module, name, None)
        try:
            found = tuple(inspect.signature(function).parameters) if callable(function) else ()
        except ValueError:  # it is not written in Python
            found = ()
        if found[: len(parameters)] != parameters or hasattr(function, "is_hooked"):
            return False
    return True


class Hook:
    """Until the first compilation nothing is looked up or made, so that workers can be forked from a nursery."""

    def __init__(self, compiler: ModuleType) -> None:
        self._compiler, self._cache = compiler, compiler.compilation_cache
        self._kept: Any = None  # a KeptPrograms
        self._is_begun = False

    def install(self) -> None:
        self._replace(self._cache, "_get_cache", self._get_cache)
        self._replace(self._cache, "get_cache_key", self._get_key)
        self._replace(self._cache.cache_key, "_hash_accelerator_config", self._hash_devices)
        self._replace(self._compiler, "_cache_write", self._write)

    def _replace(self, module: ModuleType, name: str, ours: Callable[..., Any]) -> None:
        original = getattr(module, name)

        @functools.wraps(original)
        def hooked(*args: Any, **kwargs: Any) -> Any:
            return ours(original, *args, **kwargs)

        hooked.is_hooked = True  # type: ignore[attr-defined]
        setattr(module, name, hooked)

    def _get_cache(self, original: Callable[..., Any], backend: Any) -> Any:
        """The user's own where there is one."""
        found = original(backend)
        return self._find_kept(backend) if found is None else found

    def _get_key(self, original: Callable[..., str], *args: Any, **named: Any) -> str:
        module, devices, options, backend, *more = args
        kept = self._kept_in_use(backend)
        if kept is None:
            return original(*args, **named)
        owners = {device.process_index for device in devices.flat}
        if owners == {backend.process_index()} and backend.platform == "cpu":
            options = without_ids(options)
        key = original(module, devices, options, backend, *more, **named)
        is_shared = self._compiler.config.share_binary_between_hosts.value  # by jax itself
        if len(owners) > 1 and (backend.platform not in COMPILED_APART or is_shared):
            kept.leave_alone(key)
        return key

    def _hash_devices(self, original: Callable[..., None], hash_obj: Any, accelerators: Any) -> None:
        """jax's fingerprint of CPU devices is another one in each process, even of devices that they all use. What the
        processor can do is part of it, too; here that is in the name of the folder."""
        devices = list(accelerators.flat)
        if not devices or devices[0].platform != "cpu" or self._kept_in_use(devices[0].client) is None:
            original(hash_obj, accelerators)
            return
        owners = [device.process_index for device in devices]
        hash_obj.update(repr(owners if len(set(owners)) > 1 else len(owners)).encode())

    def _write(
        self,
        original: Callable[..., None],
        key: str,
        seconds: float,
        name: str,
        backend: Any,
        executable: Any,
        *callbacks: Any,
    ) -> None:
        """In every process: jax has only process 0 write, and hosts may share no disk."""
        kept = self._kept_in_use(backend)
        if kept is None:
            original(key, seconds, name, backend, executable, *callbacks)
        elif not any(callbacks) and kept.wants(key):
            try:
                self._cache.put_executable_and_time(key, name, executable, backend, int(seconds))
            except Exception:  # some programs cannot be written down
                kept.leave_alone(key)

    def _kept_in_use(self, backend: Any) -> Any:
        kept = self._find_kept(backend)
        return kept if kept is not None and self._cache._get_cache(backend) is kept else None

    def _find_kept(self, backend: Any) -> Any:
        """None where the user, or this version of jax, wants no cache."""
        if not self._compiler.config.enable_compilation_cache.value:
            return None
        if backend.runtime_type in getattr(self._cache, "_UNSUPPORTED_RUNTIMES", ()):
            return None
        if not self._is_begun:
            self._is_begun = True
            with suppress(ImportError, AttributeError):  # another version of jax
                self._kept = open_kept()
        return self._kept


def open_kept() -> Any:
    base = os.environ.get(COMPILED, OFF)
    if base == OFF:
        return None
    from jax import version
    from jax._src.lib import version_str as jaxlib

    from hostmesh.worker.compiling.kept import KeptPrograms  # whoever compiles nothing starts sooner without

    return KeptPrograms(base, version.__version__, jaxlib, os.environ.get(COMPILED_USED))


def without_ids(options: Any) -> Any:
    """A program for devices of one process alone is the same in every process, whatever the numbers of its devices are;
    jax itself leaves them out of its keys on GPUs."""
    assignment = options.device_assignment
    if assignment is None:
        return options
    import numpy as np

    shape = assignment.replica_count(), assignment.computation_count()
    adapted = copy.deepcopy(options)
    adapted.device_assignment = type(assignment).create(np.arange(shape[0] * shape[1]).reshape(shape))
    return adapted
