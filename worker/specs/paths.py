"""A path object, of pathlib or of what looks like it for stores: its text, and the spec that opens what lies there."""

from __future__ import annotations

import os
import re
from pathlib import Path

from hostmesh.worker.errors import DataError
from hostmesh.worker.remote.url_secrets import hide_secrets
from hostmesh.worker.remote.urls import URL

# Which spec opens a file with that ending. All others need to be told what they hold.
ENDINGS = {".npy": "npy", ".npz": "npz"} | dict.fromkeys((".parquet", ".arrow", ".json", ".jsonl", ".csv"), "hf")
# `s3:/bucket/…`, as it is mistyped, and as pathlib makes it of a URL; perhaps behind the scheme of a spec.
LOST_SLASH = re.compile(r"((?:[a-z]+:)?[a-z][a-z0-9]+:)/(?!/)(.*)", re.DOTALL)


def is_path(data: object) -> bool:
    """Paths of universal_pathlib are os.PathLike only where they are of files here."""
    return isinstance(data, os.PathLike) or _is_of_store(data)


def path_text(path: object) -> str:
    """A path as it is written, of one in a store its URL."""
    if isinstance(path, str) or _is_of_store(path):
        return str(path)
    return os.fsdecode(path)  # type: ignore[arg-type]


def _is_of_store(path: object) -> bool:
    protocol = getattr(path, "protocol", None)
    return hasattr(path, "joinpath") and isinstance(protocol, str) and protocol not in ("", "file", "local")


def find_lost_slash(text: str) -> str | None:
    """The URL that is meant by one with a single slash, which would be a folder here named `s3:`."""
    found = LOST_SLASH.fullmatch(text)
    return f"{found[1]}//{hide_secrets(found[2])}" if found else None


def spec_of_path(path: object) -> str:
    """`npy:rows.npy` for a path that says by its ending, or by the files in it, what lies there."""
    text = path_text(path)
    if (meant := find_lost_slash(text)) is not None:
        raise DataError(
            f"found the path {hide_secrets(text)}, where pathlib has taken a slash from a URL; wanted the URL as a"
            f" string, with what it holds before it: {meant if meant.count(':') > 1 else f'npy:{meant}'}"
        )
    kind = ENDINGS.get(os.path.splitext(text)[1].lower()) or (None if URL.match(text) else _find_kind(Path(text)))
    if kind is None:
        wanted = f"a name that ends with {', '.join(ENDINGS)}, a folder of .npy files or a saved dataset"
        how = "or a string that says what it holds, as in images:FOLDER or tokens:FILE?dtype=uint16"
        raise DataError(f"found the path {hide_secrets(text)}, wanted {wanted}; {how}")
    quoted = text.replace("%", "%25").replace("?", "%3F")
    return f"{kind}:{quoted}"


def _find_kind(folder: Path) -> str | None:
    if any((folder / name).is_file() for name in ("state.json", "dataset_dict.json")):
        return "hf"
    return "npy" if next(folder.glob("*.npy"), None) is not None else None
