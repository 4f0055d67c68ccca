"""Clocks of hosts are compared by messages that went each way."""

from __future__ import annotations

import math

import pytest

from hostmesh.launcher.supervisor.link.clocks import Clock, same_clock


@pytest.mark.parametrize("ahead", [0.0, 120.0, -3600.0])
def test_a_moment_on_a_host_is_told_by_our_clock(ahead: float) -> None:
    clock = Clock()
    clock.note_sent(1000.010 + ahead - 1000.0)  # 10 ms on its way there
    clock.note_heard(1005.0 + ahead, 1005.030)  # 30 ms on its way back
    at, clock_error = clock.bring_here(1004.0 + ahead, 1006.0)
    assert at == pytest.approx(1004.0, abs=0.021) and clock_error == pytest.approx(0.020)


def test_more_messages_only_make_it_better() -> None:
    clock = Clock()
    for delay in (0.5, 0.01, 0.3):
        clock.note_sent(delay)
        clock.note_heard(10.0, 10.0 + delay)
    assert clock.bring_here(9.0, 11.0) == (pytest.approx(9.0), pytest.approx(0.01))


def test_a_clock_of_which_nothing_is_known_tells_nothing() -> None:
    clock = Clock()
    clock.note_heard(500.0, 10.0)
    assert clock.bring_here(500.0, 10.0) == (10.0, math.inf)


def test_this_machine_needs_no_messages() -> None:
    assert same_clock().bring_here(9.0, 10.0) == (9.0, 0.0)


def test_nothing_has_happened_after_now() -> None:
    assert same_clock().bring_here(11.0, 10.0)[0] == 10.0
