"""The shardings of a batch: from a mesh and specs, for rows alone, in equal shares, and as text."""

from __future__ import annotations

import zlib
from typing import Any

import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec, Sharding

from hostmesh.worker.mesh import make_mesh


def make_shardings(mesh: Any, spec: Any) -> Any:
    """A tree of shardings, from a mesh and a tree of specs or as given."""
    if mesh is None:
        mesh = make_mesh(data=-1)
    if not isinstance(mesh, Mesh):
        if spec is not None:
            raise ValueError("spec goes with a mesh; a sharding has its own")
        if not all(isinstance(leaf, Sharding) for leaf in jax.tree_util.tree_leaves(mesh)):
            raise ValueError(f"mesh wants a Mesh, a Sharding or a tree of Shardings; found {mesh!r}")
        return mesh
    spec = PartitionSpec(mesh.axis_names[0]) if spec is None else spec
    return jax.tree_util.tree_map(
        lambda part: NamedSharding(mesh, part), spec, is_leaf=lambda part: isinstance(part, PartitionSpec)
    )


def even_sharding(sharding: Sharding) -> NamedSharding:
    """An equal share of the rows for every device, in the sharding's own order: jax reshards between no others."""
    devices = sharding.mesh.devices.ravel() if isinstance(sharding, NamedSharding) else list(sharding.device_set)
    return NamedSharding(Mesh(np.array(devices), "rows"), PartitionSpec("rows"))


def row_sharding(sharding: Sharding) -> Sharding:
    """For an array that has rows only."""
    if isinstance(sharding, NamedSharding):
        return NamedSharding(sharding.mesh, PartitionSpec(*sharding.spec[:1]))
    return sharding


def describe_sharding(sharding: Sharding) -> str:
    """With the devices in their order: another order means other rows."""
    if not isinstance(sharding, NamedSharding):
        return str(sharding)
    axes = ",".join(f"{name}={size}" for name, size in sharding.mesh.shape.items())
    devices = ",".join(str(device.id) for device in sharding.mesh.devices.ravel())
    return f"{sharding.spec} over {axes}, devices {zlib.crc32(devices.encode()):08x}"
