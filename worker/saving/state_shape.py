"""The shape of a state: what is saved beside it, and compared before it is restored."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any, TypeAlias

import jax

from hostmesh.worker.errors import CheckpointError
from hostmesh.worker.process.words import list_some

PyTree: TypeAlias = Any

# One step of `['params'][0].w`.
STEP = re.compile(r"\['([^']*)'\]|\.(\w+)|\[([^\]]*)\]")


def abstract(state: PyTree) -> PyTree:
    """The same tree with the shape, type and sharding of each array; anything else stays as it is."""
    require_global(state)
    return jax.tree_util.tree_map(_abstract_leaf, state)


def require_global(state: PyTree) -> None:
    """Every array of the state needs a sharding over all processes."""
    leaves, _ = jax.tree_util.tree_flatten_with_path(state)
    for path, leaf in leaves:
        if isinstance(leaf, jax.Array | jax.ShapeDtypeStruct):
            _require_global_leaf(jax.tree_util.keystr(path), leaf.sharding)


def _require_global_leaf(name: str, sharding: Any) -> None:
    if sharding is None:
        raise CheckpointError(f"{name} of the state has no sharding, wanted one to restore into")
    if jax.process_count() > 1 and sharding.is_fully_addressable:
        raise CheckpointError(
            f"{name} of the state lives on one process, wanted a global array: give it a sharding over the whole mesh"
        )


def _abstract_leaf(leaf: Any) -> Any:
    if not isinstance(leaf, jax.Array | jax.ShapeDtypeStruct):
        return leaf
    return jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=leaf.sharding)


def describe(state: PyTree) -> dict[str, str]:
    """`['params']['w']: float32[8,4]` for each leaf."""
    leaves, _ = jax.tree_util.tree_flatten_with_path(state)
    return {jax.tree_util.keystr(path): _describe_leaf(leaf) for path, leaf in leaves}


def compare(found: Mapping[str, Any], wanted: Mapping[str, Any]) -> str:
    """`seed: found 0, wanted 1; …`, empty where both are the same."""
    keys = dict.fromkeys([*wanted, *found])
    return list_some(
        [
            f"{key}: found {_show(found, key)}, wanted {_show(wanted, key)}"
            for key in keys
            if key not in found or key not in wanted or found[key] != wanted[key]
        ]
    )


def compare_part(found: Mapping[str, str], wanted: Mapping[str, str]) -> str:
    """The same for what is wanted only, by names: a dict with `params` may stand for an object that has `params`."""
    there = {_plain(path): kind for path, kind in found.items()}
    asked = {_plain(path): kind for path, kind in wanted.items()}
    return compare({path: kind for path, kind in there.items() if path in asked}, asked)


def _plain(path: str) -> str:
    """`params/0/w` for `.params[0]['w']`."""
    return "/".join("".join(step) for step in STEP.findall(path))


def _describe_leaf(leaf: Any) -> str:
    if not hasattr(leaf, "shape"):
        return type(leaf).__name__
    return f"{leaf.dtype}[{','.join(map(str, leaf.shape))}]"


def _show(values: Mapping[str, Any], key: str) -> str:
    if key not in values:
        return "none"
    value = values[key]
    return value if isinstance(value, str) else json.dumps(value)
