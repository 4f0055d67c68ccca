"""Grain's MapDataset as a source: its rows and no others, though Grain itself wraps round and leaves gaps."""

from __future__ import annotations

from typing import Any

import grain
import numpy as np
import pytest
from test_sources import check_contract, make_ids

from hostmesh.worker.errors import DataError
from hostmesh.worker.sources import as_source
from hostmesh.worker.sources.base import Source

COUNT = 40
BLOCK = {"image": np.arange(COUNT * 6, dtype=np.uint8).reshape(COUNT, 2, 3), "label": np.arange(COUNT)}


def make_record(n: int) -> Any:
    return {"image": BLOCK["image"][n], "label": BLOCK["label"][n]}


def test_a_map_dataset_is_a_source() -> None:
    source = as_source(grain.MapDataset.range(COUNT).map(make_record))
    check_contract(source, BLOCK)
    assert isinstance(source, Source) and source.name == "grain:MapMapDataset"


def test_a_shuffled_and_sliced_map_dataset_keeps_its_order() -> None:
    dataset = grain.MapDataset.range(COUNT).shuffle(seed=3)[4:30].map(make_record)
    order = np.array([dataset[n]["label"] for n in range(26)])
    assert sorted(order.tolist()) != order.tolist()
    check_contract(as_source(dataset), {field: leaf[order] for field, leaf in BLOCK.items()})


@pytest.mark.parametrize("data", [[1, 2, 3], grain.sources.RangeDataSource(1, 4, 1)])
def test_a_random_access_data_source_is_a_source(data: Any) -> None:
    check_contract(as_source(data), np.array([1, 2, 3]))


def test_a_record_that_was_filtered_out_is_named() -> None:
    source = as_source(grain.MapDataset.range(COUNT).filter(lambda n: n % 7 != 3))
    assert isinstance(source, Source)
    assert source.read(make_ids(0, 1, 2)).tolist() == [0, 1, 2]
    with pytest.raises(DataError, match="record 10 was filtered out, but keeps its place: filter before"):
        source.read(make_ids(0, 10))


def test_a_map_dataset_without_end_is_refused() -> None:
    with pytest.raises(DataError, match=r"never ends: leave out .repeat\(\)"):
        as_source(grain.MapDataset.range(3).repeat())


def test_a_map_dataset_of_batches_is_refused() -> None:
    with pytest.raises(DataError, match=r"leave out .batch\(\)"):
        as_source(grain.MapDataset.range(8).batch(4).map(lambda batch: batch))
