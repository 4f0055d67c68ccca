"""Connections that stand still: seen on real sockets by the agent's part, made sense of by the supervisor's."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import pytest
from conftest import await_true, clean_env

from hostmesh.launcher.agent.observing.connections import Connection, Connections
from hostmesh.launcher.supervisor.stuck.activity import Activity, Doing
from hostmesh.launcher.supervisor.stuck.connections import Stalled, find_stalled
from hostmesh.launcher.supervisor.stuck.diagnosis import Diagnosis, diagnose
from hostmesh.launcher.supervisor.stuck.telling import hang_verdict

# Both ends in one process: the server's are IPv6 sockets that take IPv4 as well, as those of gRPC are.
TALKING = """
import socket, sys
from hostmesh.worker.chaos.deafness import deafen
server = socket.create_server(("", 0), family=socket.AF_INET6, dualstack_ipv6=True)
far = socket.create_connection(("127.0.0.1", server.getsockname()[1]))
near, _ = server.accept()
near.sendall(b"heard")
far.recv(5)
print(near.getsockname()[1], far.getsockname()[1], flush=True)
sys.stdin.readline()
deafen(None)
near.sendall(b"unheard")
sys.stdin.readline()
"""


@pytest.fixture
def talking() -> Iterator[subprocess.Popen[str]]:
    command = [sys.executable, "-c", TALKING]
    with subprocess.Popen(command, env=clean_env(), stdin=-1, stdout=-1, text=True) as process:
        yield process
        process.kill()


def test_a_connection_stands_still_when_what_is_sent_is_not_acknowledged(talking: subprocess.Popen[str]) -> None:
    assert talking.stdout and talking.stdin
    near, far = (f"127.0.0.1:{port}" for port in talking.stdout.readline().split())
    assert sorted(Connections().list(talking.pid)) == sorted(
        [Connection(near, far, False), Connection(far, near, False)]
    )  # and not the socket that listens
    talking.stdin.write("\n")
    talking.stdin.flush()
    stalled = [Connection(near, far, True), Connection(far, near, False)]
    await_true(lambda: Connections().list(talking.pid) == stalled, 60.0, "a stalled connection")


def test_of_a_process_that_is_gone_there_are_none() -> None:
    process = subprocess.Popen(["true"])
    process.wait()
    assert Connections().list(process.pid) == []
    assert all(isinstance(each, Connection) for each in Connections().list(os.getpid()))


def link(one: int, two: int, *, still: bool = False, address: str = "10.0.0.") -> tuple[int, list[Any]]:
    """As process `one` has it."""
    return one, [f"{address}{one}:{1000 + two}", f"{address}{two}:{1000 + one}", still]


def both(one: int, two: int, **given: Any) -> list[tuple[int, list[Any]]]:
    """The second end has nothing to send."""
    return [link(one, two, **given), link(two, one, **{**given, "still": False})]


def gather(*links: tuple[int, list[Any]]) -> dict[int, Any]:
    found: dict[int, Any] = {}
    for process, each in links:
        found.setdefault(process, []).append(each)
    return found


HOSTS = {0: 0, 1: 0, 2: 1, 3: 1, 4: 2}


@pytest.mark.parametrize(
    ("connections", "expected"),
    [
        (gather(*both(0, 1), *both(1, 2)), None),
        (gather(*both(0, 2, still=True), *both(2, 1, still=True), *both(0, 1)), Stalled(((0, 2), (1, 2)), 2, None)),
        (gather(*both(0, 2, still=True)), Stalled(((0, 2),), None, None)),  # whose fault is not known
        # Two processes of a host lose two other hosts.
        (gather(*both(0, 2, still=True), *both(1, 4, still=True)), Stalled(((0, 2), (1, 4)), None, 0)),
        (gather(*both(0, 1, still=True), *both(2, 3, still=True)), Stalled(((0, 1), (2, 3)), None, None)),
        (gather(link(0, 2, still=True)), None),  # to somebody who is not of this run
        ({0: None, 1: "x", 2: [[1, 2], 3, ["a", "b", "c"]]}, None),  # nonsense
    ],
)
def test_between_whom_nothing_gets_through(connections: dict[int, Any], expected: Stalled | None) -> None:
    assert find_stalled(connections, HOSTS) == expected


def test_one_machine_is_no_other_one() -> None:
    """127.0.0.1 is another place on each host."""
    connections = gather(
        (0, ["127.0.0.1:1", "127.0.0.1:2", True]),
        (2, ["127.0.0.1:2", "127.0.0.1:1", False]),
    )
    assert find_stalled(connections, HOSTS) is None
    assert find_stalled(connections, {0: 0, 2: 0}) == Stalled(((0, 2),), None, None)


def wait_all(stalled: Stalled | None, *doing: Doing) -> Diagnosis:
    kinds = doing or (Doing.WAITING,) * 4
    activities = [
        Activity(number, f"gpu-{HOSTS[number]}", kind, "waits", "", 7, "step", 0.0) for number, kind in enumerate(kinds)
    ]
    return diagnose(activities, stalled=stalled)


def test_who_is_in_all_stalled_connections_is_named() -> None:
    verdict = hang_verdict(wait_all(Stalled(((0, 2), (1, 2)), 2, None)), 20.0, ["gpu-0", "gpu-1"], "logs", "stacks")
    assert verdict.process_id == 2 and verdict.sure == "likely" and verdict.victim_ids == (0, 1, 3)
    assert "process 2 on gpu-1 is cut off from processes 0 and 1: what is sent is not acknowledged" in verdict.message


def test_of_one_stalled_connection_nobody_is_named_but_both() -> None:
    verdict = hang_verdict(wait_all(Stalled(((0, 2),), None, None)), 20.0, ["gpu-0", "gpu-1"], "logs", "stacks")
    assert verdict.process_id is None and verdict.host is None
    assert "nothing gets through between process 0 on gpu-0 and process 2 on gpu-1" in verdict.message


def test_who_sleeps_holds_the_others_up_whatever_a_connection_does() -> None:
    found = wait_all(Stalled(((0, 2), (1, 2)), 2, None), Doing.WAITING, Doing.SLEEPING, Doing.WAITING, Doing.WAITING)
    assert [each.process_id for each in found.culprits] == [1]
