"""Which system an object belongs to, by the names of its classes, without importing anything."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class DatasetType:
    system: str  # the module of worker/sources that reads it
    is_stream: bool = False


# By the beginning of the name of the class's module, and the class's name. A user's own datasets.py does not match.
DATASET_TYPES = {
    ("grain.", "MapDataset"): DatasetType("grain"),
    ("grain.", "IterDataset"): DatasetType("grain", is_stream=True),
    ("grain.", "DataLoader"): DatasetType("grain", is_stream=True),
    ("torch.utils.data.", "Dataset"): DatasetType("torch"),
    ("torch.utils.data.", "IterableDataset"): DatasetType("torch", is_stream=True),
    ("torch.utils.data.", "DataLoader"): DatasetType("torch", is_stream=True),
    ("datasets.arrow_dataset", "Dataset"): DatasetType("hugging_face"),
    ("datasets.dataset_dict", "DatasetDict"): DatasetType("hugging_face"),
    ("datasets.dataset_dict", "IterableDatasetDict"): DatasetType("hugging_face"),
    ("datasets.iterable_dataset", "IterableDataset"): DatasetType("hugging_face", is_stream=True),
    ("tensorflow.python.data.", "DatasetV2"): DatasetType("tf_data", is_stream=True),
    ("tensorflow_datasets.", "_IterableDataset"): DatasetType("tf_data", is_stream=True),  # of tfds.as_numpy
    ("tensorflow_datasets.", "BaseDataSource"): DatasetType("tfds"),
    ("datarax.", "MixDataSourcesNode"): DatasetType("datarax", is_stream=True),
    ("datarax.", "DataSourceModule"): DatasetType("datarax"),
    ("datarax.", "Pipeline"): DatasetType("datarax", is_stream=True),
}


def recognise(data: Any) -> DatasetType | None:
    """The nearest of the object's classes decides: PyTorch's IterableDataset is a Dataset too."""
    for base in type(data).__mro__:
        for (module, name), dataset_type in DATASET_TYPES.items():
            if base.__name__ == name and base.__module__.startswith(module):
                return dataset_type
    return None
