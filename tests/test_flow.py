"""The window of output on its way: grows on a quick link, shrinks on a slow one, never closes for good."""

from launcher.agent.flow import FIRST_WINDOW, MAX_WINDOW, MIN_WINDOW, Window


class Link:
    """A link of so many bytes a second; sends as much as the window allows and acknowledges what has arrived."""

    def __init__(self, rate: float) -> None:
        self.now, self.rate = 0.0, rate
        self.window = Window(lambda: self.now)

    def carry(self, total: int) -> float:
        """Seconds that the last byte was on its way."""
        seconds = 0.0
        while total > 0:
            size = min(self.window.room, 64 << 10, total)
            assert size > 0
            self.window.note_sent(size)
            seconds = size / self.rate
            self.now += seconds
            self.window.note_acknowledged(size)
            total -= size
        return seconds


def test_a_quick_link_gets_a_large_window_and_a_slow_one_a_small_one() -> None:
    quick, slow = Link(1e9), Link(125_000)
    quick.carry(100 << 20)
    slow.carry(4 << 20)
    assert quick.window.size == MAX_WINDOW and slow.window.size < FIRST_WINDOW


def test_a_window_opens_again_when_the_link_gets_better() -> None:
    link = Link(10_000)
    link.carry(1 << 20)
    assert link.window.size == MIN_WINDOW
    link.rate = 1e9
    link.carry(100 << 20)
    assert link.window.size == MAX_WINDOW


def test_unacknowledged_output_fills_the_window() -> None:
    window = Window()
    window.note_sent(FIRST_WINDOW - 1)
    assert window.room == 1
    window.note_sent(100)
    assert window.room == 0
    window.note_acknowledged(FIRST_WINDOW + 99)
    assert window.room >= FIRST_WINDOW
