"""A function by its name, `module:function`, and calling one with the options of a spec."""

from __future__ import annotations

import importlib
import importlib.util
import inspect
from collections.abc import Callable, Mapping
from typing import Any

from hostmesh.worker.errors import DataError
from hostmesh.worker.specs.spec import unknown


def is_module(name: str) -> bool:
    try:
        return importlib.util.find_spec(name) is not None
    except (ModuleNotFoundError, ValueError):
        return False


def find_function(path: str, wanted_by: str) -> Callable[..., Any]:
    module_name, _, name = path.partition(":")
    if not is_module(module_name):
        raise DataError(f"{wanted_by}: no module {module_name!r}; a function is written module:function")
    module = importlib.import_module(module_name)
    function = getattr(module, name, None)
    if not callable(function):
        names = [key for key, value in vars(module).items() if inspect.isfunction(value)]
        raise DataError(f"{wanted_by}: {unknown('function', name, names)}")
    found: Callable[..., Any] = function
    return found


def call_function(function: Callable[..., Any], options: Mapping[str, str], wanted_by: str) -> Any:
    """Checks the options before the call, so that an error inside the function is not taken for a wrong option."""
    signature = inspect.signature(function)
    try:
        signature.bind(**options)
    except TypeError as error:
        unfit = [key for key in options if key not in signature.parameters]
        what = unknown("option", unfit[0], signature.parameters) if unfit else str(error)
        raise DataError(f"{wanted_by}: {function.__name__}{signature}: {what}") from error
    return function(**options)
