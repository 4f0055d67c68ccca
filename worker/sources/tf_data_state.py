"""The state of a tf.data iterator: its own checkpoint where that is small, else how many elements it gave."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterable, Iterator
from math import prod
from pathlib import Path
from typing import Any

from hostmesh.worker.streams.state import MAX_BYTES

PYTHON = "PyFunc"
OVERHEAD = 256  # bytes of a checkpoint for each element that a shuffle holds, beside its own


class Elements(Iterator[Any]):
    """One pass over a dataset."""

    def __init__(self, data: Any, most_bytes: int) -> None:
        """`most_bytes` is the size that a checkpoint may have; with 0 none is made."""
        self._data, self._most_bytes = data, most_bytes
        self._elements = data.as_numpy_iterator()
        self._given = 0

    def __next__(self) -> Any:
        element = next(self._elements)
        self._given += 1
        return element

    def get_state(self) -> Any:
        return {"given": self._given, "files": self._save() if self._most_bytes else {}}

    def set_state(self, state: Any) -> None:
        self._given = state["given"]
        if state["files"]:
            self._load(state["files"])
        else:
            self._elements = self._data.skip(self._given).as_numpy_iterator()

    def _save(self) -> dict[str, bytes]:
        """Empty where it cannot be saved or is too large; then it is not tried again."""
        folder = Path(tempfile.mkdtemp(prefix="hostmesh-"))
        try:
            self._checkpoint().write(str(folder / "it"))
            files = {path.name: path.read_bytes() for path in folder.iterdir()}
        except Exception:  # generators and Python functions have no state; TensorFlow has many errors that say so
            files = {}
        finally:
            shutil.rmtree(folder, ignore_errors=True)
        if not 0 < sum(map(len, files.values())) <= self._most_bytes:
            self._most_bytes = 0
        return files if self._most_bytes else {}

    def _load(self, files: dict[str, bytes]) -> None:
        folder = Path(tempfile.mkdtemp(prefix="hostmesh-"))
        try:
            for name, content in files.items():
                (folder / name).write_bytes(content)
            self._checkpoint().read(str(folder / "it")).assert_consumed()
        finally:
            shutil.rmtree(folder, ignore_errors=True)

    def _checkpoint(self) -> Any:
        import tensorflow as tf

        return tf.train.Checkpoint(iterator=self._elements)


def most_bytes(steps: Iterable[Any], shards: int) -> int:
    """Of a checkpoint of one shard; 0 where the buffers of shuffles, which are part of it, are larger, and where Python
    functions are called, which TensorFlow does not save."""
    most = MAX_BYTES // 2 // shards  # what JSON makes of bytes is longer
    found = list(steps)
    if any(PYTHON in kind for step in found for kind in list_operations(step)):
        return 0
    buffers = sum(_buffered_bytes(step) for step in found if "Shuffle" in type(step).__name__)
    return most if buffers <= most else 0


def list_operations(step: Any) -> set[str]:
    """The kinds of operations in the functions of a transformation."""
    graphs = [function.function.graph.as_graph_def() for function in step._functions()]
    nodes = [node for graph in graphs for node in graph.node]
    nodes += [node for graph in graphs for function in graph.library.function for node in function.node_def]
    return {node.op for node in nodes}


def _buffered_bytes(shuffle: Any) -> float:
    import tensorflow as tf

    size = sum(
        prod(spec.shape) * spec.dtype.size
        if isinstance(spec, tf.TensorSpec) and spec.shape.is_fully_defined() and spec.dtype != tf.string
        else float("inf")
        for spec in tf.nest.flatten(shuffle.element_spec)
    )
    return int(shuffle._buffer_size) * (size + OVERHEAD)
