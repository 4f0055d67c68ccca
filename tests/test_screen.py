import fcntl
import io
import os
import random
import select
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TextIO

import pytest
from conftest import busyness

from hostmesh.launcher.output.lines import LineCutter
from hostmesh.launcher.output.logs import CHUNK, ProcessLog
from hostmesh.launcher.output.screen import Screen, use_colour

TIMEOUT = 20.0
LINE = b"2031-05-04 12:00:00 INFO train: step 1234 loss 0.12345 accuracy 0.9876 lr 1.0e-3\n"
BLOCK = LINE * (CHUNK // len(LINE))

MakeLog = Callable[[str], ProcessLog]
Pipe = tuple[int, TextIO]


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


class Watched(io.StringIO):
    """Says when a wanted text has been written, and how much came before it; keeps nothing."""

    def __init__(self, wanted: str, at_first_write: Callable[[], None] = lambda: None) -> None:
        super().__init__()
        self.wanted, self.at_first_write = wanted, at_first_write
        self.before, self.seen = 0, threading.Event()

    def write(self, text: str) -> int:
        if self.before == 0:
            self.at_first_write()
        if self.wanted in text:
            self.seen.set()
        if not self.seen.is_set():
            self.before += len(text)
        return len(text)


@pytest.fixture
def make_log(tmp_path: Path) -> Iterator[MakeLog]:
    logs: list[ProcessLog] = []

    def make(name: str) -> ProcessLog:
        logs.append(ProcessLog(tmp_path / name, []))
        return logs[-1]

    yield make
    for log in logs:
        log.close()
        log.path.unlink(missing_ok=True)


@pytest.fixture
def pipe() -> Iterator[Pipe]:
    reader, writer = os.pipe()
    with open(reader, "rb"), open(writer, "w", encoding="utf-8") as out:
        yield reader, out


def cut(*chunks: bytes, colour: bool = False) -> list[str]:
    cutter = LineCutter(colour, Clock())
    return [line for chunk in chunks for line in cutter.feed(chunk)] + cutter.flush()


def read_until(reader: int, wanted: bytes) -> bytes:
    data = b""
    while wanted not in data:
        assert select.select([reader], [], [], TIMEOUT)[0], f"no {wanted!r} came"
        data += os.read(reader, 1 << 20)
    return data


def resident_bytes() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


# --- LineCutter


@pytest.mark.parametrize(
    ("data", "lines"),
    [
        (b"", []),
        (b"a\nb\r\nc", ["a", "b", "c"]),
        (b"\n\r\na\n\n", ["", "", "a", ""]),
        (b"a\r\r\n", ["a"]),
        (b"   \r\n", ["   "]),
        (b"10%\r20%\r30%\n", ["30%"]),
        (b"\r10%\r20%", ["20%"]),
        (b"10%\r20%\r", ["20%"]),
        (b"10%\r    \rdone\n", ["done"]),
        (b"10%\r    \r\nnext\n", ["next"]),
        (b"10%\r    ", []),
        (b"a\tb\n", ["a\tb"]),
        ("é\u2713\U0001f600\n".encode(), ["é\u2713\U0001f600"]),
        (b"\xff\xc3(\n\xe2\x82", ["\ufffd\ufffd(", "\ufffd"]),
        (b"a\0\x07b\x7f\x0b\x0c\n", ["ab"]),
        (b"12%\b\b\b13%\n", ["12%13%"]),
        ("a\x9b2Jb\x85c\u2028d\u202ee\u2066f\n".encode(), ["a2Jbcdef"]),
    ],
)
def test_bytes_become_sane_lines(data: bytes, lines: list[str]) -> None:
    assert cut(data) == lines
    assert cut(*(data[i : i + 1] for i in range(len(data)))) == lines


@pytest.mark.parametrize(
    ("data", "lines"),
    [
        (b"\x1b[2J\x1b[1;1Hhome\x1b[K\n", ["home"]),
        (b"\x1b]0;title\x07a\x1b]8;;http://x\x1b\\b\n", ["ab"]),
        (b"\x1b]0;never ends\nnext\n", ["", "next"]),
        (b"\x1b]0;never ends\rnext\n", ["next"]),
        (b"\x1bPq#0\x1b\\a\x1b_x\x1b\\b\n", ["ab"]),
        (b"\x1bc\x1b(B\x1b7a\x1b[?25l\x1b[?1049h\n", ["a"]),
        (b"a\x1b[12\nb\x1b\n\x1b[", ["a", "b"]),
        (b"a\x1b[3\xc3\xa9b\n", ["a\xe9b"]),
        (b"\x1b[" + b"1;" * 5000 + b"ma\n", ["a"]),
        (b"a\x1b]0;" + b"x" * 5000 + b"\x07b\x1b]0;" + b"y" * 5000 + b"\x1b\\c\n", ["abc"]),
    ],
)
@pytest.mark.parametrize("colour", [False, True])
def test_no_escape_but_colours_ever_gets_through(colour: bool, data: bytes, lines: list[str]) -> None:
    strip = [line.removesuffix("\x1b[0m") for line in cut(data, colour=colour)]
    assert strip == lines
    assert cut(*(data[i : i + 1] for i in range(len(data)))) == lines


def test_a_terminator_split_between_chunks_ends_a_long_escape() -> None:
    assert cut(b"a\x1b]0;" + b"x" * 5000 + b"\x1b", b"\\b\n") == ["ab"]


def test_colours_are_kept_on_a_colour_terminal_only_and_end_with_the_line() -> None:
    data = b"\x1b[1;31mred\nplain\n\x1b[38:5:9mred\x1b[m\n\x1b[0m"
    assert cut(data) == ["red", "plain", "red"]
    assert cut(data, colour=True) == ["\x1b[1;31mred\x1b[0m", "plain", "\x1b[38:5:9mred\x1b[m\x1b[0m"]


def test_chunk_boundaries_never_change_the_lines() -> None:
    rng = random.Random(3)
    atoms = [
        b"a",
        b"b",
        b" ",
        b"\r",
        b"\n",
        b"\r\n",
        b"\x1b",
        b"[",
        b"]",
        b"3m",
        b"\x07",
        b"\\",
        b"\xc3\xa9",
        b"\xe2",
    ]
    for _ in range(4000):
        data = b"".join(rng.choices(atoms, k=rng.randrange(20)))
        cuts = sorted(rng.choices(range(len(data) + 1), k=rng.randrange(5)))
        chunks = [data[a:b] for a, b in zip([0, *cuts], [*cuts, len(data)], strict=True)]
        colour = rng.random() < 0.5
        assert cut(*chunks, colour=colour) == cut(data, colour=colour), (data, chunks)


def test_no_random_bytes_can_garble_the_screen() -> None:
    rng = random.Random(5)
    for _ in range(300):
        data = bytes(rng.choices([*range(256), 0x1B, 0x1B, 0x5B, 0x5D], k=300))
        for line in cut(data[:100], data[100:]):
            assert not any(ord(c) < 32 and c != "\t" or 0x7F <= ord(c) <= 0x9F for c in line)


@pytest.mark.parametrize("character", ["x", "é", "\u2713", "\U0001f600", "x\U0001f600"])
def test_long_lines_are_cut_between_characters(character: str) -> None:
    line = character * 10_000
    for lines in (
        cut(line.encode() + b"\nend\n"),
        cut(line[:5000].encode(), line[5000:].encode() + b"\nend\n"),
    ):
        assert "".join(lines[:-1]) == line and lines[-1] == "end"
        assert all(8188 < len(piece.encode()) <= 8192 for piece in lines[:-2])
        assert len(lines[-2].encode()) <= 8192


def test_a_line_of_exactly_the_limit_is_one_line() -> None:
    assert cut(b"x" * 8192, b"\n") == ["x" * 8192]
    assert cut(b"x" * 16384, b"\n") == ["x" * 8192] * 2


def test_long_lines_are_not_cut_inside_a_colour() -> None:
    for shift in range(10):
        text = "x" * (8192 - shift) + "\x1b[31m" + "y" * 100
        first, second = cut(text.encode(), colour=True)
        assert first.removesuffix("\x1b[0m") + second.removesuffix("\x1b[0m") == text
        assert "\x1b[31m" in first or second.startswith("\x1b[31m")


@pytest.mark.parametrize("data", [b"x", b"x\r", b"\r", b"\x1b]", b"\x1b[1;", b"\x1b ", "\u2713".encode()])
def test_a_stream_without_newline_is_held_in_bounded_memory(data: bytes) -> None:
    cutter = LineCutter(False, Clock())
    for _ in range(50):
        cutter.feed(data * 10_000)
        assert len(cutter._half.raw) + len(cutter._escape) < 20_000


def test_a_progress_bar_is_shown_at_most_once_per_second_with_its_newest_state() -> None:
    clock = Clock()
    cutter = LineCutter(False, clock)
    shown = []
    for percent in range(100):
        clock.now = percent / 10
        shown += [(clock.now, line) for line in cutter.feed(f"\r{percent}%".encode())]
    assert [line for _, line in shown] == ["10%", "21%", "32%", "43%", "54%", "65%", "76%", "87%", "98%"]
    assert cutter.feed(b"\n") == ["99%"]


def test_a_quiet_progress_bar_is_shown_when_due_and_its_end_is_not_shown_twice() -> None:
    clock = Clock()
    cutter = LineCutter(False, clock)
    assert cutter.feed(b"10%\r50%\r") == [] and cutter.due == 1.0
    clock.now = 1.0
    assert cutter.feed(b"") == ["50%"] and cutter.due is None
    assert cutter.feed(b"\nnext\r\n") == ["next"]


def test_a_wiped_progress_bar_is_not_waited_for() -> None:
    cutter = LineCutter(False, Clock())
    cutter.feed(b"10%\r")
    cutter.feed(b"     \r")
    assert cutter.due is None and cutter.flush() == []


def test_what_python_says_when_it_cleans_up_after_killed_processes_is_left_to_the_log() -> None:
    said = (
        b"resource_tracker.py:254: UserWarning: resource_tracker: There appear to be 13 leaked shared_memory objects\n"
    )
    for source in (b"  warnings.warn('resource_tracker: There appear to be %d '\n", b"  warnings.warn(\n"):
        assert cut(b"before\n" + said + source + b"after\n" + source) == ["before", "after", source.decode().rstrip()]
        assert cut(b"before\n" + said, source, b"after\n") == ["before", "after"]


# --- Screen


def test_lines_are_prefixed_with_padded_labels_and_half_lines_come_at_the_end(make_log: MakeLog) -> None:
    out, first, second = io.StringIO(), make_log("0"), make_log("1")
    screen = Screen(out, colour=False)
    screen.follow(first, "0", 0)
    screen.follow(second, "10 b", 1)
    first.write(b"one\n\ntw")
    second.write(b"half of a closed log")
    second.close()
    screen.start()
    assert screen.finish(TIMEOUT)
    assert sorted(out.getvalue().splitlines()) == sorted(
        ["[0   ] one", "[0   ] ", "[0   ] tw", "[10 b] half of a closed log"]
    )


def test_labels_are_coloured_by_index_and_only_if_asked(make_log: MakeLog) -> None:
    shown = []
    for colour, index in ((True, 0), (True, 1), (True, 8), (False, 0)):
        out, log = io.StringIO(), make_log(f"{colour}{index}")
        screen = Screen(out, colour)
        screen.follow(log, "0", index)
        log.write(b"\x1b[31mred\n")
        assert screen.finish(TIMEOUT)
        shown.append(out.getvalue())
    assert shown[0].startswith("\x1b[") and shown[0].endswith("m[0]\x1b[0m \x1b[31mred\x1b[0m\n")
    assert shown[0] == shown[2] != shown[1]
    assert shown[3] == "[0] red\n"


def test_lines_are_shown_while_the_run_goes_on(make_log: MakeLog, pipe: Pipe) -> None:
    reader, out = pipe
    screen = Screen(out, colour=False)
    screen.start()
    log = make_log("0")
    screen.follow(log, "0", 0)
    for text in (b"one\n", b"two\n"):
        log.write(text)
        screen.wake()
        assert read_until(reader, text) == b"[0] " + text
    log.write(b"half")
    log.close()
    screen.wake()
    assert read_until(reader, b"half\n") == b"[0] half\n"
    assert screen.finish(TIMEOUT)


def test_a_quiet_progress_bar_appears_without_further_output(make_log: MakeLog, pipe: Pipe) -> None:
    reader, out = pipe
    screen, log = Screen(out, colour=False), make_log("0")
    screen.follow(log, "0", 0)
    log.write(b"\r10%\r20%")
    screen.start()
    assert read_until(reader, b"\n") == b"[0] 20%\n"
    log.write(b"\n")
    assert screen.finish(TIMEOUT)


def test_only_what_this_attempt_wrote_is_shown(make_log: MakeLog, tmp_path: Path) -> None:
    (tmp_path / "0").write_bytes(b"earlier\n")
    out, log = io.StringIO(), make_log("0")
    log.write(b"now\n")
    screen = Screen(out, colour=False)
    screen.follow(log, "0", 0)
    assert screen.finish(TIMEOUT)
    assert out.getvalue() == "[0] now\n"


def test_a_note_comes_after_all_output_before_it(make_log: MakeLog) -> None:
    out, logs = io.StringIO(), [make_log("0"), make_log("1")]
    screen = Screen(out, colour=False, merge=False)
    for i, log in enumerate(logs):
        screen.follow(log, str(i), i)
        log.write(BLOCK * 5)
    logs[1].write(b"half")
    logs[1].close()
    screen.note("the note")
    logs[0].write(BLOCK * 5)
    screen.start()
    screen.note("the end")
    assert screen.finish(TIMEOUT)
    before, _, after = out.getvalue().partition("the note\n")
    assert before.count("[0]") >= 5 * BLOCK.count(b"\n") and before.endswith("\n")
    assert "[1] half\n" in before
    assert "[0]" in after and after.endswith("the end\n")


def test_what_several_processes_say_is_shown_once_and_in_time(make_log: MakeLog, pipe: Pipe) -> None:
    reader, out = pipe
    screen, logs = Screen(out, colour=False), [make_log(str(k)) for k in range(3)]
    for process_id, log in enumerate(logs):
        screen.follow(log, f"{process_id} here", process_id)
    screen.start()
    for process_id, log in enumerate(logs):
        log.write(b"starting\nmy number is %d\n" % process_id)
        screen.wake()
    shown = read_until(reader, b"is 2\n").decode().splitlines()
    assert shown == ["[0-2   ] starting", *(f"[{k} here] my number is {k}" for k in range(3))]
    logs[1].close()
    for log in (logs[0], logs[2]):
        log.write(b"no newline at the end")
        log.close()
    screen.note("the verdict")
    assert screen.finish(TIMEOUT)
    assert read_until(reader, b"verdict\n") == b"[0,2   ] no newline at the end\nthe verdict\n"


def test_a_line_of_one_process_does_not_wait_for_the_others_for_long(make_log: MakeLog, pipe: Pipe) -> None:
    reader, out = pipe
    screen, log = Screen(out, colour=False), make_log("0")
    screen.follow(log, "0", 0)
    screen.follow(make_log("1"), "1", 1)
    screen.start()
    log.write(b"alone\n")
    screen.wake()
    assert read_until(reader, b"\n") == b"[0] alone\n"
    assert screen.finish(TIMEOUT)


def test_only_wanted_processes_are_shown_and_all_their_lines_if_asked(make_log: MakeLog) -> None:
    def show(wanted: set[int] | None, merge: bool) -> list[str]:
        out = io.StringIO()
        screen = Screen(out, colour=False, wanted=wanted, merge=merge)
        for process_id, log in enumerate(logs):
            screen.follow(log, str(process_id), process_id)
        screen.note("told")
        assert screen.finish(TIMEOUT)
        return out.getvalue().splitlines()

    logs = [make_log(str(k)) for k in range(3)]
    for log in logs:
        log.write(b"x\n")
    assert show(None, merge=True) == ["[0-2] x", "told"]
    assert show(None, merge=False) == ["[0] x", "[1] x", "[2] x", "told"]
    assert show({0, 2}, merge=True) == ["[0,2] x", "told"]
    assert show({1}, merge=True) == ["[1] x", "told"]
    assert show(set(), merge=True) == ["told"]


def test_a_flood_of_several_processes_is_shown_whole(make_log: MakeLog) -> None:
    out, logs = io.StringIO(), [make_log(str(k)) for k in range(3)]
    screen = Screen(out, colour=False)
    for process_id, log in enumerate(logs):
        screen.follow(log, str(process_id), process_id)
        log.write(BLOCK * 5 + b"done\n")
        log.close()
    assert screen.finish(TIMEOUT)
    counts = dict.fromkeys(range(3), 0)
    for line in out.getvalue().splitlines():
        first, _, last = line[1 : line.index("]")].partition("-")
        for process_id in range(int(first), int(last or first) + 1):
            counts[process_id] += 1
    assert set(counts.values()) == {5 * BLOCK.count(b"\n") + 1}


def test_a_stalled_reader_delays_nobody_and_loses_nothing(make_log: MakeLog, pipe: Pipe) -> None:
    reader, out = pipe
    screen, log = Screen(out, colour=False), make_log("0")
    screen.follow(log, "0", 0)
    screen.start()
    began = time.monotonic()
    for i in range(100):
        log.write(BLOCK)
        screen.wake()
        screen.note(f"note {i}")
    assert time.monotonic() - began < 10 * busyness()
    assert not screen.finish(0.2)
    shown = read_until(reader, b"note 99\n")
    assert screen.finish(TIMEOUT)
    lines = shown.splitlines()
    assert [line for line in lines if line.startswith(b"note")] == [b"note %d" % i for i in range(100)]
    assert lines.count(b"[0] " + LINE[:-1]) == 100 * BLOCK.count(b"\n") == len(lines) - 100


def test_the_launcher_can_exit_while_its_reader_is_stalled(tmp_path: Path) -> None:
    script = f"""
import sys
from pathlib import Path
from hostmesh.launcher.output.logs import ProcessLog
from hostmesh.launcher.output.screen import Screen
log = ProcessLog(Path({str(tmp_path / "log")!r}), [])
log.write(b"line\\n" * 200_000)
screen = Screen(sys.stdout, False)
screen.follow(log, "0", 0)
screen.start()
stopped = screen.finish(0.2)
log.close()
sys.exit(40 + stopped)
"""
    argv, root = [sys.executable, "-E", "-c", script], Path(__file__).parents[1] / "src"
    with subprocess.Popen(argv, cwd=root, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.wait(TIMEOUT) == 40
        assert process.stderr and process.stderr.read() == b""


def test_a_terminal_made_non_blocking_loses_nothing(make_log: MakeLog, pipe: Pipe) -> None:
    reader, out = pipe
    fcntl.fcntl(out, fcntl.F_SETFL, os.O_NONBLOCK)
    screen, log = Screen(out, colour=False), make_log("0")
    screen.follow(log, "0", 0)
    log.write(BLOCK * 10)
    screen.start()
    screen.note("end")
    assert not screen.finish(0.1)
    assert read_until(reader, b"end\n").count(b"[0]") == 10 * BLOCK.count(b"\n")
    assert screen.finish(TIMEOUT) and not screen.broken


def test_a_reader_that_leaves_ends_the_printing_quietly(make_log: MakeLog) -> None:
    reader, writer = os.pipe()
    os.close(reader)
    with open(writer, "w") as out:
        screen, log = Screen(out, colour=False), make_log("0")
        screen.follow(log, "0", 0)
        screen.start()
        log.write(BLOCK)
        assert screen.finish(TIMEOUT)
        assert screen.broken
        screen.note("nobody will see this")
        assert screen.finish(TIMEOUT)


def test_a_closed_stream_ends_the_printing_quietly(make_log: MakeLog) -> None:
    out, notes, log = io.StringIO(), io.StringIO(), make_log("0")
    screen = Screen(out, colour=False, notes=notes)
    screen.follow(log, "0", 0)
    out.close()
    log.write(b"x\n")
    screen.note("still told")
    assert screen.finish(TIMEOUT) and screen.broken
    assert notes.getvalue() == "still told\n"


def test_a_note_does_not_wait_for_lines_that_nobody_will_see(make_log: MakeLog) -> None:
    out, notes, log = io.StringIO(), io.StringIO(), make_log("0")
    screen = Screen(out, colour=False, notes=notes)
    screen.follow(log, "0", 0)
    log.write(BLOCK * 20)
    screen.note("told all the same")  # behind 20 blocks, of which the first breaks the stream
    out.close()
    assert screen.finish(TIMEOUT)
    assert notes.getvalue() == "told all the same\n"


def test_a_note_does_not_wait_for_the_end_of_a_muted_log(make_log: MakeLog) -> None:
    out, log = io.StringIO(), make_log("0")
    screen = Screen(out, colour=False)
    screen.follow(log, "0", 0)
    log.write(b"x\n")
    log.close()
    screen.note("told")
    screen.mute(log)
    assert screen.finish(TIMEOUT)
    assert out.getvalue() == "[0] x\ntold\n"


def test_a_note_that_quotes_a_process_cannot_garble_the_screen() -> None:
    out = io.StringIO()
    screen = Screen(out, colour=True)
    screen.note("failed:\n  Odd: \x1b[2Jgone\x1b]0;title\x07\x9b5A\n  last")
    assert screen.finish(TIMEOUT)
    assert out.getvalue() == "failed:\n  Odd: gone5A\n  last\n"


def test_a_muted_log_shows_what_came_before_and_no_more(make_log: MakeLog) -> None:
    out, log, other = io.StringIO(), make_log("0"), make_log("1")
    screen = Screen(out, colour=False)
    for process_id, one in enumerate((log, other)):
        screen.follow(one, str(process_id), process_id)
    log.write(b"before\nhalf a li")
    screen.mute(log)
    log.write(b"ne\nafter\n")
    other.write(b"heard\n")
    assert screen.finish(TIMEOUT)
    assert sorted(out.getvalue().splitlines()) == ["[0] before", "[1] heard"]


@pytest.mark.parametrize("encoding", ["ascii", "latin-1", "utf-8"])
@pytest.mark.parametrize("buffer", [io.BytesIO, lambda: open(os.memfd_create("out"), "w+b")])  # noqa: SIM115
def test_characters_that_the_terminal_cannot_show_are_replaced(
    make_log: MakeLog, buffer: Callable[[], io.BytesIO], encoding: str
) -> None:
    log = make_log("0")
    log.write("né \u2713\n".encode())
    with io.TextIOWrapper(buffer(), encoding=encoding) as out:
        screen = Screen(out, colour=False)
        screen.follow(log, "0", 0)
        screen.note("caf\udce9")
        assert screen.finish(TIMEOUT) and not screen.broken
        out.buffer.seek(0)
        assert out.buffer.read() == "[0] né \u2713\ncaf\udce9\n".encode(encoding, "replace")


@pytest.mark.parametrize("vanish", [Path.unlink, lambda path: os.truncate(path, 0)])
def test_a_vanished_log_is_reported_only(make_log: MakeLog, vanish: Callable[[Path], None]) -> None:
    out, logs = io.StringIO(), [make_log("0"), make_log("1")]
    screen = Screen(out, colour=False)
    for i, log in enumerate(logs):
        screen.follow(log, str(i), i)
        log.write(b"line\n")
    vanish(logs[0].path)
    screen.note("end")
    assert screen.finish(TIMEOUT)
    first, second, last = out.getvalue().splitlines()
    assert first.startswith(f"[0] (the rest cannot be shown: {logs[0].path}: ")
    assert (second, last) == ("[1] line", "end")


def test_a_flood_from_one_process_does_not_hold_up_another(make_log: MakeLog) -> None:
    flood, quiet = make_log("flood"), make_log("quiet")
    for _ in range(100 * 2**20 // len(BLOCK)):
        flood.write(BLOCK)
    out = Watched("[quiet] here", at_first_write=lambda: quiet.write(b"here I am\n"))
    screen = Screen(out, colour=False)
    screen.follow(flood, "flood", 0)
    screen.follow(quiet, "quiet", 1)
    screen.start()
    assert out.seen.wait(TIMEOUT)
    assert 0 < out.before < 4 * CHUNK
    assert screen.finish(TIMEOUT)


def test_much_output_takes_little_memory(make_log: MakeLog) -> None:
    with open(os.devnull, "w") as out:
        log = make_log("0")
        screen = Screen(out, colour=False)
        screen.follow(log, "0", 0)
        screen.start()
        before = largest = resident_bytes()
        for i in range(200 * 2**20 // len(BLOCK)):
            log.write(BLOCK)
            screen.wake()
            largest = max(largest, resident_bytes()) if i % 50 == 0 else largest
        assert screen.finish(TIMEOUT)
    assert max(largest, resident_bytes()) - before < 32 * 2**20


def test_the_thread_wakes_by_itself_only_for_a_progress_bar(make_log: MakeLog) -> None:
    out, plain, bar = Watched("[1] line"), make_log("0"), make_log("1")
    screen = Screen(out, colour=False)
    screen.follow(plain, "0", 0)
    plain.write(b"line\nhalf")
    screen.start()
    screen.wake()
    assert screen._timeout() is None
    screen.follow(bar, "1", 1)
    bar.write(b"line\n10%\r")
    screen.wake()
    assert out.seen.wait(TIMEOUT)
    assert 0 < (screen._timeout() or 0) <= 1
    assert screen.finish(TIMEOUT)
    assert screen._timeout() is None


# --- use_colour


@pytest.mark.parametrize(
    ("is_terminal", "environ", "wanted"),
    [
        (True, {"TERM": "xterm"}, True),
        (True, {}, True),
        (True, {"NO_COLOR": ""}, True),
        (True, {"NO_COLOR": "1"}, False),
        (True, {"TERM": "dumb"}, False),
        (False, {"TERM": "xterm"}, False),
    ],
)
def test_colour_is_for_terminals_only(is_terminal: bool, environ: dict[str, str], wanted: bool) -> None:
    out = io.StringIO()
    out.isatty = lambda: is_terminal  # type: ignore[method-assign]
    assert use_colour(out, environ) is wanted


def test_the_chatter_of_collectives_is_left_to_the_log() -> None:
    cutter = LineCutter(colour=False)
    noise = b"[Gloo] Rank 1 is connected to 3 peer ranks. Expected number of connected peer ranks is : 3\n"
    assert cutter.feed(b"before\n" + noise + b"Gloo failed\n[Gloo] an error\n") == [
        "before",
        "Gloo failed",
        "[Gloo] an error",
    ]
