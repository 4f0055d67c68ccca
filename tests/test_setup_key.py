"""A setup runs again when what it depends on has changed, and not at every edit of any file."""

from __future__ import annotations

from pathlib import Path

import pytest
from conftest import Launch
from sshd import needs_sshd
from test_remote import Cluster, cluster, sshd  # noqa: F401  (fixtures)

from hostmesh.launcher.cluster.model import Setup
from hostmesh.launcher.errors import UsageError
from hostmesh.launcher.supervisor.startup.setup_key import find_inputs, make_key
from hostmesh.launcher.sync.tree import read_tree


@pytest.fixture
def source(tmp_path: Path) -> Path:
    for name in ("requirements.txt", "requirements-dev.txt", "train.py", "native/a.c", "native/b/c.c", "sub/train.py"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(name)
    return tmp_path


@pytest.mark.parametrize(
    "inputs, found",
    [
        (["requirements.txt"], ["requirements.txt"]),
        (["./requirements.txt", "/requirements.txt"], ["requirements.txt"]),
        (["requirements*.txt"], ["requirements-dev.txt", "requirements.txt"]),
        (["train.py"], ["train.py"]),
        (["**/train.py"], ["sub/train.py", "train.py"]),
        (["native"], ["native/a.c", "native/b/c.c"]),
        (["native/"], ["native/a.c", "native/b/c.c"]),
        (["native/*.c"], ["native/a.c"]),
        (["native/b", "train.py"], ["native/b/c.c", "train.py"]),
    ],
)
def test_inputs_are_paths_and_patterns_from_the_top(source: Path, inputs: list[str], found: list[str]) -> None:
    assert [entry.path for entry in find_inputs(Setup(("make",), tuple(inputs)), read_tree(source))] == found


def test_an_input_that_is_a_link_stands_for_what_is_behind_it(source: Path) -> None:
    (source / "link").symlink_to("sub/other")
    (source / "sub" / "other").symlink_to("../native/b")
    found = find_inputs(Setup(("make",), ("link",)), read_tree(source))
    assert [entry.path for entry in found] == ["link", "native/b/c.c", "sub/other"]


@pytest.mark.parametrize("pattern", ["setup.cfg", "c.c", "requirements.txt/", "../x"])
def test_an_input_that_matches_nothing_is_an_error(source: Path, pattern: str) -> None:
    with pytest.raises(UsageError, match="setup: inputs: found no file '.*' among those that sync sends from"):
        find_inputs(Setup(("make",), ("train.py", pattern)), read_tree(source))


@pytest.mark.parametrize("pattern", ["/", "./"])
def test_an_input_that_is_no_pattern_is_an_error(source: Path, pattern: str) -> None:
    with pytest.raises(UsageError, match="wanted a path or a pattern as in .gitignore"):
        find_inputs(Setup(("make",), (pattern,)), read_tree(source))


def test_the_key_follows_commands_environment_and_inputs(source: Path) -> None:
    setup = Setup(("make",), ("requirements.txt",))
    before = make_key(setup, {"A": "1"}, read_tree(source))
    (source / "train.py").write_text("other")
    assert make_key(setup, {"A": "1"}, read_tree(source)) == before
    changed = [
        make_key(Setup(("make all",), setup.inputs), {"A": "1"}, read_tree(source)),
        make_key(Setup(setup.run, ("requirements*.txt",)), {"A": "1"}, read_tree(source)),
        make_key(setup, {"A": "2"}, read_tree(source)),
        make_key(setup, {"A": "1"}, None),
    ]
    (source / "requirements.txt").write_text("jax")
    changed.append(make_key(setup, {"A": "1"}, read_tree(source)))
    assert len({before, *changed}) == 6


def test_without_inputs_a_setup_depends_on_all_of_the_code(source: Path) -> None:
    before = make_key(Setup(("make",)), {}, read_tree(source))
    (source / "train.py").write_text("other")
    assert make_key(Setup(("make",)), {}, read_tree(source)) != before


@needs_sshd
@pytest.mark.slow
def test_an_edit_of_another_file_does_not_repeat_a_setup(cluster: Cluster, launch: Launch, source: Path) -> None:  # noqa: F811
    file = cluster(setup={"run": ["echo x >> trace"], "inputs": ["requirements.txt"]})
    for name, text in (("train.py", "x = 1"), ("train.py", "x = 2"), ("requirements.txt", "jax")):
        (source / name).write_text(text)
        done = launch("--hosts", file, "train.py")
        assert done.returncode == 0, done.stderr
    assert (source / "work" / "trace").read_text() == "x\n" * 2


@needs_sshd
def test_an_input_that_is_missing_is_told_before_anything_starts(
    cluster: Cluster,  # noqa: F811
    launch: Launch,
    source: Path,
) -> None:
    done = launch("--hosts", cluster(setup={"run": ["true"], "inputs": ["poetry.lock"]}), "train.py")
    assert done.returncode == 2 and "setup: inputs: found no file 'poetry.lock'" in done.stderr
    assert not (source / "runs").exists() and not (source / "work").exists()
