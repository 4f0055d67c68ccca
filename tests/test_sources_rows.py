"""Records become blocks: every kind of leaf, and a message that names the one that does not fit."""

from __future__ import annotations

from collections import namedtuple
from typing import Any

import numpy as np
import pytest

from hostmesh.worker.errors import DataError
from hostmesh.worker.loading.rows import check_ids, count_rows, leaves, map_leaves, split_block, stack_records

Pair = namedtuple("Pair", "x y")


@pytest.mark.parametrize(
    ("values", "dtype", "shape"),
    [
        ([1, 2, 3], np.int64, (3,)),
        ([1.5, 2.5], np.float64, (2,)),
        ([True, False], np.bool_, (2,)),
        ([np.int8(1), np.int8(2)], np.int8, (2,)),
        ([np.array(1, np.uint16)] * 2, np.uint16, (2,)),
        ([np.zeros((2, 3), np.float16)] * 4, np.float16, (4, 2, 3)),
        ([np.zeros((0, 3))] * 4, np.float64, (4, 0, 3)),
        ([np.zeros((2, 3)).T] * 2, np.float64, (2, 3, 2)),
        ([np.zeros(2, np.complex64)], np.complex64, (1, 2)),
        (["a", "longer"], object, (2,)),
        ([b"a\0", b""], object, (2,)),
        ([np.array(["a", "b"]), np.array(["longer", ""])], object, (2, 2)),
    ],
)
def test_leaves_of_every_kind_are_stacked(values: list[Any], dtype: Any, shape: tuple[int, ...]) -> None:
    stacked = stack_records(values, range(len(values)))
    assert (stacked.dtype, stacked.shape) == (np.dtype(dtype), shape)
    for row, value in zip(stacked, values, strict=True):
        np.testing.assert_array_equal(row, value)


def test_bytes_keep_their_trailing_zeros() -> None:
    assert stack_records([b"a\0\0", b"b"], [0, 1]).tolist() == [b"a\0\0", b"b"]


@pytest.mark.xdist_group("torch")
def test_images_and_tensors_are_leaves() -> None:
    image = pytest.importorskip("PIL.Image", reason="hostmesh[hugging-face]")
    torch = pytest.importorskip("torch", reason="hostmesh[torch]")
    pixels = np.arange(12, dtype=np.uint8).reshape(3, 4)
    records = [{"image": image.fromarray(pixels), "tensor": torch.ones(2)} for _ in range(2)]
    block = stack_records(records, [0, 1])
    assert block["image"].tolist() == [pixels.tolist()] * 2 and block["image"].dtype == np.uint8
    assert block["tensor"].dtype == np.float32


def test_the_structure_of_records_is_kept() -> None:
    records = [{"p": Pair(n, (n, [n])), "q": {"r": n}} for n in range(3)]
    block = stack_records(records, range(3))
    assert isinstance(block["p"], Pair) and isinstance(block["p"].y, tuple) and isinstance(block["p"].y[1], list)
    assert [path for path, _ in leaves(block)] == ["p[0]", "p[1][0]", "p[1][1][0]", "q.r"]
    assert split_block(block, 3) == records


def test_fields_may_come_in_any_order() -> None:
    assert stack_records([{"a": 1, "b": 2}, {"b": 4, "a": 3}], [0, 1])["b"].tolist() == [2, 4]


def test_a_stacked_block_is_fresh() -> None:
    for records in ([np.arange(3.0)], [np.array(2.0)]):
        stack_records(records, [0])[:] = -1
        assert records[0].min() >= 0


@pytest.mark.parametrize(
    ("records", "message"),
    [
        (
            [{"image": np.zeros((28, 28))}, {"image": np.zeros((27, 28))}],
            "record 17: image has shape (27, 28), wanted (28, 28) like record 3; pad in `map`, or pass `collate=`",
        ),
        ([{"a": {"b": [1]}}, {"a": {"b": [1.0]}}], "record 17: a.b[0] has dtype float64, wanted int64 like record 3"),
        ([1, "one"], "record 17: it has dtype object, wanted int64 like record 3"),
        (["one", 1], "record 17: it has dtype int64, wanted object like record 3"),
        ([{"a": 1, "b": 2}, {"a": 1}], "record 17: it has the fields a, wanted a, b like record 3"),
        ([{"x": {"a": 1}}, {"x": 3}], "record 17: x is of type int, wanted dict like record 3"),
        ([{"x": 3}, {"x": {"a": 1}}], "record 17: x is of type dict, wanted one value as in the others"),
        ([(1, 2), (1,)], "record 17: it is a tuple of 1, wanted one of 2 like record 3"),
        ([(1, 2), [1, 2]], "record 17: it is of type list, wanted tuple like record 3"),
        ([np.array(["a"]), np.array(["a", "b"])], "record 17: it has shape (2,), wanted (1,) like record 3"),
    ],
)
def test_a_record_that_does_not_fit_is_named(records: list[Any], message: str) -> None:
    with pytest.raises(DataError) as caught:
        stack_records(records, [3, 17])
    assert message in str(caught.value)


def test_a_value_that_cannot_become_an_array_is_named() -> None:
    class Odd:
        def __array__(self, *args: Any, **kwargs: Any) -> Any:
            raise RuntimeError("not today")

    with pytest.raises(DataError, match="record 5: x is of type Odd and cannot become an array: not today"):
        stack_records([{"x": Odd()}], [5])


def test_no_records_make_no_block() -> None:
    with pytest.raises(DataError, match="no records to stack"):
        stack_records([], [])


@pytest.mark.parametrize("ids", [[10], [3, -1], [-(2**63)], [2**62, 0]])
def test_an_id_outside_is_refused(ids: list[int]) -> None:
    worst = next(id_ for id_ in ids if not 0 <= id_ < 10)
    with pytest.raises(DataError, match=f"digits has 10 records: wanted ids 0 to 9, found {worst}"):
        check_ids(np.array(ids, np.int64), 10, "digits")


def test_ids_inside_pass() -> None:
    for ids in ([], [0], [9, 0, 9]):
        check_ids(np.array(ids, np.int64), 10, "digits")
    check_ids(np.arange(20)[::2][:5], 10, "digits")


def test_rows_are_counted_in_every_leaf() -> None:
    assert count_rows({"a": np.zeros((4, 2)), "b": [np.zeros(4)]}, "it") == 4
    assert count_rows(np.zeros((0, 3)), "it") == 0


def test_map_leaves_keeps_the_tree() -> None:
    assert map_leaves(lambda leaf: leaf + 1, {"a": (1, [2]), "b": Pair(3, 4)}) == {"a": (2, [3]), "b": Pair(4, 5)}
