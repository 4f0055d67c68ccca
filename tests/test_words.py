"""Counts, lists of names and sizes as text."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from hostmesh.launcher.words import (
    agree,
    as_one_line,
    count_things,
    last_lines,
    list_some,
    name_processes,
    tell_size,
)


@pytest.mark.parametrize(
    ("count", "thing", "text"),
    [
        (0, "GPU", "0 GPUs"),
        (1, "GPU", "1 GPU"),
        (2, "host", "2 hosts"),
        (1, "process", "1 process"),
        (3, "other process", "3 other processes"),
    ],
)
def test_things_are_counted_in_the_plural(count: int, thing: str, text: str) -> None:
    assert count_things(count, thing) == text


def test_long_lists_name_a_few_and_count_the_others() -> None:
    names = ["a", "b", "c", "d", "e"]
    assert list_some(names[:1]) == "a"
    assert list_some(names[:3]) == "a, b, c"
    assert list_some(names) == "a, b, c and 2 more"
    assert list_some(names[:4], most=4, rest="other hosts") == "a, b, c, d"
    assert list_some(names, most=4, rest="other hosts") == "a, b, c and 2 other hosts"


@pytest.mark.parametrize(
    ("size", "text"),
    [
        (0, "0 bytes"),
        (999, "999 bytes"),
        (1000, "1 kB"),
        (999_999, "1 MB"),
        (50 << 20, "52 MB"),
        (64_000_000, "64 MB"),
        (999_999_999, "1 GB"),
        (11_170_000_000, "11.2 GB"),
        (12 * 10**9, "12 GB"),
        (999_970_000_000, "1 TB"),
        (2_500_000_000_000, "2.5 TB"),
    ],
)
def test_sizes_are_in_powers_of_a_thousand(size: int, text: str) -> None:
    assert tell_size(size) == text


@pytest.mark.parametrize(
    ("ids", "text"),
    [
        ([2], "process 2"),
        ([0, 1], "processes 0 and 1"),
        ([0, 1, 3], "processes 0, 1 and 3"),
        (range(6), "processes 0, 1, 2, 3, 4 and 5"),
        (range(100), "processes 0, 1, 2, 3, 4 and 95 more"),
    ],
)
def test_processes_are_named_in_one_way(ids: Sequence[int], text: str) -> None:
    assert name_processes(ids) == text


def test_a_verb_agrees_with_its_subject() -> None:
    assert [agree(verb, 1) for verb in ("is", "was", "waits")] == ["is", "was", "waits"]
    assert [agree(verb, 2) for verb in ("is", "was", "has", "does", "waits")] == ["are", "were", "have", "do", "wait"]


def test_of_what_was_printed_the_last_lines_that_say_something_are_kept() -> None:
    assert last_lines("a\n\n  b \n \nc\n\n", 2) == ["  b", "c"]
    assert last_lines("\n", 3) == []


def test_a_text_of_others_becomes_one_short_line() -> None:
    assert as_one_line(" a\n\tb ") == "a b" and len(as_one_line("x" * 1000)) == 200
