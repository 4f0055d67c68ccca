"""A job is checked here and rewritten to where the hosts find it."""

from __future__ import annotations

from pathlib import Path

import pytest

from hostmesh.launcher.cluster.model import Cluster, Host, Job, Sync
from hostmesh.launcher.errors import UsageError
from hostmesh.launcher.planning.job import OUR_PACKAGE, check_is_synced, find_sync_root, resolve_job


@pytest.fixture(autouse=True)
def _no_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path / "home"))


def cluster(source: str | None = ".") -> Cluster:
    sync = None if source is None else Sync(source)
    return Cluster((Host("a", 1),), transport="ssh", workdir="~/job", sync=sync)


def write(folder: Path, *names: str) -> None:
    for name in names:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).touch()


def problem(job: Job, source: str | None, here: Path) -> str:
    with pytest.raises(UsageError) as caught:
        resolve_job(cluster(source), job, here)
    return str(caught.value)


@pytest.mark.parametrize(
    ("source", "script", "placed"),
    [
        (".", "train.py", "train.py"),
        (".", "./src/run.py", "src/run.py"),
        (".", "src/../train.py", "train.py"),
        ("src", "src/run.py", "run.py"),
        ("..", "train.py", "here/train.py"),
        ("src", "src/a'; echo foo/tr ain\n.py", "a'; echo foo/tr ain\n.py"),
        ("~/code", "../home/code/job.py", "job.py"),
    ],
)
def test_a_script_is_named_from_the_synced_folder(tmp_path: Path, source: str, script: str, placed: str) -> None:
    here = tmp_path / "here"
    write(here, "train.py", "src/run.py", "src/a'; echo foo/tr ain\n.py", "../home/code/job.py")
    assert resolve_job(cluster(source), Job(script=script, args=("x",)), here) == Job(script=placed, args=("x",))


def test_an_absolute_script_is_named_from_the_synced_folder(tmp_path: Path) -> None:
    write(tmp_path, "src/run.py")
    assert resolve_job(cluster("src"), Job(script=f"{tmp_path}/src/run.py"), tmp_path).script == "run.py"


def test_links_on_the_way_to_the_synced_folder_do_not_matter(tmp_path: Path) -> None:
    write(tmp_path, "real/src/run.py")
    (tmp_path / "here").symlink_to("real")
    assert resolve_job(cluster("."), Job(script="src/run.py"), tmp_path / "here").script == "src/run.py"
    assert resolve_job(cluster("src"), Job(script=f"{tmp_path}/real/src/run.py"), tmp_path / "here").script == "run.py"


def test_a_script_that_is_a_link_keeps_its_own_name(tmp_path: Path) -> None:
    write(tmp_path, "versions/train-2.py")
    (tmp_path / "train.py").symlink_to("versions/train-2.py")
    assert resolve_job(cluster("."), Job(script="train.py"), tmp_path).script == "train.py"


def test_a_script_outside_the_synced_folder_is_refused(tmp_path: Path) -> None:
    write(tmp_path, "train.py", "src/run.py", "elsewhere/run.py")
    (tmp_path / "src/linked").symlink_to("../elsewhere")
    said = f"wanted a script inside {tmp_path}/src: that is what sync.from sends to the hosts"
    assert problem(Job(script="train.py"), "src", tmp_path) == f"found {tmp_path}/train.py, {said}"
    assert problem(Job(script="src/linked/run.py"), "src", tmp_path) == f"found {tmp_path}/elsewhere/run.py, {said}"


def test_a_script_that_does_not_exist_is_refused(tmp_path: Path) -> None:
    write(tmp_path, "src/run.py", "run.sh")
    assert problem(Job(script="run.py"), "src", tmp_path) == f"found no script run.py in {tmp_path}"
    assert "wanted a Python script" in problem(Job(script="run.sh"), ".", tmp_path)


def test_a_synced_folder_that_does_not_exist_is_refused(tmp_path: Path) -> None:
    write(tmp_path, "file", "train.py")
    begins = f"it begins where launch is started, in {tmp_path}"
    for source, job in (("nowhere", Job(script="train.py")), ("file", Job(module="m")), ("~/gone", Job(module="m"))):
        root = tmp_path / source.replace("~", "home")
        assert problem(job, source, tmp_path) == f"sync.from: found no folder {root}; {begins}"


@pytest.mark.parametrize("name", ["hostmesh.py", "hostmesh/__init__.py"])
def test_a_synced_module_that_would_hide_ours_is_refused(tmp_path: Path, name: str) -> None:
    write(tmp_path, f"src/{name}", "src/deep/run.py", "src/run.py")
    hides = f"{tmp_path}/src/{name} would hide hostmesh's own package"
    assert problem(Job(module="m"), "src", tmp_path).startswith(hides)
    assert problem(Job(script="src/run.py"), "src", tmp_path).startswith(hides)
    # Python looks beside the script, and not where it is started.
    assert resolve_job(cluster("src"), Job(script="src/deep/run.py"), tmp_path).script == "deep/run.py"


def test_a_module_beside_launch_but_not_synced_hides_nothing(tmp_path: Path) -> None:
    write(tmp_path, "hostmesh.py", "src/m.py")
    assert resolve_job(cluster("src"), Job(module="m"), tmp_path) == Job(module="m")


def test_our_own_source_may_be_synced() -> None:
    job = Job(module="hostmesh.worker")
    assert resolve_job(cluster("."), job, OUR_PACKAGE.parents[1]) == job


@pytest.mark.parametrize(
    "job", [Job(script="/on/the/host.py"), Job(script="nowhere.sh"), Job(module="hostmesh.worker")]
)
def test_without_sync_the_job_is_the_hosts_own(tmp_path: Path, job: Job) -> None:
    write(tmp_path, "hostmesh.py")
    assert resolve_job(cluster(None), job, tmp_path) is job


def test_a_command_is_left_alone(tmp_path: Path) -> None:
    job = Job(command=("./simulate", "--fast"))
    assert resolve_job(cluster("."), job, tmp_path) is job


def test_a_script_that_sync_leaves_out_is_refused() -> None:
    check_is_synced(Job(script="src/run.py"), {"src/run.py", "a.py"})
    check_is_synced(Job(module="m"), set())
    check_is_synced(Job(command=("x",)), set())
    with pytest.raises(
        UsageError, match=r"^src/run.py would not travel .*: \.gitignore or sync\.exclude leaves it out$"
    ):
        check_is_synced(Job(script="src/run.py"), {"run.py"})


def test_the_synced_folder_begins_where_launch_is_started(tmp_path: Path) -> None:
    write(tmp_path, "src/x", "home/code/x")
    roots = [find_sync_root(Sync(source), tmp_path) for source in (".", "src", "~/code", str(tmp_path / "src"))]
    assert roots == [tmp_path, tmp_path / "src", tmp_path / "home/code", tmp_path / "src"]
