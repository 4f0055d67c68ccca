"""What pip installs: one package, hostmesh, with all that it needs, and no name that a user may have."""

from __future__ import annotations

import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest
from conftest import REPO, clean_env

pytestmark = pytest.mark.xdist_group("packaging")  # one worker builds the one wheel

BUILT_FROM = ("launcher", "worker", "src", "pyproject.toml", "README.md")
PIP = [sys.executable, "-m", "pip", "--disable-pip-version-check"]


def run(*command: str, cwd: Path, **env: str) -> subprocess.CompletedProcess[str]:
    """Without the repository on the path."""
    environment = {name: value for name, value in clean_env(env).items() if name != "PYTHONPATH" or name in env}
    return subprocess.run(command, cwd=cwd, env=environment, capture_output=True, text=True, timeout=110)


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Built from a copy of the repository, since setuptools writes beside the sources; without a network."""
    pytest.importorskip("setuptools")
    folder = tmp_path_factory.mktemp("build")
    for name in BUILT_FROM:
        if (REPO / name).is_dir():
            ignored = shutil.ignore_patterns("__pycache__", "*.egg-info")
            shutil.copytree(REPO / name, folder / name, symlinks=True, ignore=ignored)
        else:
            shutil.copy(REPO / name, folder / name)
    alone = ("--no-deps", "--no-index", "--no-build-isolation")
    done = run(*PIP, "wheel", "--quiet", *alone, "--wheel-dir", "out", ".", cwd=folder)
    assert done.returncode == 0, done.stdout + done.stderr
    (found,) = (folder / "out").glob("*.whl")
    return found


@pytest.fixture(scope="module")
def installed(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("installed")
    done = run(*PIP, "install", "--quiet", "--no-deps", "--no-index", "--target", ".", str(wheel), cwd=folder)
    assert done.returncode == 0, done.stdout + done.stderr
    return folder


@pytest.mark.slow
def test_a_wheel_holds_every_module_and_the_files_they_read(wheel: Path) -> None:
    names = {name for name in zipfile.ZipFile(wheel).namelist() if ".dist-info/" not in name}
    modules = {f"hostmesh/{path.relative_to(REPO)}" for top in ("launcher", "worker") for path in modules_of(top)}
    assert {"hostmesh/launcher/cli.py", "hostmesh/worker/identity.py"} < modules
    data = {"hostmesh/py.typed", "hostmesh/worker/sources/digits.npz"}
    assert names == modules | data | {"hostmesh/__init__.py", "hostmesh/__main__.py"}


def modules_of(top: str) -> list[Path]:
    return [path for path in (REPO / top).rglob("*.py") if "__pycache__" not in path.parts]


@pytest.mark.slow
def test_what_is_installed_runs_by_its_own_name(installed: Path, tmp_path: Path) -> None:
    where = {"PYTHONPATH": str(installed)}
    said = run(sys.executable, "-P", "-m", "hostmesh.launcher", "--version", cwd=tmp_path, **where)
    assert said.returncode == 0, said.stderr
    listed = run(sys.executable, "-P", "-m", "hostmesh", cwd=tmp_path, **where)
    assert listed.returncode == 0 and "look SPEC" in listed.stdout
    check = "import hostmesh, hostmesh.worker.identity; print(hostmesh.__file__, hostmesh.__version__)"
    found = run(sys.executable, "-P", "-c", check, cwd=tmp_path, **where)
    file, version = found.stdout.split()
    assert Path(file).is_relative_to(installed) and version in said.stdout
    digits = "import hostmesh; print(len(hostmesh.open_source('digits:all')))"
    assert run(sys.executable, "-P", "-c", digits, cwd=tmp_path, **where).stdout == "1797\n"


@pytest.mark.slow
def test_what_is_installed_takes_no_name_of_a_users_modules(installed: Path, tmp_path: Path) -> None:
    assert {path.name for path in installed.iterdir() if path.suffix != ".dist-info"} - {"bin"} == {"hostmesh"}
    for name in ("launcher", "worker"):
        # -S leaves out the environment's own packages, an editable install of the repository among them.
        done = run(sys.executable, "-P", "-S", "-c", f"import {name}", cwd=tmp_path, PYTHONPATH=str(installed))
        assert f"No module named '{name}'" in done.stderr
