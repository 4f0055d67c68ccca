"""Which system an object belongs to, told by the names of its classes: nothing is imported to find out."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Kind:
    system: str  # the file beside this one that knows it
    is_stream: bool = False


# Where a class says it was defined begins with the first; the dot keeps a user's own datasets.py apart.
KINDS = {
    ("grain.", "MapDataset"): Kind("grain"),
    ("grain.", "IterDataset"): Kind("grain", is_stream=True),
    ("grain.", "DataLoader"): Kind("grain", is_stream=True),
    ("torch.utils.data.", "Dataset"): Kind("torch"),
    ("torch.utils.data.", "IterableDataset"): Kind("torch", is_stream=True),
    ("torch.utils.data.", "DataLoader"): Kind("torch", is_stream=True),
    ("datasets.arrow_dataset", "Dataset"): Kind("hugging_face"),
    ("datasets.dataset_dict", "DatasetDict"): Kind("hugging_face"),
    ("datasets.dataset_dict", "IterableDatasetDict"): Kind("hugging_face"),
    ("datasets.iterable_dataset", "IterableDataset"): Kind("hugging_face", is_stream=True),
    ("tensorflow.python.data.", "DatasetV2"): Kind("tf_data", is_stream=True),
    ("tensorflow_datasets.", "BaseDataSource"): Kind("tfds"),
    ("datarax.", "DataSourceModule"): Kind("datarax"),
    ("datarax.", "Pipeline"): Kind("datarax", is_stream=True),
}


def recognise(data: Any) -> Kind | None:
    """The nearest of the object's classes decides: PyTorch's IterableDataset is a Dataset too."""
    for base in type(data).__mro__:
        for (module, name), kind in KINDS.items():
            if base.__name__ == name and base.__module__.startswith(module):
                return kind
    return None
