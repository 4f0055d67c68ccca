"""The window of bulk on its way: grows on a quick link, shrinks on a slow one, never closes for good."""

import pytest

from hostmesh.launcher.agent.flow import FILES, OUTPUT, Limits, Window


class Link:
    """A link of so many bytes a second that is kept as full as the window allows."""

    def __init__(self, limits: Limits, rate: float) -> None:
        self.now, self.rate, self.piece = 0.0, rate, limits.least // 4
        self.window = Window(limits, lambda: self.now)

    def carry(self, total: int) -> None:
        for _ in range(total // self.piece):
            while self.window.room:
                self.window.note_sent(self.piece)
            self.now += self.piece / self.rate
            self.window.note_acknowledged(self.piece)


@pytest.mark.parametrize("limits", [OUTPUT, FILES], ids=["output", "files"])
def test_a_quick_link_gets_a_large_window_and_a_slow_one_a_small_one(limits: Limits) -> None:
    link = Link(limits, 1e9)
    link.carry(100 << 20)
    assert link.window.size == limits.most
    link.rate = limits.least / limits.slow
    link.carry(100 << 20)
    assert link.window.size <= 2 * limits.least, "what is on its way never takes much longer than it should"
    link.rate = 1e9
    link.carry(100 << 20)
    assert link.window.size == limits.most


def test_unacknowledged_bulk_fills_the_window() -> None:
    window = Window(OUTPUT)
    window.note_sent(OUTPUT.first - 1)
    assert window.room == 1
    window.note_sent(100)
    assert window.room == 0
    window.note_acknowledged(OUTPUT.first + 99)
    assert window.room >= OUTPUT.first
