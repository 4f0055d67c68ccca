"""Looking for the coordinator: at once in small runs, and never a flood of connections in large ones."""

from __future__ import annotations

import heapq
import socket
import threading
import time

import pytest

from hostmesh.worker.distributed import _answers, _await_coordinator
from hostmesh.worker.identity import Identity


def identity(process_id: int, num_processes: int, port: int = 7) -> Identity:
    return Identity("run", 1, "host", process_id, num_processes, 0, f"127.0.0.1:{port}")


class FakeProcess:
    """Waits for a coordinator that is up from `up_at` on; time is what it slept."""

    def __init__(self, process_id: int, num_processes: int, up_at: float) -> None:
        self.now, self.tries, self.up_at = 0.0, [], up_at  # type: float, list[float], float
        _await_coordinator(identity(process_id, num_processes), 300, self.answers, lambda: self.now, self.sleep)

    def answers(self, host: str, port: int) -> bool:
        self.tries.append(self.now)
        return self.now >= self.up_at

    def sleep(self, seconds: float) -> None:
        self.now += seconds


def busiest_second(tries: list[float]) -> int:
    window: list[float] = []
    most = 0
    for at in sorted(tries):
        heapq.heappush(window, at)
        while window[0] < at - 1:
            heapq.heappop(window)
        most = max(most, len(window))
    return most


@pytest.mark.parametrize("count", [2, 100, 1000])
def test_all_processes_together_make_a_bounded_number_of_connections(count: int) -> None:
    waiting = [FakeProcess(number, count, up_at=5.0) for number in range(1, count)]
    later = [at for process in waiting for at in process.tries if at > 0]  # all of them try once at the start
    assert busiest_second(later) <= 2000 * 1.4
    assert all(process.tries[-1] - 5.0 <= 0.65 for process in waiting)


def test_a_small_run_finds_its_coordinator_within_milliseconds() -> None:
    assert FakeProcess(1, 4, up_at=0.3).tries[-1] - 0.3 <= 0.007


def test_a_process_that_waits_for_long_asks_less_often() -> None:
    tries = FakeProcess(1, 2, up_at=120).tries
    assert 0.3 <= tries[-1] - tries[-2] <= 0.65


def test_process_0_does_not_wait_for_itself() -> None:
    assert FakeProcess(0, 4, up_at=9).tries == []


def test_a_wait_ends_after_its_timeout() -> None:
    now = [0.0]
    _await_coordinator(identity(1, 2), 3.0, lambda *_: False, lambda: now[0], lambda s: now.__setitem__(0, now[0] + s))
    assert 3.0 <= now[0] <= 3.1


def test_real_connections_are_as_few() -> None:
    """A listener counts the connections of 40 waiting processes, to which it does not count as an answer yet."""
    with socket.create_server(("127.0.0.1", 0), backlog=1024) as server:
        until = time.monotonic() + 1.0

        def answers(host: str, port: int) -> bool:
            return _answers(host, port) and time.monotonic() > until

        port = server.getsockname()[1]
        each = [identity(number, 1000, port) for number in range(1, 41)]
        threads = [threading.Thread(target=_await_coordinator, args=(one, 10, answers)) for one in each]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        server.settimeout(0)
        count = 0
        while True:
            try:
                server.accept()[0].close()
            except BlockingIOError:
                break
            count += 1
    assert 40 * 2 <= count <= 40 * 5  # 1,000 such processes are some 3,000 connections in this second, not 200,000


def test_a_port_that_nobody_listens_on_is_no_answer() -> None:
    with socket.socket() as held:
        held.bind(("127.0.0.1", 0))
        assert not _answers("127.0.0.1", held.getsockname()[1])
