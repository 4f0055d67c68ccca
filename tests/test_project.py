"""The project's own files: what they promise a newcomer is there."""

from __future__ import annotations

import re
import tomllib

import pytest
from conftest import REPO

README = (REPO / "README.md").read_text()


def test_constraints_are_plain_pins() -> None:
    lines = [line for line in (REPO / "constraints.txt").read_text().splitlines() if not line.startswith("#")]
    assert len(lines) > 20
    assert [line for line in lines if not re.fullmatch(r"[a-z0-9-]+==[0-9][0-9a-z.]*", line)] == []


def test_the_core_installs_only_what_launching_and_training_need() -> None:
    project = tomllib.loads((REPO / "pyproject.toml").read_text())["project"]
    names = {re.split(r"[<>=]", requirement)[0] for requirement in project["dependencies"]}
    assert names == {"jax", "numpy", "grain", "optax", "orbax-checkpoint", "fabric", "pathspec", "pyyaml", "xxhash"}
    assert {"tensorflow", "torch", "hugging-face", "datarax", "test", "dev"} <= set(project["optional-dependencies"])
    assert project["scripts"] == {"launch": "hostmesh.launcher.cli:main"}


def test_every_dependency_is_pinned() -> None:
    project = tomllib.loads((REPO / "pyproject.toml").read_text())["project"]
    wanted = [*project["dependencies"], *(r for extra in project["optional-dependencies"].values() for r in extra)]
    pinned = {line.partition("==")[0] for line in (REPO / "constraints.txt").read_text().splitlines()}
    names = {re.sub(r"[-_.]+", "-", re.split(r"[\[<>=]", requirement)[0]).lower() for requirement in wanted}
    assert names <= pinned


def test_the_readme_names_every_folder() -> None:
    """A folder inside one of them is described with it."""
    tops = [REPO / "launcher", REPO / "worker"]
    folders = [*tops, *(path.parent for top in tops for path in top.glob("*/__init__.py"))]
    names = [f"`{path.relative_to(REPO)}/`" for path in folders]
    assert [name for name in names if name not in README] == []


def test_the_readme_is_short() -> None:
    assert len(README.splitlines()) <= 120


def test_every_file_that_the_architecture_names_is_there() -> None:
    named = set(re.findall(r"`([\w/.]+\.py)`", (REPO / "docs" / "architecture.md").read_text()))
    files = [str(path.relative_to(REPO)) for top in ("launcher", "worker") for path in (REPO / top).rglob("*.py")]
    assert len(named) > 40
    assert sorted(name for name in named if not any(f"/{file}".endswith(f"/{name}") for file in files)) == []


def test_no_module_is_long() -> None:
    files = [path for top in ("launcher", "worker") for path in (REPO / top).rglob("*.py")]
    assert [path for path in files if len(path.read_text().splitlines()) > 300] == []


def test_the_fake_agent_stays_small() -> None:
    assert len((REPO / "tests" / "fake_agent.py").read_text().splitlines()) < 100


def test_no_folder_is_large() -> None:
    """About ten modules; but a folder of interchangeable files has as many as there are systems."""
    inits = [path for top in ("launcher", "worker") for path in (REPO / top).rglob("__init__.py")]
    sizes = {str(init.parent.relative_to(REPO)): len(list(init.parent.glob("*.py"))) - 1 for init in inits}
    assert {name: size for name, size in sizes.items() if size > 12} == {"worker/sources": sizes["worker/sources"]}


def test_hello_is_short_and_plain_jax() -> None:
    text = (REPO / "examples" / "hello.py").read_text()
    assert len(text.splitlines()) < 20
    assert not re.search(r"^\s*(import|from) (hostmesh|worker|launcher)", text, re.MULTILINE)


def test_ci_calls_every_command_that_tests_or_checks() -> None:
    steps = set(re.findall(r'^ *(?:stage|trial) ".*" make (\S+)$', (REPO / ".ci" / "run").read_text(), re.MULTILINE))
    targets = set(re.findall(r"^(test[a-z-]*|check):", (REPO / "Makefile").read_text(), re.MULTILINE))
    tests = {"test", "test-slow", "test-newest", "test-docker", "test-slurm", "test-kubernetes"}
    assert {*tests, "check"} == targets <= steps


@pytest.mark.xdist_group("of one worker")
def test_tests_of_a_group_are_known_by_their_ids(request: pytest.FixtureRequest) -> None:
    """By these they are handed out; without them every worker would start what the tests of a group share."""
    is_grouped = getattr(request.config.option, "loadgroup", False)
    assert request.node.nodeid.endswith("@of one worker") is is_grouped
