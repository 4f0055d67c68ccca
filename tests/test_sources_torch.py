"""PyTorch datasets as sources: tensors become arrays, and the fastest way a dataset has is taken."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import numpy as np
import pytest
from conftest import REPO, clean_env
from test_sources import check_contract, make_ids

from hostmesh.worker.errors import DataError
from hostmesh.worker.sources import as_source
from hostmesh.worker.sources.base import BlockSource, RecordSource, Source
from hostmesh.worker.text.lengths import known_lengths

# One worker imports torch, and only when it comes to these tests.
pytestmark = pytest.mark.xdist_group("torch")

COUNT = 40
IMAGES = np.arange(COUNT * 6, dtype=np.float32).reshape(COUNT, 2, 3)
LABELS = np.arange(COUNT, dtype=np.int64)


@pytest.fixture
def torch() -> Any:
    return pytest.importorskip("torch", reason="hostmesh[torch]")


def make_dataset(torch: Any, kind: str) -> Any:
    """Tensors, records one by one, or many records at a time."""
    if kind == "tensors":
        return torch.utils.data.TensorDataset(torch.from_numpy(LABELS))

    class Records(torch.utils.data.Dataset):  # type: ignore[misc]
        def __len__(self) -> int:
            return COUNT

        def __getitem__(self, n: int) -> Any:
            return {"image": torch.from_numpy(IMAGES[n]), "label": int(LABELS[n])}

    class Many(Records):
        asked = 0

        def __getitems__(self, ids: list[int]) -> Any:
            self.asked += 1
            return [self[n] for n in ids]

    return {"records": Records, "many": Many}[kind]()


def test_a_tensor_dataset_is_read_in_blocks(torch: Any) -> None:
    source = as_source(torch.utils.data.TensorDataset(torch.from_numpy(IMAGES), torch.from_numpy(LABELS)))
    check_contract(source, (IMAGES, LABELS))
    assert isinstance(source, BlockSource) and source.name == "torch:TensorDataset"


@pytest.mark.parametrize("kind", ["records", "many"])
def test_a_map_style_dataset_is_a_source(torch: Any, kind: str) -> None:
    dataset = make_dataset(torch, kind)
    check_contract(as_source(dataset), {"image": IMAGES, "label": LABELS})
    assert kind == "records" or dataset.asked


def test_a_tensor_dataset_with_rows_of_its_own_is_asked_for_them(torch: Any) -> None:
    class Doubled(torch.utils.data.TensorDataset):  # type: ignore[misc]
        def __getitem__(self, n: int) -> Any:
            return tuple(2 * tensor for tensor in super().__getitem__(n))

    check_contract(as_source(Doubled(torch.from_numpy(IMAGES))), (2 * IMAGES,))


@pytest.mark.parametrize(("whole", "kind"), [("tensors", BlockSource), ("many", RecordSource)])
def test_a_random_split_is_read_like_the_whole(torch: Any, whole: str, kind: Any) -> None:
    dataset = make_dataset(torch, whole)
    part, rest = torch.utils.data.random_split(dataset, [30, 10], torch.Generator().manual_seed(0))
    for subset in (part, rest):
        source = as_source(subset)
        assert isinstance(source, kind) and isinstance(source, Source)
        found = source.read(np.arange(len(subset)))
        labels = found["label"] if kind is RecordSource else found[0]
        assert labels.tolist() == list(subset.indices)
    twice = {"image": np.concatenate([IMAGES] * 2), "label": np.concatenate([LABELS] * 2)}
    wanted: Any = twice if whole == "many" else (twice["label"],)
    check_contract(as_source(torch.utils.data.ConcatDataset([dataset, dataset])), wanted)


@pytest.mark.parametrize("dtype", ["float16", "float32", "int8", "uint8", "bool", "complex64"])
def test_tensors_keep_their_types(torch: Any, dtype: str) -> None:
    tensor = torch.ones(3, 2).to(getattr(torch, dtype))
    source = as_source(torch.utils.data.TensorDataset(tensor))
    assert isinstance(source, Source)
    assert source.read(make_ids(0))[0].dtype == np.dtype(dtype)


def test_bfloat16_and_tensors_with_gradients_are_read(torch: Any) -> None:
    import ml_dtypes

    source = as_source(torch.utils.data.TensorDataset(torch.full((3,), 1.5, requires_grad=True, dtype=torch.bfloat16)))
    assert isinstance(source, Source)
    (block,) = source.read(make_ids(0, 2))
    assert block.dtype == ml_dtypes.bfloat16 and block.astype(np.float32).tolist() == [1.5, 1.5]


def test_a_dataset_without_a_length_is_refused(torch: Any) -> None:
    class Endless(torch.utils.data.Dataset):  # type: ignore[misc]
        def __getitem__(self, n: int) -> int:
            return n

    with pytest.raises(DataError, match="torch:Endless has no length: give it __len__"):
        as_source(Endless())


def test_torch_is_not_imported_for_what_is_not_torch() -> None:
    code = """
import sys
sys.modules["torch"] = None
import numpy
from hostmesh.worker.sources import as_source
as_source([1, 2, 3]).read(numpy.arange(3))"""
    subprocess.run([sys.executable, "-c", code], env=clean_env(), cwd=REPO, check=True)


def test_lengths_that_a_dataset_knows_are_asked_of_it(torch: Any) -> None:
    class Documents(torch.utils.data.Dataset):  # type: ignore[misc]
        def __len__(self) -> int:
            return 9

        def __getitem__(self, n: int) -> Any:
            raise AssertionError("read in full")

        def lengths(self, ids: Any) -> Any:
            return torch.tensor([n + 1 for n in ids])

    documents = Documents()
    assert known_lengths(as_source(documents), "tokens")(make_ids(3, 0)).tolist() == [4, 1]  # type: ignore[misc]
    part = torch.utils.data.Subset(documents, [7, 2])
    assert known_lengths(as_source(part), "tokens")(make_ids(1, 0)).tolist() == [3, 8]  # type: ignore[misc]
    assert known_lengths(as_source(make_dataset(torch, "records")), None) is None
