"""How long the documents of a source are: asked of the source, or found by reading each once."""

from __future__ import annotations

import base64
import inspect
import zlib
from collections.abc import Callable
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from hostmesh.worker.errors import DataError, error_context
from hostmesh.worker.loading.rows import Ids
from hostmesh.worker.process.coordination import exchange, share_failure
from hostmesh.worker.process.progress import Progress
from hostmesh.worker.text.documents import Documents, measure

Lengths: TypeAlias = NDArray[np.int64]

AT_ONCE = 1 << 20  # lengths asked of a source
CHUNK = 256  # documents read at once to be measured
# Lengths of all processes together that pass through the coordinator at once: half a MB or less.
EXCHANGED = 1 << 18
# Seconds that a process waits for one whose part takes longer to be read.
READING_TIMEOUT = 24 * 3600.0
WHAT = "find the lengths of documents"


def find_lengths(documents: Documents) -> Lengths:
    """Of all documents. Where they must be read, each process reads its part, so all processes call this together."""
    source, field = documents.source, documents.field
    ask = known_lengths(source, field)
    if ask is not None:
        count = len(source)
        return np.concatenate([ask(np.arange(at, min(at + AT_ONCE, count))) for at in range(0, count, AT_ONCE)])
    return read_lengths(documents)


def known_lengths(source: Any, field: str | None) -> Callable[[Ids], Lengths] | None:
    """The source's own `lengths(ids)` or `lengths(ids, field)`; None where it has none or does not know them."""
    ask = by_field(getattr(source, "lengths", None))
    if ask is None:
        return None

    def find(ids: Ids) -> Any:
        with error_context(f"{source.name}: lengths()"):
            return ask(ids, field)

    if find(np.zeros(1, np.int64)) is None:
        return None
    return lambda ids: check_lengths(find(ids), ids, source.name)


def by_field(ask: Any) -> Callable[[Ids, str | None], Any] | None:
    """What a source has under the name `lengths`, as a function of ids and field. None where it is no function of ids:
    a user's object may have anything of that name."""
    if not callable(ask):
        return None
    arguments = count_arguments(ask)
    if not arguments:
        return None
    return ask if arguments > 1 else lambda ids, field: ask(ids)


def count_arguments(function: Callable[..., Any]) -> int:
    """Those that it takes by position."""
    try:
        parameters = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):
        return 1  # a built-in function without a signature
    return sum(parameter.kind not in (parameter.KEYWORD_ONLY, parameter.VAR_KEYWORD) for parameter in parameters)


def check_lengths(found: Any, ids: Ids, name: str) -> Lengths:
    lengths = np.asarray(found)
    if lengths.shape != ids.shape or lengths.dtype.kind not in "iu" or lengths.min(initial=0) < 0:
        wanted = f"{len(ids)} integers of 0 or more, one for each id"
        raise DataError(f"{name}: lengths() wants {wanted}; found {lengths.dtype.name} of shape {lengths.shape}")
    return lengths.astype(np.int64)


def read_lengths(documents: Documents) -> Lengths:
    """Each process reads its part and tells the others."""
    from jax._src import distributed  # `jax.process_count` would make a backend, and processes may join later

    state = distributed.global_state
    processes = state.num_processes if state.client is not None else 1
    count = len(documents.source)
    cuts = [count * process // processes for process in range(processes + 1)]
    with share_failure(WHAT, READING_TIMEOUT):
        own = measure_part(documents, cuts[state.process_id], cuts[state.process_id + 1]) if processes > 1 else None
    if own is None:
        return measure_part(documents, 0, count)
    rounds = range(0, max(np.diff(cuts)), size := EXCHANGED // processes or 1)
    parts = [exchange(WHAT, _encode(own[at : at + size])) for at in rounds]
    return np.concatenate([_decode(part[process]) for process in range(processes) for part in parts])


def measure_part(documents: Documents, start: int, stop: int) -> Lengths:
    progress = Progress(max(1, stop - start), f"measuring the documents of {documents.source.name}")
    lengths = np.empty(stop - start, np.int64)
    for at in range(start, stop, CHUNK):
        ids = np.arange(at, min(at + CHUNK, stop))
        lengths[ids - start] = measure(documents.read_whole(ids))
        progress.reached(int(ids[-1]) + 1 - start)
    return lengths


def _encode(lengths: Lengths) -> str:
    return base64.b64encode(zlib.compress(lengths.astype("<i8").tobytes(), 1)).decode()


def _decode(text: str) -> Lengths:
    return np.frombuffer(zlib.decompress(base64.b64decode(text)), "<i8").astype(np.int64)
