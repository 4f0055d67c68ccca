"""Real runs of `launch` for tests: start one, follow its events, count what is left of it."""

from __future__ import annotations

import atexit
import hashlib
import json
import os
import queue
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from hostmesh.launcher.cli import OF_RUNS

REPO = Path(__file__).parent.parent
# Seconds after which a run that should have ended hangs, however busy the machine is.
HANGS = 240
# As the installed command does, without the current folder on the path.
LAUNCH = [sys.executable, "-P", "-c", "from hostmesh.launcher.cli import main; main()"]


# Four devices for the tests that use jax in their own process; runs of `launch` start without these.
os.environ["XLA_FLAGS"] = "--xla_force_host_platform_device_count=4"
os.environ["JAX_PLATFORMS"] = "cpu"

# Words that come first and have options of their own.
OF_OTHERS = ("check", *OF_RUNS)

# The folder of the caches of all tests.
ALL_CACHES = "HOSTMESH_TEST_CACHES"
OURS = ("HOSTMESH_", "JAX_", "XLA_", "PYTHON")

# What a shell puts in the background begins with SIGINT ignored, what nohup starts with SIGHUP; the programs that tests
# start must not inherit that.
for number, handler in ((signal.SIGINT, signal.default_int_handler), (signal.SIGHUP, signal.SIG_DFL)):
    if signal.getsignal(number) is signal.SIG_IGN:
        signal.signal(number, handler)


@pytest.hookimpl(wrapper=True, tryfirst=True)  # before tests are chosen by their marks
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> Iterator[None]:
    for item in items:
        if is_extra_case(item):
            item.add_marker(pytest.mark.slow)
    yield
    if getattr(config.option, "loadgroup", False):
        for item in items:
            name_group(item)


def name_group(item: pytest.Item) -> None:
    """The tests of an `xdist_group` go to one worker, which is told by the end of their ids. pytest-xdist 3.8 writes it
    where pytest 9.2 no longer looks, and the group is lost without a word (pytest-xdist's issue 1386)."""
    group = "_".join(sorted({str(mark.args[0]) for mark in item.iter_markers("xdist_group")}))
    if group and not item.nodeid.endswith(f"@{group}"):
        item._id = type(item._id).parse(f"{item.nodeid}@{group}")  # type: ignore[attr-defined]


def is_extra_case(item: pytest.Item) -> bool:
    """It adds little to another case of the same test: a cold start, or one that is not marked as quick."""
    if not isinstance(item, pytest.Function) or not hasattr(item, "callspec"):
        return False
    case, mark = item.callspec.id, item.get_closest_marker("quick")
    if mark is not None and case in mark.args:
        return False
    return "cold" in case.split("-") or mark is not None and not case.startswith(mark.args)


def show_all(args: Sequence[str]) -> list[str]:
    """Tests count what each process says, so they are shown every line unless they ask for something else."""
    says_more = {"--show", "--quiet", "--version", "--completion"} & set(args)
    return [] if says_more or (args and args[0] in OF_OTHERS) else ["--show", "all"]


class LiveRun:
    """A running `launch --json`: its events arrive on stdout, the workers' lines on stderr."""

    def __init__(
        self, folder: Path, *args: str, env: dict[str, str] | None = None, below: Sequence[str] = (), **popen: Any
    ) -> None:
        """`below` is a program, with arguments, that is to start the launcher."""
        self.folder = folder
        self.seen: list[dict[str, Any]] = []
        self._events: queue.SimpleQueue[dict[str, Any] | None] = queue.SimpleQueue()
        self.stderr_file = folder / f"stderr-{id(self)}"
        with self.stderr_file.open("wb") as stderr:
            self.launcher = subprocess.Popen(
                [*below, *LAUNCH, "--json", *show_all(args), *args],
                cwd=folder,
                env=clean_env(env),
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=stderr,
                **popen,
            )
        threading.Thread(target=self._read, daemon=True).start()
        self.id = str(self.await_event("run started")["run"])

    def _read(self) -> None:
        assert self.launcher.stdout is not None
        for line in self.launcher.stdout:
            self._events.put(json.loads(line))
        self._events.put(None)

    def pid_of(self, what: str) -> int:
        """Of the launcher, or on the first host its agent, guardian or a worker."""
        if what == "launcher":
            return self.launcher.pid
        if what == "worker":
            return int(self.await_event("process started")["pid"])
        return int(self.await_event("host connected")[f"{what}_pid"])

    def await_event(self, name: str, count: int = 1, timeout: float = HANGS, **wanted: Any) -> dict[str, Any]:
        """The `count`-th event of that name (and with those details) since the run began."""
        deadline = time.monotonic() + timeout
        while True:
            found = [e for e in self.seen if e["event"] == name and wanted.items() <= e.items()]
            if len(found) >= count:
                return found[count - 1]
            event = self._events.get(timeout=max(0.01, deadline - time.monotonic()))
            if event is None:
                raise AssertionError(f"the run ended without {count} x {name!r}: {self.seen}\n{self.stderr}")
            self.seen.append(event)

    def has_seen(self, name: str, count: int) -> bool:
        """Whether so many events of that name have come by now; what came before is kept."""
        while not self._events.empty():
            if (event := self._events.get()) is not None:
                self.seen.append(event)
        return sum(event["event"] == name for event in self.seen) >= count

    @property
    def stderr(self) -> str:
        return self.stderr_file.read_text(errors="replace")

    @property
    def run_folder(self) -> Path:
        return self.folder / "runs" / self.id

    @property
    def result(self) -> dict[str, Any]:
        return json.loads((self.run_folder / "result.json").read_text())

    def log(self, process_id: int) -> bytes:
        return (self.run_folder / "logs" / f"process-{process_id:03d}.log").read_bytes()

    def wait(self, timeout: float = HANGS) -> int:
        return self.launcher.wait(timeout)

    def close(self) -> None:
        """The launcher's end makes the agents clean up; what a broken one leaves is killed here."""
        self.launcher.kill()
        self.launcher.wait()
        deadline = time.monotonic() + 5
        while (left := processes_of(self.id)) and time.monotonic() < deadline:
            time.sleep(0.01)
        kill_all(left)
        assert self.launcher.stdout is not None
        self.launcher.stdout.close()


def clean_env(extra: dict[str, str] | None = None) -> dict[str, str]:
    kept = {name: value for name, value in os.environ.items() if not name.startswith(OURS)}
    return {**kept, "PYTHONPATH": str(REPO / "src"), "XDG_CACHE_HOME": cache_folder(), **(extra or {})}


def cache_folder() -> str:
    """Each test has its own, which leaves nothing in the user's cache. What was compiled is found by all of them, as by
    the runs of a user; only the tests of that begin with nothing."""
    test = os.environ.get("PYTEST_CURRENT_TEST", "").rpartition(" ")[0]
    folder = Path(all_caches(), hashlib.sha256(test.encode()).hexdigest()[:16])
    if "test_compile" not in test:
        with suppress(FileExistsError):
            compiled = folder / "hostmesh" / "compiled"
            compiled.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            compiled.symlink_to(Path(all_caches(), "compiled"))
    return str(folder)


def all_caches() -> str:
    """Made by the first to ask, the process that starts those of pytest-xdist; these inherit the name."""
    if ALL_CACHES not in os.environ:
        folder = tempfile.mkdtemp(prefix="hostmesh-test-cache-")
        os.environ[ALL_CACHES] = folder
        Path(folder, "compiled").mkdir(mode=0o700)
        atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return os.environ[ALL_CACHES]


def pytest_configure() -> None:
    all_caches()


def processes_of(run_id: str) -> set[int]:
    """Living processes that have this run's id in their environment; looked up here without the product's help."""
    found = set()
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                environ = (entry / "environ").read_bytes().split(b"\0")
                state = (entry / "stat").read_text().rpartition(")")[2].split()[0]
            except OSError:
                continue
            if f"HOSTMESH_RUN_ID={run_id}".encode() in environ and state not in "ZX":
                found.add(int(entry.name))
    return found


def kill_all(pids: Iterable[int]) -> None:
    """Some of them may end by themselves meanwhile."""
    for pid in pids:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


def is_alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False


def busyness() -> float:
    """How many times as long as on an idle machine things may take here, by the load of the last minute."""
    return max(1.0, os.getloadavg()[0] / (os.cpu_count() or 1))


def loader_threads() -> list[str]:
    """Threads that end with their loader; others of ours belong to the process."""
    names = [thread.name for thread in threading.enumerate()]
    return [name for name in names if name.startswith(("hostmesh read", "hostmesh worker"))]


def await_true(condition: Callable[[], Any], timeout: float, what: str) -> float:
    """Seconds until the condition held. On a machine that has more to do than it has cores all takes longer."""
    began = time.monotonic()
    while not condition():
        if time.monotonic() - began > timeout * busyness():
            raise AssertionError(f"not within {timeout * busyness():.0f} s: {what}")
        time.sleep(0.01)
    return time.monotonic() - began


class Library:
    """Imported when a test first uses it: every worker looks at all tests, and few need its seconds."""

    def __init__(self, name: str, extra: str) -> None:
        self._name, self._extra = name, extra

    def __getattr__(self, attribute: str) -> Any:
        if attribute.startswith(("_", "pytest")):  # for pytest itself, which looks for tests and marks
            raise AttributeError(attribute)
        return getattr(pytest.importorskip(self._name, reason=f"hostmesh[{self._extra}]"), attribute)


# What the fixtures below give.
Start = Callable[..., LiveRun]
Launch = Callable[..., subprocess.CompletedProcess[str]]
Script = Callable[..., str]


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    """Start `launch --json ARGS…` in a folder of the test's own; what a failed test leaves is killed."""
    runs: list[LiveRun] = []

    def begin(*args: str, **options: Any) -> LiveRun:
        runs.append(LiveRun(tmp_path, *args, **options))
        return runs[-1]

    yield begin
    for run in runs:
        run.close()


@pytest.fixture
def launch(tmp_path: Path) -> Launch:
    """Run `launch ARGS…` to its end in a folder of the test's own."""

    def run(
        *args: str, env: dict[str, str] | None = None, timeout: float = HANGS, all_lines: bool = True
    ) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [*LAUNCH, *(show_all(args) if all_lines else ()), *args],
            cwd=tmp_path,
            env=clean_env(env),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=timeout,
        )

    return run


@pytest.fixture
def script(tmp_path: Path) -> Script:
    """Write a script into the test's folder and give its name."""

    def write(text: str, name: str = "script.py") -> str:
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
        return name

    return write
