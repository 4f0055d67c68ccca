"""Makes a source or a stream of whatever holds records; a system is imported when something of it is used."""

from __future__ import annotations

import importlib
from functools import partial
from typing import Any

from hostmesh.worker.errors import DataError
from hostmesh.worker.remote.urls import refuse_secrets
from hostmesh.worker.sources.base import BaseSource, Source
from hostmesh.worker.sources.generators import generator_stream
from hostmesh.worker.specs.functions import call_function, find_function, is_module
from hostmesh.worker.specs.paths import is_path, spec_of_path
from hostmesh.worker.specs.recognise import recognise
from hostmesh.worker.specs.spec import Spec, unknown
from hostmesh.worker.streams.passes import function_stream, iterable_stream, wants_shard
from hostmesh.worker.streams.stream import Stream

__all__ = ["Source", "as_source", "as_stream", "open_source"]

# The module of this folder that opens the specs of a scheme.
SCHEMES = {
    "arrayrecord": "array_record",
    "digits": "digits",
    "hf": "hugging_face",
    "images": "images",
    "npy": "arrays",
    "npz": "arrays",
    "tfds": "tfds",
    "tokens": "tokens",
}

# How the spec of a mixture begins.
MIXTURE = "mix:"

SOURCES = """wanted one of
  a spec string such as digits:train, or a path such as Path("rows.npy")
  a dict or tuple of equally long arrays
  an object with __len__ and read(ids), or with __len__ and __getitem__
  a dataset of Grain, TFDS, PyTorch, Hugging Face or Datarax
  what mix or concatenate made of several of these
  a function that gives records in order, or anything else that as_stream takes"""

STREAMS = """wanted one of
  a function without arguments that begins a pass, or f(shard, shards) that begins one over a shard
  an object that can be iterated again and again
  a dataset of tf.data, Grain, PyTorch, Hugging Face or Datarax that only comes in order"""


def open_source(data: Any) -> BaseSource | Source | Stream:
    """The source that a spec string names: `digits:train`, `npz:PATH`, … (docs/loading.md has all of them); or one made
    of arrays, of an object with `__len__` and rows, or of a library's dataset.

    With `module:function?key=value` the function is called, and its result is used as a source. What is returned has
    `take`, `skip`, `filter` and `map`, unless it is a stream or a mixture.
    """
    found = as_source(data)
    if isinstance(found, (BaseSource, Stream)) or hasattr(found, "make_order"):
        return found
    return _all_of(found)


def _all_of(source: Source) -> BaseSource:
    """The same source, with the methods that ours have."""
    views = importlib.import_module("hostmesh.worker.mixing.views")
    whole: BaseSource = views.Selection(source, range(len(source)), source.name)
    return whole


def _open_spec(spec: str) -> Source | Stream:
    if spec.startswith(MIXTURE):
        refuse_secrets(spec)  # of all parts, before any message names the mixture
        mixture: Source = importlib.import_module("hostmesh.worker.mixing.spec").open_mixture(spec)
        return mixture
    parsed = Spec.parse(spec)
    if parsed.scheme in SCHEMES:
        found: Source | Stream = _system(SCHEMES[parsed.scheme]).open_spec(parsed)
        return found
    return as_source(_call_function(parsed))


def as_source(data: Any) -> Source | Stream:
    """Spec strings, arrays, any object with `__len__` and rows, and the libraries' own datasets."""
    if isinstance(data, str):
        return _open_spec(data)
    if isinstance(data, type) and _has_rows(data):
        raise DataError(f"found the class {data.__name__}; wanted an object of it, as in {data.__name__}(…)")
    if is_path(data):
        return _open_spec(spec_of_path(data))
    if isinstance(data, (Source, Stream)):
        return data
    kind = recognise(data)
    if kind and kind.is_stream:
        return as_stream(data)
    found: Source
    if kind:
        found = _system(kind.system).source(data)
    elif isinstance(data, (dict, tuple)) or hasattr(data, "__array__"):
        found = _system("arrays").array_source(data)
    elif _has_rows(data):
        found = _system("objects").object_source(data)
    elif callable(data) or _can_be_iterated(data):
        return as_stream(data)
    else:
        raise DataError(f"{type(data).__name__} cannot be a source: {SOURCES}")
    return found


def as_stream(data: Any, shards: int = 1, batched: bool | None = None) -> Stream:
    """A stream of records that only come in order, in so many shards.

    `data` is a dataset of a library, something that can be iterated again and again, a function without arguments that
    begins a pass, or a function f(shard, shards) that begins one over a shard. `batched` says whether its items are
    batches, where that is not known from the object itself.
    """
    if isinstance(data, Stream):
        return data
    kind = recognise(data)
    if kind and not kind.is_stream or isinstance(data, (dict, str)):
        raise DataError(f"{type(data).__name__} can be read in any order: give it to the loader as it is")
    found: Stream
    if kind:
        found = _system(kind.system).stream(data, shards, batched)
    elif _can_be_iterated(data):
        found = iterable_stream(data, shards, batched)
    elif callable(data):
        of_shards = wants_shard(data)
        found = (
            function_stream(data, shards, batched) if of_shards else generator_stream(data, shards, batched, as_stream)
        )
    else:
        raise DataError(f"{type(data).__name__} cannot be a stream: {STREAMS}")
    return found


def _has_rows(data: Any) -> bool:
    return hasattr(data, "__len__") and (hasattr(data, "read") or hasattr(data, "__getitem__"))


def _can_be_iterated(data: Any) -> bool:
    """Not a set, whose order may differ from process to process, nor a class, which is to be called."""
    return hasattr(data, "__iter__") and not isinstance(data, (set, frozenset, type))


def _system(name: str) -> Any:
    return importlib.import_module(f"hostmesh.worker.sources.{name}")


def _call_function(spec: Spec) -> Any:
    """What `module:function?key=value` gives; the values arrive as strings. What gives an iterator is called for each
    pass of a stream."""
    if not is_module(spec.scheme):
        raise DataError(f"{spec.text}: {unknown('scheme', spec.scheme, SCHEMES)}, or module:function")
    function = find_function(f"{spec.scheme}:{spec.rest}", spec.text)
    found = call_function(function, spec.options, spec.text)
    if not hasattr(found, "__next__"):
        return found
    begin = partial(function, **spec.options)
    begin.__name__ = spec.text  # type: ignore[attr-defined]  # what messages and a saved place call the stream
    return begin
