"""The same line of several processes is shown once; nothing is lost, doubled, late or out of order."""

from __future__ import annotations

import random
from collections import defaultdict

import pytest

from hostmesh.launcher.output.merge import BYTES_A_LINE, MAX_HELD, MAX_PER_SECOND, WINDOW, Merger, find_key, name_ids


def unfold(merger: Merger) -> dict[int, list[str]]:
    """By process, what has been let go so far."""
    said: dict[int, list[str]] = defaultdict(list)
    for ids, lines in merger.take():
        for process_id in ids:
            said[process_id] += lines
    return said


def merge(*said: tuple[int, list[str]], processes: int) -> list[tuple[str, list[str]]]:
    """All within one moment."""
    merger = Merger()
    for process_id, lines in said:
        merger.add(process_id, lines, range(processes), 0.0)
    merger.drain()
    return [(name_ids(shown.ids), shown.lines) for shown in merger.take()]


def test_a_line_that_all_have_said_does_not_wait() -> None:
    merger = Merger()
    for process_id in range(3):
        assert not merger.take()
        merger.add(process_id, ["up", f"number {process_id}"], range(3), 0.0)
    assert [(ids, lines) for ids, lines in merger.take()] == [((0, 1, 2), ["up"])]
    merger.release_old(WINDOW / 2)
    assert not merger.take() and merger.due == WINDOW
    merger.release_old(WINDOW)
    assert [ids for ids, _ in merger.take()] == [(0,), (1,), (2,)] and merger.due is None


def test_lines_of_one_process_between_lines_of_all_do_not_keep_those_apart() -> None:
    said = [(k, ["begin", f"mine is {k}", "end"]) for k in range(3)]
    assert merge(*said, processes=3) == [
        ("0-2", ["begin"]),
        ("0", ["mine is 0"]),
        ("1", ["mine is 1"]),
        ("2", ["mine is 2"]),
        ("0-2", ["end"]),
    ]


def test_lines_in_another_order_are_not_merged_against_it() -> None:
    shown = merge((0, ["a", "b"]), (1, ["b", "a"]), (2, ["a", "b"]), processes=4)
    assert shown in ([("1", ["b"]), ("0-2", ["a"]), ("0,2", ["b"])], [("0,2", ["a"]), ("0-2", ["b"]), ("1", ["a"])])


@pytest.mark.parametrize(
    ("line", "same"),
    [
        ("I1117 05:13:30.104242 139720454048640 a.py:35] x", "I1117 05:13:31.9 7 a.py:35] x"),
        ("2031-05-04 12:00:00,123 INFO x", "2031-05-04 12:00:00,124 INFO x"),
        ("[INFO 12:00:00] x", "[INFO 12:00:01] x"),
        ("using <function f at 0x7f12d7fd7060>", "using <function f at 0x7f13097fdc60>"),
        ("process 0 of 4: 2 devices", "process 1 of 4: 2 devices"),
        ("[process=0][thread=Main] saving", "[process=1][thread=Main] saving"),
        ("process_index=0", "process_index=1"),
        (
            "I1117 05:13:30.1 1 a.py:35] took 0.37s (at 14.2 KiB/s)",
            "I1117 05:13:30.2 1 a.py:35] took 0.41s (at 9.0 KiB/s)",
        ),
    ],
)
def test_what_tells_processes_apart_without_a_meaning_does_not_count(line: str, same: str) -> None:
    assert find_key(line, 0) == find_key(same, 1)


@pytest.mark.parametrize(
    ("line", "other"),
    [
        ("I1117 05:13:30.104242 1 a.py:35] x", "I1117 05:13:30.104242 1 a.py:36] x"),
        ("I1117 05:13:30.104242 1 a.py:35] x", "W1117 05:13:30.104242 1 a.py:35] x"),
        ("loss 0.5", "loss 0.6"),
        ("took 0.37 s", "took 0.41 s"),
        ("I1117 05:13:30.1 1 a.py:35] loss 0.5", "I1117 05:13:30.1 1 a.py:35] loss 0.6"),
        ("ended 12:00:00", "ended 12:00:01"),
        ("checksum 0x7f12", "checksum 0x7f13"),
        ("waits for process 2", "waits for process 3"),
        ("found 0", "found 1"),
        ("process 0.5", "process 1.5"),
    ],
)
def test_all_else_does(line: str, other: str) -> None:
    assert find_key(line, 0) != find_key(other, 1)


def test_a_line_with_its_process_number_shows_all_of_them() -> None:
    said = [(k, [f"process {k} of 4 has 2 devices"]) for k in range(4)]
    assert merge(*said, processes=4) == [("0-3", ["process 0-3 of 4 has 2 devices"])]
    assert merge(*said[1:2], processes=4) == [("1", ["process 1 of 4 has 2 devices"])]


def test_a_measured_time_that_is_not_everybodys_is_shown_as_a_rough_one() -> None:
    said = [(k, [f"I1117 05:13:30.{k} 1 a.py:35] process={k} took {took} s"]) for k, took in enumerate((0.5, 0.7, 0.5))]
    assert merge(*said, processes=3) == [("0-2", ["I1117 05:13:30.0 1 a.py:35] process=0-2 took ~0.5 s"])]
    assert merge(said[0], said[2], processes=3) == [("0,2", ["I1117 05:13:30.0 1 a.py:35] process=0,2 took 0.5 s"])]


def test_a_list_of_processes_that_would_be_too_long_is_counted() -> None:
    assert [name_ids(ids) for ids in ((7,), (0, 1, 2, 10), tuple(range(0, 128, 2)))] == ["7", "0-2,10", "64 processes"]


def test_nothing_is_lost_doubled_late_or_out_of_order() -> None:
    rng = random.Random(7)
    for _ in range(300):
        processes = rng.randrange(2, 6)
        said: dict[int, list[str]] = defaultdict(list)
        shown: dict[int, list[str]] = defaultdict(list)
        when: dict[int, list[float]] = defaultdict(list)
        merger, now = Merger(), 0.0
        for _ in range(rng.randrange(60)):
            now += rng.choice((0.0, 0.01, 0.1, 0.5))
            process_id = rng.randrange(processes)
            lines = rng.choices("abcdef", k=rng.randrange(1, 5))
            said[process_id] += lines
            when[process_id] += [now] * len(lines)
            if rng.random() < 0.1:
                merger.pass_on(process_id, lines)
            else:
                merger.add(process_id, lines, range(processes), now)
            merger.release_old(now)
            for each, its_lines in unfold(merger).items():
                shown[each] += its_lines
            for each, times in when.items():
                assert all(at > now - WINDOW for at in times[len(shown[each]) :])
        merger.drain()
        for each, its_lines in unfold(merger).items():
            shown[each] += its_lines
        assert shown == said


def test_many_processes_that_wait_for_each_other_end_no_screen() -> None:
    """Each has what the next one says first as its second line."""
    said = [(k, [str(k), str(k + 1)]) for k in range(3000)]
    shown = merge(*reversed(said), processes=3000)
    assert sum(len(lines) for _, lines in shown) <= 6000
    assert {line for _, lines in shown for line in lines} == {str(k) for k in range(3001)}


def test_a_chatty_process_is_not_held() -> None:
    merger = Merger()
    merger.add(0, ["first"], range(2), 0.0)
    merger.add(0, [str(k) for k in range(MAX_PER_SECOND)], range(2), 0.1)
    assert unfold(merger)[0] == ["first", *(str(k) for k in range(MAX_PER_SECOND))]
    merger.add(0, ["later"], range(2), 1.5)
    assert not merger.take()


def test_what_is_held_is_bounded() -> None:
    merger = Merger()
    for process_id in range(MAX_HELD // (1000 * BYTES_A_LINE) + 2):
        merger.add(process_id, [f"{process_id}.{k}" for k in range(1000)], range(9999), 0.0)
    assert merger.ready_lines > 1000
