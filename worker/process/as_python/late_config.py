"""Applies variables that a script sets before its own `import jax`, when the nursery has imported jax already.

The nursery records which variables importing jax read. In a forked worker all that it imported is taken out of
`sys.modules` until the script asks for it; at that moment the variables that changed are applied: through `jax.config`,
or as native_env.py does it.
"""

from __future__ import annotations

import importlib
import os
import sys
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import FrameType, ModuleType
from typing import Any

from hostmesh.worker.process.as_python.native_env import Library, find_loaded

TRUE = ("y", "yes", "t", "true", "on", "1")
FALSE = ("n", "no", "f", "false", "off", "0")
UNKNOWN = object()
ENVIRON_FILES = (os.__file__, "<frozen os>", "<frozen _collections_abc>")  # the files of os.environ.get and the like


class RecordingEnviron(type(os.environ)):  # type: ignore[misc]
    """os.environ while modules are imported: remembers each name that was looked up, and its default."""

    defaults: dict[str, object] = {}

    def __getitem__(self, name: str) -> str:
        if name not in self.defaults:
            self.defaults[name] = _default_of(sys._getframe(1))
        return super().__getitem__(name)  # type: ignore[no-any-return]


def _default_of(frame: FrameType | None) -> object:
    """What the reading function takes when the variable is not set. jax's functions have it in a local variable
    `default`, or else in the call itself."""
    default = UNKNOWN
    while frame is not None and frame.f_code.co_filename in ENVIRON_FILES:
        default = frame.f_locals.get("default", default)
        frame = frame.f_back
    in_a_function = frame is not None and frame.f_code.co_name != "<module>"
    return frame.f_locals.get("default", default) if frame is not None and in_a_function else default


class LateConfig:
    """The variables that importing jax (and the preload) has read and set, and the modules that it has imported."""

    def __init__(self) -> None:
        self.before: dict[str, str] = {}
        self.after: dict[str, str] = {}
        self.defaults: dict[str, object] = {}
        self.hidden: dict[str, ModuleType] = {}
        self.order: list[str] = []  # packages, each after those that it imports
        self.on_jax: set[str] = set()
        self.libraries: list[Library] = []

    def import_all(self, names: list[str]) -> None:
        """`names` begins with jax."""
        first, *preload = names
        known = set(sys.modules)
        self.before = dict(os.environ)
        plain = os.environ.__class__
        os.environ.__class__ = RecordingEnviron
        try:
            importlib.import_module(first)
            with_jax = set(sys.modules)
            for name in preload:
                importlib.import_module(name)
        finally:
            os.environ.__class__ = plain
        self.after = dict(os.environ)
        self.defaults = dict(RecordingEnviron.defaults)
        self.on_jax = _packages_on_jax(set(sys.modules) - with_jax)
        packages = {name.partition(".")[0] for name in set(sys.modules) - known} - sys.stdlib_module_names
        # In the order in which imports ended. Modules without a spec, such as Cython's own, stay in sys.modules.
        self.order = [name for name in sys.modules if name in packages and sys.modules[name].__spec__ is not None]
        self.hidden = {name: module for name, module in sys.modules.items() if name.partition(".")[0] in self.order}
        self.libraries = find_loaded()

    def hide(self) -> None:
        """In a forked worker: from now on the first import of a package applies the variables it has read."""
        for name in self.hidden:
            del sys.modules[name]
        for name in self.after.keys() - self.before.keys():
            os.environ.pop(name, None)
        sys.meta_path.insert(0, _Unhide(self))

    def restore(self, package: str) -> None:
        """Bring back a package with all that it may have imported, which is what came before it. jax comes only when it
        or something built on it is asked for: until then its own variables may change."""
        position = self.order.index(package)
        wanted = {*self.order[: position + 1]} - self.on_jax
        if package in self.on_jax:
            wanted = {*self.order[: position + 1], *self.on_jax}
        restored = {name: module for name, module in self.hidden.items() if name.partition(".")[0] in wanted}
        for name in restored:
            del self.hidden[name]
        sys.modules.update(restored)
        self._apply_to_libraries(wanted)
        if "jax" in restored:
            self._apply_to_jax()

    def _apply_to_libraries(self, packages: set[str]) -> None:
        due = [library for library in self.libraries if library.package in (*packages, None)]
        self.libraries = [library for library in self.libraries if library not in due]
        changed = [name for name in {**self.before, **os.environ} if self._has_changed(name)]
        for library in due:
            for name in library.apply(changed):
                _say_too_late(name, library)

    def _apply_to_jax(self) -> None:
        config = sys.modules["jax"].config
        options = config.values
        for name, default in self.defaults.items():
            is_jaxs = name.lower() in options or name.startswith("JAX_")
            if is_jaxs and self._has_changed(name):
                _apply(config, name, os.environ.get(name), default)
        for name in self.after.keys() - self.before.keys():
            os.environ.setdefault(name, self.after[name])

    def _has_changed(self, name: str) -> bool:
        """Whether it is neither what the imports have read nor what they have set."""
        return os.environ.get(name) not in (self.before.get(name), self.after.get(name))


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
        self.late.restore(spec.name.partition(".")[0])
        if not self.late.hidden and self in sys.meta_path:
            sys.meta_path.remove(self)
        module = sys.modules[spec.name]
        self.original[spec.name] = module.__spec__
        return module

    def exec_module(self, module: ModuleType) -> None:
        module.__spec__ = self.original[module.__name__]


def _packages_on_jax(names: set[str]) -> set[str]:
    """jax's own, and the top-level packages among `names` that hold a piece of jax in some module of theirs."""
    return {"jax", "jaxlib"} | {name.partition(".")[0] for name in names if _holds_jax(sys.modules[name])}


def _holds_jax(module: ModuleType) -> bool:
    for value in list(vars(module).values()):
        name = value.__name__ if isinstance(value, ModuleType) else getattr(value, "__module__", None)
        if isinstance(name, str) and name.partition(".")[0] == "jax":
            return True
    return False


def _apply(config: Any, name: str, text: str | None, default: object) -> None:
    option = name.lower()
    if option not in config.values or (text is None and default is UNKNOWN):
        sys.exit(
            f"launch: {name} was set to {text!r} before this script imported jax, but a warm start has imported jax "
            "already and cannot change it. Set it in the cluster file's env:, or start with --cold."
        )
    try:
        config.update(option, default if text is None else _parse(text, config.meta[option][0]))
    except (ValueError, TypeError) as error:
        sys.exit(f"launch: {name}={text!r}: {error}")


def _parse(text: str, kind: object) -> object:
    """As jax reads an option of this type from the environment; jax itself checks those of type string."""
    if kind is bool:
        if text.lower() not in TRUE + FALSE:
            raise ValueError("not a truth value")
        return text.lower() in TRUE
    return kind(text) if kind in (int, float) else text


def _say_too_late(name: str, library: Library) -> None:
    value = os.environ.get(name)
    what = f"{name} was removed, which" if value is None else f"{name}={value}"
    print(
        f"launch: {what} comes too late for {os.path.basename(library.path)}, which a warm start has loaded already; "
        "set it for the whole run (in the environment, or the cluster file's env:), or start with --cold",
        file=sys.stderr,
    )
