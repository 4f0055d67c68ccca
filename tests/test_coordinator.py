"""Where process 0 is reached: candidates, trials, and the address all hosts agree on."""

from __future__ import annotations

from hostmesh.launcher.cluster.model import Cluster, Host
from hostmesh.launcher.protocol.wire import Reach, Reserve
from hostmesh.launcher.supervisor.startup.coordinator import Coordinator

PORTS = {"10.0.0.1": 7, "192.168.0.1": 8}


def coordinator(internal: str | None = None, hosts: int = 3, transport: str = "ssh") -> Coordinator:
    first = Host("h0", 1, internal_address=internal)
    others = tuple(Host(f"h{number}", 1) for number in range(1, hosts))
    return Coordinator(Cluster((first, *others), transport=transport), range(1 + len(others)))


def test_the_first_hosts_own_addresses_are_candidates() -> None:
    assert coordinator().reserve(["10.0.0.1"]) == Reserve(["h0", "10.0.0.1"], listen=True)


def test_an_address_that_is_given_is_not_second_guessed() -> None:
    assert coordinator("10.9.9.9").reserve(["10.0.0.1"]) == Reserve(["10.9.9.9"], listen=True)


def test_local_processes_and_a_host_alone_need_no_trial() -> None:
    assert coordinator(transport="local").reserve(["10.0.0.1"]) == Reserve(["127.0.0.1"], listen=False)
    alone = coordinator(hosts=1)
    assert alone.reserve(["10.0.0.1"]).listen is False
    alone.note_reserved(PORTS)
    assert alone.reach() is None and alone.place == ("10.0.0.1", 7) and alone.problems() == {}


def test_the_first_address_that_all_hosts_reach_is_taken() -> None:
    deciding = coordinator()
    assert deciding.reach() is None
    deciding.note_reserved(PORTS)
    assert deciding.reach() == Reach([("10.0.0.1", 7), ("192.168.0.1", 8)])
    deciding.note_reached(1, {"10.0.0.1": None, "192.168.0.1": None})
    assert deciding.place is None
    deciding.note_reached(2, {"10.0.0.1": "no route", "192.168.0.1": None})
    assert deciding.place == ("192.168.0.1", 8) and deciding.problems() == {}


def test_hosts_that_reach_none_are_told_with_what_they_met() -> None:
    deciding = coordinator()
    deciding.note_reserved(PORTS)
    deciding.note_reached(1, {"10.0.0.1": None, "192.168.0.1": "no route"})
    deciding.note_reached(2, {"10.0.0.1": "timed out", "192.168.0.1": "no route"})
    assert deciding.place is None
    assert deciding.problems() == {2: "cannot reach the coordinator on h0 at 10.0.0.1:7: timed out"}
