"""Token files as a source: windows of one length, or documents by offsets or a separator."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from hostmesh.worker.errors import DataError
from hostmesh.worker.sources.array_record import find_files
from hostmesh.worker.sources.base import Source
from hostmesh.worker.specs.spec import Spec
from hostmesh.worker.text.file_documents import FileDocuments, find_separators, join_bounds, read_offsets
from hostmesh.worker.text.file_windows import window_source
from hostmesh.worker.text.token_files import TokenFiles, parse_dtype

HOW = """say what a record is, by one of
  length=1024                a window of so many tokens; stride=512 lets them overlap, next=1 adds the next tokens
  offsets=PATH.npy           a document; where each begins is in that file
  separator=0                a document; each ends with this token"""


def open_spec(spec: Spec) -> Source:
    """`tokens:PATH[,PATH…]?dtype=uint16&length=1024`, `&offsets=PATH` or `&separator=0`; a path may hold `*`."""
    spec.check_options("dtype", "length", "stride", "next", "offsets", "separator")
    options = spec.options
    if len({"length", "offsets", "separator"} & options.keys()) != 1:
        raise DataError(f"{spec.text}: {HOW}")
    dtype = parse_dtype(options["dtype"], spec.text) if "dtype" in options else None
    files = TokenFiles(find_files(spec.rest.split(",")), dtype)
    name = f"tokens:{spec.rest}"
    if "length" in options:
        length = _parse(spec, "length", 1)
        stride = _parse(spec, "stride", 1) if "stride" in options else length
        return window_source(files, name, length, stride, _parse(spec, "next", 0) if "next" in options else 0)
    if unused := {"stride", "next"} & options.keys():
        raise DataError(f"{spec.text}: {min(unused)} goes with length=; found documents")
    return FileDocuments(name, files, join_bounds(files, _find_bounds(spec, files)))


def _find_bounds(spec: Spec, files: TokenFiles) -> list[NDArray[np.int64]]:
    if "separator" in spec.options:
        separator = _parse(spec, "separator", 0)
        return [find_separators(file, separator) for file in files.files]
    paths = find_files(spec.options["offsets"].split(","))
    if len(paths) != len(files.files):
        raise DataError(f"{spec.text}: offsets wants a file for each of {len(files.files)}; found {len(paths)}")
    return [read_offsets(path, file) for path, file in zip(paths, files.files, strict=True)]


def _parse(spec: Spec, option: str, least: int) -> int:
    text = spec.options[option]
    if not text.isdecimal() or int(text) < least:
        raise DataError(f"{spec.text}: {option} wants an integer of {least} or more; found {text!r}")
    return int(text)
