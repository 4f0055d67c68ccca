"""Path objects as sources: what they stand for, and what to write where they do not say it."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import hostmesh
from hostmesh.worker.errors import DataError
from hostmesh.worker.sources import open_source
from hostmesh.worker.specs.paths import path_text, spec_of_path

ROWS = np.arange(12).reshape(6, 2)


class StorePath:
    """As a path of universal_pathlib for a store: not os.PathLike, and str() is its URL."""

    def __init__(self, text: str, protocol: str = "s3") -> None:
        self._text, self.protocol = text, protocol

    def joinpath(self, *parts: str) -> StorePath:
        return StorePath("/".join((self._text, *parts)), self.protocol)

    def __str__(self) -> str:
        return self._text


@pytest.mark.parametrize("name", ["rows.npy", "100%41?.npy", "a,b=1.npy", "s3"])
def test_a_path_is_opened_by_its_ending_or_by_what_is_in_it(tmp_path: Path, name: str) -> None:
    path = tmp_path / name
    if name == "s3":
        path.mkdir()
        np.save(path / "x.npy", ROWS)
        assert open_source(path).read(np.array([2]))["x"].tolist() == [[4, 5]]
    else:
        np.save(path, ROWS)
        assert open_source(path).read(np.array([2])).tolist() == [[4, 5]]
        assert open_source(path).name == f"npy:{path}"


def test_a_loader_and_a_mixture_take_paths(tmp_path: Path) -> None:
    np.savez(tmp_path / "a.npz", x=ROWS)
    assert next(iter(hostmesh.Loader(tmp_path / "a.npz", batch_size=4)))["x"].shape == (4, 2)
    assert len(hostmesh.concatenate(tmp_path / "a.npz", tmp_path / "a.npz")) == 12


@pytest.mark.parametrize(
    ("path", "message"),
    [
        (Path("s3://data/rows.npy"), "found the path s3:/data/rows.npy, .* before it: npy:s3://data/rows.npy"),
        (Path("npy:s3://data/x.npy"), "before it: npy:s3://data/x.npy"),
        (Path("rows.bin"), "found the path rows.bin, wanted a name that ends with .npy, .npz,.* tokens:FILE"),
        (Path("/nowhere/at/all"), "found the path /nowhere/at/all, wanted a name that ends"),
        (Path("/nowhere/rows.npy"), "/nowhere/rows.npy does not exist"),
        (StorePath("s3://data/folder"), "found the path s3://data/folder, wanted a name that ends"),
        (StorePath("s3://me:hidden@data/x.npy"), "holds credentials"),
        (StorePath("az://data/x.npy", "az"), "az:// is no store that is known"),
    ],
)
def test_a_path_that_does_not_say_what_it_holds_is_told_what_to_write(path: object, message: str) -> None:
    with pytest.raises(DataError, match=message) as told:
        open_source(path)
    assert "hidden" not in str(told.value)


def test_a_path_of_a_store_stands_for_its_url() -> None:
    assert spec_of_path(StorePath("gs://data").joinpath("x.npy")) == "npy:gs://data/x.npy"
    assert path_text(StorePath("s3://data/x")) == "s3://data/x" and path_text(b"/a") == "/a"


@pytest.mark.parametrize("spec", ["npy:s3://", "npy:s3:///", "npy:gs://", "npz:http://", "images:s3://"])
def test_a_url_of_nothing_is_told(spec: str) -> None:
    with pytest.raises(DataError, match="wanted .*(s3|gs|http)://(BUCKET|HOST)/PATH"):
        open_source(spec)
