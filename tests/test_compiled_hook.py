"""Which programs are kept, by platform and by the processes that they span; on a stand-in for jax's private modules."""

from __future__ import annotations

from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import pytest

from hostmesh.worker.compiling.hook import keep_programs
from hostmesh.worker.identity import COMPILED


class FakeJax(ModuleType):
    """jax._src.compiler, and what it finds in compilation_cache and cache_key."""

    def __init__(self, platform: str = "cpu") -> None:
        super().__init__("fake.compiler")
        cache, key = ModuleType("fake.compilation_cache"), ModuleType("fake.cache_key")
        self.own: Any = None  # a cache that the user has set up
        self.written_by_jax: list[str] = []
        self.backend = SimpleNamespace(platform=platform, runtime_type="", process_index=lambda: 1)
        off, on = SimpleNamespace(value=False), SimpleNamespace(value=True)
        self.config = SimpleNamespace(enable_compilation_cache=on, share_binary_between_hosts=off)
        self.compilation_cache, cache.cache_key = cache, key  # type: ignore[attr-defined]

        def _hash_accelerator_config(hash_obj: Any, accelerators: Any) -> None:
            hash_obj.append("jax's own")

        def get_cache_key(module: Any, devices: Any, compile_options: Any, backend: Any) -> str:
            parts: list[Any] = [module]
            key._hash_accelerator_config(SimpleNamespace(append=parts.append, update=parts.append), devices)
            return f"{parts}"

        def put_executable_and_time(
            cache_key: str, module_name: str, executable: bytes, backend: Any, compile_time: int
        ) -> None:
            cache._get_cache(backend).put(cache_key, executable)

        def _cache_write(
            cache_key: str, compile_time_secs: float, module_name: str, backend: Any, executable: bytes, more: Any = ()
        ) -> None:
            self.written_by_jax.append(cache_key)

        key.__dict__.update(_hash_accelerator_config=_hash_accelerator_config)
        cache.__dict__.update(get_cache_key=get_cache_key, put_executable_and_time=put_executable_and_time)
        cache.__dict__.update(_get_cache=lambda backend: self.own)
        self._cache_write = _cache_write

    def compile(self, module: str, *owners: int, callbacks: Any = ()) -> bytes | None:
        """What a process finds of a program for devices of these processes; one that it does not find is written."""
        devices = [SimpleNamespace(process_index=each, platform=self.backend.platform) for each in owners]
        for device in devices:
            device.client = self.backend
        options = SimpleNamespace(device_assignment=None)
        key = self.compilation_cache.get_cache_key(module, np.array(devices), options, self.backend)
        cache = self.compilation_cache._get_cache(self.backend)
        found = None if cache is None else cache.get(key)
        if found is None:
            self._cache_write(key, 0.1, module, self.backend, b"program", callbacks)
        return found


@pytest.fixture
def base(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv(COMPILED, str(tmp_path / "compiled"))
    return tmp_path / "compiled"


def start(platform: str = "cpu", **options: bool) -> FakeJax:
    jax = FakeJax(platform)
    for name, value in options.items():
        setattr(jax.config, name, SimpleNamespace(value=value))
    keep_programs(jax)
    return jax


@pytest.mark.parametrize(
    ("platform", "owners", "is_kept"),
    [
        ("cpu", (1,), True),
        ("cpu", (0, 1), True),
        ("tpu", (0, 1), True),
        ("gpu", (1,), True),
        ("gpu", (0, 1), False),  # it is tuned by both together
        ("neuron", (0, 1), False),
    ],
)
def test_what_is_kept(base: Path, platform: str, owners: tuple[int, ...], is_kept: bool) -> None:
    found = [start(platform).compile("step", *owners) for _ in range(2)]
    assert found == [None, b"program" if is_kept else None]
    assert base.exists() == is_kept


def test_what_jax_shares_between_processes_is_left_to_it(base: Path) -> None:
    found = [start(share_binary_between_hosts=True).compile("step", 0, 1) for _ in range(2)]
    assert found == [None, None]


def test_a_program_with_callbacks_is_not_kept(base: Path) -> None:
    assert [start().compile("step", 1, callbacks=["address"]) for _ in range(2)] == [None, None]


def test_what_is_turned_off_is_left_to_jax(base: Path) -> None:
    jax = start(enable_compilation_cache=False)
    jax.compile("step", 1)
    assert len(jax.written_by_jax) == 1 and not base.exists()


def test_a_users_own_cache_has_jaxs_own_keys(base: Path) -> None:
    jax, keys = start(), []
    jax.own = SimpleNamespace(get=keys.append)
    jax.compile("step", 0, 1)
    assert keys == jax.written_by_jax == ["['step', \"jax's own\"]"] and not base.exists()


@pytest.mark.parametrize("folder", [None, "off"])
def test_nothing_is_kept_outside_of_a_run_or_where_that_is_off(
    base: Path, monkeypatch: pytest.MonkeyPatch, folder: str | None
) -> None:
    monkeypatch.delenv(COMPILED) if folder is None else monkeypatch.setenv(COMPILED, folder)
    jax = start()
    jax.compile("step", 1)
    assert len(jax.written_by_jax) == 1


@pytest.mark.parametrize("name", ["_get_cache", "get_cache_key", "put_executable_and_time"])
def test_another_version_of_jax_is_left_alone(base: Path, name: str) -> None:
    for other in (None, lambda another: None, len):
        jax = FakeJax()
        setattr(jax.compilation_cache, name, other)
        before = dict(vars(jax.compilation_cache)), jax._cache_write
        keep_programs(jax)
        assert (vars(jax.compilation_cache), jax._cache_write) == before
    keep_programs(ModuleType("empty"))
