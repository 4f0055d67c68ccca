"""The docker transport: what `docker exec` is given, and what a user reads when there is no agent to be had."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from threading import Thread

import pytest
from docker_cluster import HOSTS, DockerCluster, lend_cluster, start_cluster  # noqa: F401

from hostmesh.launcher.cluster.model import Host
from hostmesh.launcher.errors import Unreachable
from hostmesh.launcher.transports.docker import DockerStream, exec_argv


@pytest.fixture
def container(cluster: DockerCluster) -> str:
    return cluster.container(HOSTS[1])


@contextmanager
def opened(container: str, *command: str, user: str | None = None) -> Iterator[DockerStream]:
    """Closed at the end; the test itself reads its output to the end, as a channel would."""
    stream = DockerStream(Host(container, 1, user=user), command)
    yield stream
    stream.close()


def read_all(read: Callable[[], bytes]) -> bytes:
    return b"".join(iter(read, b""))


def assert_unreachable(container: str, message: str) -> None:
    with opened(container, "true") as stream:
        with pytest.raises(Unreachable, match=message):
            stream.read()
        read_all(stream.read_errors)


def test_the_command_stays_a_list_and_the_user_comes_before_the_container() -> None:
    command = ["env", "A=it's; echo foo", "python3"]
    begin = ["docker", "exec", "--interactive"]
    assert exec_argv(Host("c-1", 1, user="me"), command) == [*begin, "--user", "me", "c-1", *command]
    assert exec_argv(Host("c-1", 1), command) == [*begin, "c-1", *command]


@pytest.fixture
def stand_in(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where a program would have to be to be taken for docker; there is none."""
    monkeypatch.setenv("PATH", str(tmp_path))
    return tmp_path / "docker"


def test_a_machine_without_docker_says_so(stand_in: Path) -> None:
    assert_unreachable("c-1", "found no program docker on this machine; install it")
    with opened("c-1", "true") as stream, pytest.raises(OSError):
        stream.write(b"x")


def test_an_engine_that_does_not_answer_is_told(stand_in: Path) -> None:
    """The stand-in prints what docker does when its engine is down."""
    stand_in.write_text("#!/bin/sh\necho 'Cannot connect to the Docker daemon at unix:///x.' >&2\nexit 1\n")
    stand_in.chmod(0o755)
    assert_unreachable("c-1", r"no Docker engine answers \(Cannot connect .*try docker ps")


def test_an_engine_that_hangs_is_not_waited_for(stand_in: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("hostmesh.launcher.transports.docker.ASK_TIMEOUT", 0.2)
    stand_in.write_text('#!/bin/sh\n[ "$1" = exec ] && exit 1\nexec /bin/sleep 1000\n')
    stand_in.chmod(0o755)
    assert_unreachable("c-1", "no Docker engine answers .no answer to docker version within 0.2 s")


@pytest.mark.docker
def test_bytes_go_both_ways_and_the_end_of_input_ends_the_program(container: str) -> None:
    data = bytes(range(256)) * 8192
    with opened(container, "cat") as stream:
        Thread(target=stream.write, args=(data,)).start()
        received = b""
        while len(received) < len(data):
            received += stream.read()
        assert received == data
    assert read_all(stream.read) == b"" == read_all(stream.read_errors)


@pytest.mark.docker
def test_arguments_and_user_arrive_as_they_are(container: str) -> None:
    odd = ["a'; echo foo", "two\nlines", "$HOME *", ""]
    with opened(container, "sh", "-c", 'id -un; printf "<%s>" "$@"', "sh", *odd, user="trainer") as stream:
        assert read_all(stream.read).decode() == "trainer\n" + "".join(f"<{text}>" for text in odd)
        read_all(stream.read_errors)


@pytest.mark.docker
def test_a_container_that_is_not_there_is_named(cluster: DockerCluster) -> None:
    assert_unreachable("no-such", "found no container no-such; docker ps lists those that run")


@pytest.mark.docker
@pytest.mark.parametrize("how, state, remedy", [("kill", "exited", "start"), ("pause", "paused", "unpause")])
def test_a_container_that_does_not_run_is_named_with_its_remedy(
    cluster: DockerCluster, container: str, how: str, state: str, remedy: str
) -> None:
    getattr(cluster, how)(HOSTS[1])
    assert_unreachable(container, f"{container} is {state}, wanted running; docker {remedy} {container}")


@pytest.mark.docker
def test_a_program_that_is_not_in_the_container_is_no_fault_of_the_container(container: str) -> None:
    with opened(container, "env", "no-such-python") as stream:
        assert read_all(stream.read) == b""
        assert b"no-such-python" in read_all(stream.read_errors)
