"""Datarax sources as sources."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from conftest import Library
from test_sources import check_contract

from hostmesh.worker.errors import DataError
from hostmesh.worker.sources import as_source
from hostmesh.worker.sources.base import BlockSource

core, sources = Library("datarax.core.data_source", "datarax"), Library("datarax.sources", "datarax")

# One process of the test run imports it for all.
pytestmark = pytest.mark.xdist_group("datarax")

COUNT = 30
BLOCK = {"x": np.arange(COUNT, dtype=np.float32), "y": np.arange(COUNT * 6).reshape(COUNT, 2, 3).astype(np.int32)}


def make_source(data: Any, shuffle: bool = False) -> Any:
    settings = sources.MemorySourceConfig(shuffle=shuffle)
    return sources.MemorySource(settings, data, rngs=Library("flax.nnx", "datarax").Rngs(0, shuffle=1))


@pytest.mark.parametrize("shuffle", [False, True])
def test_a_memory_source_of_arrays_is_read_in_blocks(shuffle: bool) -> None:
    source = as_source(make_source(BLOCK, shuffle))
    check_contract(source, BLOCK)
    assert isinstance(source, BlockSource) and source.name == "datarax:MemorySource"


def test_a_memory_source_of_jax_arrays_is_read_in_blocks() -> None:
    import jax.numpy as jnp

    check_contract(as_source(make_source({name: jnp.asarray(leaf) for name, leaf in BLOCK.items()})), BLOCK)


def test_a_memory_source_of_records_is_a_source() -> None:
    records = [{"x": BLOCK["x"][n], "y": BLOCK["y"][n]} for n in range(COUNT)]
    check_contract(as_source(make_source(records)), BLOCK)


def test_a_source_that_only_comes_in_order_is_refused() -> None:
    class Ordered(core.DataSourceModule):  # type: ignore[misc]
        def __iter__(self) -> Any:
            return iter([])

    with pytest.raises(DataError, match="datarax:Ordered only comes in order: pass as_stream a function"):
        as_source(Ordered(sources.MemorySourceConfig()))
