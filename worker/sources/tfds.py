"""TFDS datasets that were prepared as ArrayRecord, read without TensorFlow; nothing is ever downloaded."""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from typing import Any, TypeAlias

import numpy as np

from hostmesh.worker.errors import DataError
from hostmesh.worker.loading.rows import Record
from hostmesh.worker.remote.folders import Mirror
from hostmesh.worker.remote.urls import is_url
from hostmesh.worker.sources.array_record import Files, FileSlice
from hostmesh.worker.sources.base import BlockSource, RecordSource
from hostmesh.worker.sources.objects import object_source
from hostmesh.worker.specs.packages import load
from hostmesh.worker.specs.spec import Spec, unknown

Field: TypeAlias = Callable[[Any], Any]  # a feature of a tf.train.Example -> its value

FORM = "tfds:NAME[/CONFIG][:VERSION]/SPLIT, as in tfds:mnist/train[:90%]"
# A file of records: mnist-train.array_record-00000-of-00001
SHARD = re.compile(r"-[0-9]{5}-of-[0-9]{5}$")
HOW_TO_PREPARE = """prepare it first, once, where every host can read it:
  tfds build {name} --file_format=array_record --data_dir={folder}
  or tfds.builder("{name}", data_dir="{folder}", file_format="array_record").download_and_prepare()"""


def open_spec(spec: Spec) -> RecordSource:
    """`tfds:mnist/train?data_dir=…&fields=image,label`; fields that are not named are not decoded."""
    spec.check_options("data_dir", "fields")
    name, slash, split = spec.rest.rpartition("/")
    if not slash or not name or not split:
        raise DataError(f"{spec.text}: wanted {FORM}")
    tfds = load("tensorflow_datasets", "tensorflow-datasets", "tensorflow", spec.text)
    data_dir = spec.options.get("data_dir") or os.environ.get("TFDS_DATA_DIR")
    if is_url(data_dir):
        mirror = Mirror(str(data_dir), lambda place: _describes(place, name))
        info, base = _find_prepared(tfds, name, spec, data_dir, str(mirror.folder)), (str(mirror.folder), str(data_dir))
    else:
        info, base = _find_prepared(tfds, name, spec, data_dir, data_dir), None
    fields = spec.options["fields"].split(",") if "fields" in spec.options else list(info.features)
    return _array_record_source(info, split, fields, f"tfds:{spec.rest}", base)


def source(data: Any) -> BlockSource | RecordSource:
    """What `tfds.data_source` gave. With decoders of the user's own it is read through TFDS, else directly."""
    from tensorflow_datasets import decode

    info = data.dataset_info
    plain = data.decoders is None and data.deserialize_method is decode.DeserializeMethod.DESERIALIZE_AND_DECODE
    name = f"tfds:{info.full_name}/{data.split}"
    if plain and _is_array_record(info) and hasattr(info.features, "keys"):
        return _array_record_source(info, str(data.split), list(info.features), name)
    return object_source(data, name)


def _describes(place: str, name: str) -> bool:
    """What TFDS tells of this dataset, and not its records."""
    return place.startswith(f"{name.partition('/')[0].partition(':')[0]}/") and not SHARD.search(place)


def _find_prepared(tfds: Any, name: str, spec: Spec, shown: str | None, data_dir: str | None) -> Any:
    """`shown` is what the user calls `data_dir`."""
    folder = shown or "~/tensorflow_datasets"
    advice = HOW_TO_PREPARE.format(name=name, folder=folder)
    try:
        builder = tfds.builder(name, data_dir=data_dir, file_format="array_record")
    except (tfds.core.DatasetNotFoundError, AssertionError) as error:
        reason = str(error).splitlines()[0]
        raise DataError(f"{spec.text}: no dataset {name!r} in {folder} ({reason}); {advice}") from error
    except ValueError as error:
        raise DataError(f"{spec.text}: not prepared as ArrayRecord in {folder} ({error}); {advice}") from error
    if not builder.is_prepared():
        raise DataError(f"{spec.text}: not prepared in {_show(builder, shown, data_dir)}; {advice}")
    if not _is_array_record(builder.info):
        found, where = builder.info.file_format.value, _show(builder, shown, data_dir)
        raise DataError(f"{spec.text}: {where} is in the format {found}, wanted array_record; {advice}")
    return builder.info


def _show(builder: Any, shown: str | None, data_dir: str | None) -> str:
    path = str(builder.data_dir)
    return path if data_dir is None or shown is None else path.replace(data_dir, shown, 1)


def _is_array_record(info: Any) -> bool:
    return info.file_format is not None and info.file_format.value == "array_record"


def _array_record_source(
    info: Any, split: str, fields: list[str], name: str, base: tuple[str, str] | None = None
) -> RecordSource:
    """TFDS's own reader makes a pool of threads for each block, and its decoder walks all features for each record.

    `base` is a folder here, and the URL of the one in a store whose records are to be read instead.
    """
    try:
        instructions = info.splits[split].file_instructions
    except (ValueError, KeyError) as error:
        known = ", ".join(info.splits)
        raise DataError(f"{name}: no split {split!r} among {known}: {str(error).splitlines()[0]}") from error
    paths = [str(one.filename) for one in instructions]
    if base is not None:
        paths = [f"{base[1].rstrip('/')}/{path.removeprefix(base[0]).lstrip('/')}" for path in paths]
    slices = zip(paths, instructions, strict=True)
    files = Files([FileSlice(path, one.skip, one.take) for path, one in slices])
    decode = _make_decoder(info.features, fields, name)
    return RecordSource(name, len(files), lambda ids: [decode(row) for row in files.read(ids)], files.content)


def _make_decoder(features: Any, fields: list[str], name: str) -> Callable[[bytes], Record]:
    from tensorflow_datasets.core.features import FeaturesDict
    from tensorflow_datasets.proto import tf_example_pb2

    for field in fields:
        if field not in features:
            raise DataError(f"{name}: {unknown('field', field, features)}")
    decoders = {field: _make_field(features[field]) for field in fields}
    plain = {field: decoder for field, decoder in decoders.items() if decoder}
    if len(plain) < len(fields):
        asked = FeaturesDict({field: features[field] for field in fields})
        return lambda row: _with_dtypes(asked.deserialize_example_np(row), asked.np_dtype)

    def decode(row: bytes) -> Record:
        values = tf_example_pb2.Example.FromString(row).features.feature
        return {field: decoder(values[field]) for field, decoder in plain.items()}

    return decode


def _with_dtypes(value: Any, dtype: Any) -> Any:
    """Sequences as arrays, and numbers in the type of their feature: TFDS gives lists and Python's own numbers."""
    if isinstance(value, dict):
        return {field: _with_dtypes(part, dtype[field]) for field, part in value.items()}
    if isinstance(value, (str, bytes)):
        return value
    try:
        return np.asarray(value, dtype)
    except ValueError:  # sequences of sequences of different lengths
        return value


def _make_field(feature: Any) -> Field | None:
    """None for what is nested, optional or of unknown length: TFDS itself knows best how to decode those."""
    from tensorflow_datasets.core import features as kinds

    if type(feature) not in (kinds.ClassLabel, kinds.Image, kinds.Scalar, kinds.Tensor, kinds.Text):
        return None
    stored = feature.get_serialized_info()
    if isinstance(stored, dict) or None in stored.shape or stored.optional:
        return None
    dtype = np.dtype(stored.np_dtype)
    if dtype.kind == "O":
        return None if stored.shape else lambda value: feature.decode_example_np(value.bytes_list.value[0])
    if dtype.kind == "f":
        return lambda value: _array(value.float_list.value, dtype, stored.shape)
    return lambda value: _array(value.int64_list.value, dtype, stored.shape)


def _array(values: Any, dtype: np.dtype[Any], shape: tuple[int, ...]) -> Any:
    return np.fromiter(values, dtype, len(values)).reshape(shape)
