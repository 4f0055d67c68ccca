"""Lets a `JAX_*` variable count that a script sets after the nursery imported jax and before its own import.

The nursery records which variables importing jax read. In a forked worker jax is taken out of `sys.modules` until the
script asks for it; at that moment the variables that changed are applied through `jax.config`.
"""

from __future__ import annotations

import importlib
import os
import sys
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

TRUE = ("y", "yes", "t", "true", "on", "1")
FALSE = ("n", "no", "f", "false", "off", "0")


class RecordingEnviron(type(os.environ)):  # type: ignore[misc]
    """os.environ while modules are imported: remembers each `JAX_*` name somebody looked up."""

    names: set[str] = set()

    def __getitem__(self, name: str) -> str:
        if name.startswith("JAX_"):
            self.names.add(name)
        return super().__getitem__(name)  # type: ignore[no-any-return]


class LateConfig:
    """What importing jax (and the preload) read and brought, as seen by the nursery."""

    def __init__(self) -> None:
        self.read: dict[str, str | None] = {}
        self.hidden: dict[str, ModuleType] = {}

    def import_all(self, names: list[str]) -> None:
        """`names` begins with jax."""
        first, *preload = names
        plain = os.environ.__class__
        os.environ.__class__ = RecordingEnviron
        try:
            importlib.import_module(first)
            before = set(sys.modules)
            for name in preload:
                importlib.import_module(name)
        finally:
            os.environ.__class__ = plain
        self.read = {name: os.environ.get(name) for name in RecordingEnviron.names}
        packages = _packages_on_jax(set(sys.modules) - before)
        self.hidden = {name: m for name, m in sys.modules.items() if name.partition(".")[0] in packages}

    def hide(self) -> None:
        """In a forked worker: from now on the first import of jax, or of something built on it, settles the config."""
        for name in self.hidden:
            del sys.modules[name]
        sys.meta_path.insert(0, _Unhide(self))

    def settle(self) -> None:
        import jax

        for name, before in self.read.items():
            if (now := os.environ.get(name)) != before:
                _apply(jax.config, name, now)


class _Unhide(MetaPathFinder, Loader):
    def __init__(self, late: LateConfig) -> None:
        self.late = late
        self.original: dict[str, ModuleSpec | None] = {}

    def find_spec(self, name: str, path: Any, target: Any = None) -> ModuleSpec | None:
        module = self.late.hidden.get(name)
        if module is None:
            return None
        spec = ModuleSpec(name, self, origin=getattr(module, "__file__", None), is_package=hasattr(module, "__path__"))
        spec.submodule_search_locations = getattr(module, "__path__", None)
        return spec

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        if self in sys.meta_path:
            sys.meta_path.remove(self)
            sys.modules.update(self.late.hidden)
            self.late.settle()
        module = self.late.hidden[spec.name]
        self.original[spec.name] = module.__spec__
        return module

    def exec_module(self, module: ModuleType) -> None:
        module.__spec__ = self.original[module.__name__]


def _packages_on_jax(names: set[str]) -> set[str]:
    """The top-level packages among `names` that hold a piece of jax in some module of theirs."""
    return {"jax"} | {name.partition(".")[0] for name in names if _holds_jax(sys.modules[name])}


def _holds_jax(module: ModuleType) -> bool:
    for value in list(vars(module).values()):
        name = value.__name__ if isinstance(value, ModuleType) else getattr(value, "__module__", None)
        if isinstance(name, str) and name.partition(".")[0] == "jax":
            return True
    return False


def _apply(config: Any, name: str, text: str | None) -> None:
    option = name.lower()
    if text is None or option not in config.values:
        sys.exit(
            f"launch: {name} was set to {text!r} before this script imported jax, but a warm start has imported jax "
            "already and cannot change it. Set it in the cluster file's env:, or start with --cold."
        )
    try:
        config.update(option, _parse(text, config.values[option]))
    except (ValueError, TypeError) as error:
        sys.exit(f"launch: {name}={text!r}: {error}")


def _parse(text: str, current: object) -> object:
    if isinstance(current, bool):
        if text.lower() not in TRUE + FALSE:
            raise ValueError("not a truth value")
        return text.lower() in TRUE
    if isinstance(current, int):
        return int(text)
    return float(text) if isinstance(current, float) else text
