import errno
import resource
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from hostmesh.launcher.output.logs import ProcessLog


@contextmanager
def largest_file(size: int) -> Iterator[None]:
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def test_bytes_reach_the_file_unchanged_and_at_once(tmp_path: Path) -> None:
    log = ProcessLog(tmp_path / "process-000.log", [])
    log.write(b"\xff\r\x1b[31m\0half a line")
    assert log.path.read_bytes() == b"\xff\r\x1b[31m\0half a line"
    assert log.size == log.path.stat().st_size
    log.close()


def test_a_secret_across_two_chunks_never_reaches_the_file(tmp_path: Path) -> None:
    log = ProcessLog(tmp_path / "log", ["hunter2"])
    log.write(b"key=hun")
    assert log.path.read_bytes() == b"key="
    log.write(b"ter2 hunt")
    log.close()
    assert log.path.read_bytes() == b"key=[redacted] hunt"


def test_a_second_attempt_appends_and_knows_where_it_began(tmp_path: Path) -> None:
    (tmp_path / "log").write_bytes(b"first\n")
    log = ProcessLog(tmp_path / "log", [])
    log.write(b"second\n")
    log.close()
    assert (log.start, log.size) == (6, 13)
    assert log.path.read_bytes() == b"first\nsecond\n"


def test_closing_twice_and_writing_late_are_harmless(tmp_path: Path) -> None:
    log = ProcessLog(tmp_path / "log", ["abc"])
    log.write(b"ab")
    log.close()
    log.close()
    log.write(b"late")
    assert log.ended and log.path.read_bytes() == b"ab"
    assert (log.error, log.dropped) == (None, 4)


def test_a_full_disk_is_kept_as_the_error_and_the_loss_is_counted() -> None:
    log = ProcessLog(Path("/dev/full"), ["xyz"])
    log.write(b"12345")
    log.write(b"678")
    log.close()
    assert log.error and log.error.errno == errno.ENOSPC
    assert (log.size, log.dropped, log.ended) == (0, 8, True)


def test_what_still_fitted_counts_as_written(tmp_path: Path) -> None:
    log = ProcessLog(tmp_path / "log", [])
    with largest_file(100_000):
        log.write(b"x" * 150_000)
    log.write(b"more")
    log.close()
    assert log.error and log.error.errno == errno.EFBIG
    assert (log.size, log.dropped) == (100_000, 50_004)


def test_a_vanished_folder_does_not_raise(tmp_path: Path) -> None:
    log = ProcessLog(tmp_path / "log", [])
    log.path.unlink()
    tmp_path.rmdir()
    log.write(b"x")
    log.close()
