"""Out of memory is told from a plain kill: by the kernel's log, by counters, by what a process says itself."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from conftest import LiveRun, Script, Start, await_true
from docker_cluster import HOSTS, DockerCluster, lend_cluster, start_cluster  # noqa: F401
from memory_cgroup import MemoryCgroup, lend

from hostmesh.launcher.agent.memory.cgroup import Cgroups, Use, read_kills
from hostmesh.launcher.agent.memory.kernel_log import KernelLog, Killed, parse_record
from hostmesh.launcher.agent.observing.memory import MemoryWatch
from hostmesh.launcher.supervisor.blame.failures import NO_MEMORY
from hostmesh.launcher.supervisor.blame.memory import judge_kill, judge_kill_below

GB, GIB = 10**9, 1 << 30

# Concluding: what an agent tells of a process that SIGKILL has ended.


def named(who: str, by_cgroup: bool = True) -> dict[str, Any]:
    return {"pid": 4242, "name": "python", "rss": 12 * GB, "by_cgroup": by_cgroup, "who": who}


def told(**known: Any) -> dict[str, Any]:
    """A host with plenty of memory, on which nobody was killed for it, and whose log cannot be read."""
    sizes = {"rss": 12 * GB, "total": 64 * GB, "available": 40 * GB}
    return {**NO_MEMORY, **sizes, "cgroup_kills": 0, "host_kills": 0, **known}


LIMITED = {"limit": 16 * GB, "used": 15 * GB}
KILLS: dict[str, tuple[dict[str, Any], str, str, str]] = {
    "the log names it": (
        told(**LIMITED, cgroup_kills=1, host_kills=1, named=[named("itself")]),
        *("out of memory", "certain", "it had 12 GB; the limit of its cgroup is 16 GB"),
    ),
    "the log names it, and the host was full": (
        told(available=GB, cgroup_kills=1, host_kills=1, named=[named("itself", by_cgroup=False)]),
        *("out of memory", "certain", "it had 12 GB; the host has 64 GB"),
    ),
    "the log names it, and the limit cannot be seen": (
        told(cgroup_kills=1, host_kills=1, named=[named("itself")]),
        *("out of memory", "certain", "it had 12 GB; the host had 40 GB free: a cgroup above its own has a limit"),
    ),
    "the log names one below it": (
        told(**LIMITED, cgroup_kills=1, named=[named("below")]),
        *("out of memory", "likely", "it had 12 GB; the limit of its cgroup is 16 GB"),
    ),
    "the log names another of its cgroup": (
        told(**LIMITED, cgroup_kills=1, host_kills=1, named=[named("another")]),
        *("killed", "likely"),
        "the host had 40 GB free and the kernel killed process 4242 (python) for memory, and not this one",
    ),
    "the log names nobody": (
        told(named=[]),
        *("killed", "likely", "the host had 40 GB free and no process was killed for memory"),
    ),
    "the log lacks somebody": (
        told(**LIMITED, rss=GB, cgroup_kills=2, host_kills=2, named=[named("another")]),
        *("out of memory", "likely", "it had 1 GB; the limit of its cgroup is 16 GB"),
    ),
    "no log, and its cgroup lost the largest": (
        told(**LIMITED, cgroup_kills=1, host_kills=1),
        *("out of memory", "certain", "it had 12 GB; the limit of its cgroup is 16 GB"),
    ),
    "no log, and its cgroup lost somebody": (
        told(**LIMITED, rss=GB, cgroup_kills=1, host_kills=1),
        *("out of memory", "likely", "it had 1 GB; the limit of its cgroup is 16 GB"),
    ),
    "no log, and only another cgroup lost somebody": (
        told(host_kills=1),
        *("killed", "likely"),
        "the host had 40 GB free and the kernel killed a process of the host for memory, and not this one",
    ),
    "no cgroup, and the host was full": (
        told(available=GB, cgroup_kills=None, host_kills=1),
        *("out of memory", "likely", "it had 12 GB; the host has 64 GB"),
    ),
    "no cgroup, and the host had plenty": (
        told(cgroup_kills=None, host_kills=1),
        *("killed", "unknown", "the kernel killed 1 process of its host for memory: this one?"),
    ),
    "nobody was killed by the kernel, and the host was full": (
        told(available=GB),
        *("killed", "unknown", "the host had only 1 GB free: a daemon such as earlyoom may have done it"),
    ),
    "no cgroup, no log": (
        told(cgroup_kills=None),
        *("killed", "likely", "the host had 40 GB free and no process was killed for memory"),
    ),
    "nothing": ({}, "killed", "unknown", "was the host out of memory?"),
}


@pytest.mark.parametrize("what", KILLS)
def test_what_is_concluded_of_a_kill(what: str) -> None:
    memory, kind, sure, words = KILLS[what]
    judged = judge_kill(memory)
    assert (judged.kind, judged.sure, judged.words) == (kind, sure, words) and judged.evidence


SHELLS: dict[str, tuple[dict[str, Any], str, str]] = {
    "the log names its program": (told(cgroup_kills=1, named=[named("below")]), "out of memory", "certain"),
    "the log names somebody": (told(cgroup_kills=1, named=[named("another")]), "out of memory", "likely"),
    "somebody of another cgroup": (told(cgroup_kills=0, named=[named("another")]), "killed", "likely"),
    "no log": (told(cgroup_kills=1, rss=GB), "out of memory", "likely"),
    "nobody": (told(named=[]), "killed", "likely"),
}


@pytest.mark.parametrize("what", SHELLS)
def test_what_is_concluded_of_a_shells_program(what: str) -> None:
    memory, kind, sure = SHELLS[what]
    judged = judge_kill(memory, of_its_program=True)
    assert (judged.kind, judged.sure) == (kind, sure)


TORCH = "RuntimeError: DataLoader worker (pid {pid}) is killed by signal: Killed."


@pytest.mark.parametrize(
    "memory, said, sure",
    [
        (told(named=[named("below")], cgroup_kills=1), TORCH.format(pid=4242), "certain"),
        (told(named=[named("below")], cgroup_kills=1), "ValueError: no data", "likely"),
        (told(named=[named("another")], cgroup_kills=1), TORCH.format(pid=4242), "certain"),
        (told(named=[named("another")], cgroup_kills=1), TORCH.format(pid=4243), None),
        (told(named=[named("another")], cgroup_kills=1), "ValueError: 4242 rows", None),
        (told(cgroup_kills=1), TORCH.format(pid=5), "likely"),
        (told(cgroup_kills=1), "ValueError: no data", None),
        (told(), TORCH.format(pid=5), None),
        ({}, TORCH.format(pid=5), None),
    ],
)
def test_a_failure_because_of_a_kill_below(memory: dict[str, Any], said: str, sure: str | None) -> None:
    judged = judge_kill_below(memory, said)
    assert (judged and judged.sure) == sure


# Looking: the kernel's log and files, as they are on hosts of several kinds.

LOGGED = {
    "of a cgroup": (
        "3,1017,12868578913,-;Memory cgroup out of memory: Killed process 4242 (python) total-vm:389100kB, "
        "anon-rss:371520kB, file-rss:6872kB, shmem-rss:0kB, UID:0 pgtables:796kB oom_score_adj:0\n",
        Killed(4242, "python", (371520 + 6872) * 1024, True),
    ),
    "of the host": (
        "3,1,2,-;Out of memory: Killed process 7 (a (b) c) total-vm:1kB, anon-rss:1kB, file-rss:0kB, shmem-rss:2kB\n",
        Killed(7, "a (b) c", 3 * 1024, False),
    ),
    "as kernels said before 5": (
        "3,1,2,-;Killed process 7 (python) total-vm:1kB, anon-rss:1kB, file-rss:0kB, shmem-rss:0kB\n",
        Killed(7, "python", 1024, False),
    ),
    "before the signal": (
        "6,1,2,-;oom-kill:constraint=CONSTRAINT_MEMCG,nodemask=(null),cpuset=/,mems_allowed=0,oom_memcg=/job,"
        "task_memcg=/job,task=my,task,pid=4242,uid=0\n",
        Killed(4242, "my,task", 0, True),
    ),
    "another thing": ("6,1,2,-;loop0: detected capacity change from 0 to 16384\n SUBSYSTEM=block\n", None),
    "nothing": ("", None),
}


@pytest.mark.parametrize("what", LOGGED)
def test_what_the_log_says_of_kills(what: str) -> None:
    record, killed = LOGGED[what]
    assert parse_record(record) == killed


def test_a_log_that_cannot_be_read_tells_nothing(tmp_path: Path) -> None:
    log = KernelLog(str(tmp_path / "none"))
    assert not log.can_tell and log.read_new() == []


V1 = "35 31 0:32 {above} /sys/fs/cgroup/memory rw,relatime - cgroup cgroup rw,memory\n"
V2 = "41 31 0:38 {above} {at} rw,relatime - cgroup2 cgroup2 rw\n"
HYBRID = V1.format(above="/") + V2.format(above="/", at="/sys/fs/cgroup/unified")
PURE = V2.format(above="/", at="/sys/fs/cgroup")
TREES: dict[str, tuple[str, str, str | None]] = {
    "version 1": (HYBRID, "8:pids:/\n4:memory:/job/one\n0::/\n", "sys/fs/cgroup/memory/job/one"),
    "version 1, several controllers": (HYBRID, "4:cpu,memory:/job\n", "sys/fs/cgroup/memory/job"),
    "version 1 in a container": (V1.format(above="/docker/1f"), "4:memory:/docker/1f\n", "sys/fs/cgroup/memory/"),
    "below that": (V1.format(above="/docker/1f"), "4:memory:/docker/1f/a\n", "sys/fs/cgroup/memory/a"),
    "version 2": (PURE, "0::/user.slice/job.scope\n", "sys/fs/cgroup/user.slice/job.scope"),
    "version 2 in a container": (PURE, "0::/\n", "sys/fs/cgroup/"),
    "version 2, moved out of its container": (PURE, "0::/../2e\n", "sys/fs/cgroup/"),
    "none": ("", "", None),
}


@pytest.mark.parametrize("how", TREES)
def test_the_cgroup_of_a_process_is_found(tmp_path: Path, how: str) -> None:
    mounts, cgroups, folder = TREES[how]
    write(tmp_path, {"proc/self/mountinfo": mounts, "proc/7/cgroup": cgroups})
    found = Cgroups(str(tmp_path)).find("7")
    assert (found and found[0]) == (folder and f"{tmp_path}/{folder}")


def write(root: Path, files: dict[str, str]) -> None:
    for name, text in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)


def test_the_lowest_limit_may_be_above_the_process(tmp_path: Path) -> None:
    top = "sys/fs/cgroup"
    write(
        tmp_path,
        {
            "proc/self/mountinfo": PURE,
            "proc/7/cgroup": "0::/pod/one\n",
            f"{top}/pod/memory.max": f"{4 * GIB}\n",
            f"{top}/pod/memory.current": f"{3 * GIB}\n",
            f"{top}/pod/one/memory.max": "max\n",
            f"{top}/pod/one/memory.current": f"{GIB}\n",
            f"{top}/pod/one/memory.events": "low 0\nhigh 0\nmax 9\noom 3\noom_kill 2\n",
            f"{top}/pod/one/memory.events.local": "low 0\nmax 9\noom 3\noom_kill 1\noom_group_kill 0\n",
        },
    )
    cgroups = Cgroups(str(tmp_path))
    found = cgroups.find("7")
    assert found is not None and cgroups.read_use(*found) == Use(4 * GIB, 3 * GIB)
    assert read_kills(found[0]) == 1


def test_version_1_has_a_number_for_no_limit(tmp_path: Path) -> None:
    top = "sys/fs/cgroup/memory"
    write(
        tmp_path,
        {
            "proc/self/mountinfo": HYBRID,
            "proc/7/cgroup": "4:memory:/job\n",
            f"{top}/job/memory.limit_in_bytes": "9223372036854771712\n",
            f"{top}/job/memory.oom_control": "oom_kill_disable 0\nunder_oom 0\noom_kill 3\n",
        },
    )
    cgroups = Cgroups(str(tmp_path))
    found = cgroups.find("7")
    assert found is not None and cgroups.read_use(*found) == Use(None, None) and read_kills(found[0]) == 3


class FakeLog(KernelLog):
    def __init__(self, can_tell: bool = True) -> None:
        self.records: list[Killed] = []
        self._can_tell = can_tell

    @property
    def can_tell(self) -> bool:
        return self._can_tell

    def read_new(self) -> list[Killed]:
        records, self.records = self.records, []
        return records


class FakeHost:
    """The files of a host with one cgroup, where the agent and process 7 are; 8 is below 7."""

    def __init__(self, root: Path, log: FakeLog) -> None:
        self.root = root
        here = "0::/job\n"
        write(root, {"proc/self/mountinfo": PURE, "proc/self/cgroup": here, "proc/7/cgroup": here})
        write(root, {"proc/7/task/7/children": "8 ", "proc/7/statm": "9 3 1\n", "proc/8/statm": "99 30 1\n"})
        self.count(0, 0)
        self.leave(8)
        self.watch = MemoryWatch(str(root), log)
        self.watch.begin()

    def count(self, in_cgroup: int, in_host: int) -> None:
        write(self.root, {"sys/fs/cgroup/job/memory.events": f"oom 9\noom_kill {in_cgroup}\n"})
        write(self.root, {"proc/vmstat": f"pgfault 1\noom_kill {in_host}\nunevictable 0\n"})

    def leave(self, gib: int) -> None:
        meminfo = f"MemTotal: {16 << 20} kB\nMemFree: 1 kB\nMemAvailable: {gib << 20} kB\nHugePages_Total: 0\n"
        write(self.root, {"proc/meminfo": meminfo})


def test_a_watch_tells_what_was_just_before_and_what_has_changed(tmp_path: Path) -> None:
    log = FakeLog()
    host = FakeHost(tmp_path, log)
    host.leave(2)
    host.watch.look([7])
    host.count(1, 2)
    host.leave(14)  # what has ended has given its memory back
    log.records = [Killed(7, "python", 0, True), Killed(7, "python", 5 * GIB, True), Killed(9, "other", GIB, False)]
    found = host.watch.tell(7)
    assert (found["total"], found["available"]) == (16 * GIB, 2 * GIB)
    assert (found["cgroup_kills"], found["host_kills"]) == (1, 2)
    assert [(each["who"], each["pid"], each["rss"]) for each in found["named"]] == [
        ("itself", 7, 5 * GIB),
        ("another", 9, GIB),
    ]
    assert found["rss"] == 5 * GIB


def test_a_process_below_is_seen_as_such(tmp_path: Path) -> None:
    log = FakeLog()
    host = FakeHost(tmp_path, log)
    host.watch.look([7])
    log.records = [Killed(8, "python", 0, True)]
    found = host.watch.tell(7)
    assert [each["who"] for each in found["named"]] == ["below"]
    assert found["rss"] == 30 * os.sysconf("SC_PAGE_SIZE"), "that of the largest"


def test_kills_of_long_ago_are_not_counted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    now = 1000.0
    monkeypatch.setattr("hostmesh.launcher.agent.observing.memory.time.monotonic", lambda: now)
    log = FakeLog()
    host = FakeHost(tmp_path, log)
    host.count(3, 3)
    log.records = [Killed(9, "other", GIB, False), Killed(8, "python", GIB, True)]
    for _ in range(40):
        now += 1
        host.watch.look([7])
    found = host.watch.tell(7)
    assert (found["cgroup_kills"], found["host_kills"], found["named"]) == (0, 0, [])


def test_where_a_process_goes_on_its_way_out_does_not_count(tmp_path: Path) -> None:
    """The kernel takes a dying process out of its cgroup, and its parent may be late to reap it."""
    host = FakeHost(tmp_path, FakeLog(can_tell=False))
    host.watch.look([7])
    write(tmp_path, {"proc/7/cgroup": "0::/\n", "proc/7/statm": "0 0 0 0 0 0 0\n"})
    write(tmp_path, {"sys/fs/cgroup/memory.events": "oom_kill 0\n"})
    host.count(1, 1)
    host.watch.look([7])
    assert host.watch.tell(7)["cgroup_kills"] == 1


def test_a_kill_is_told_of_one_process_only(tmp_path: Path) -> None:
    host = FakeHost(tmp_path, FakeLog(can_tell=False))
    host.watch.look([7, 5, 6])
    host.count(1, 1)
    assert host.watch.tell(5, was_killed=False)["cgroup_kills"] == 1, "it failed because of that, and did not end of it"
    assert host.watch.tell(7)["cgroup_kills"] == 1
    assert host.watch.tell(6)["cgroup_kills"] == 0
    host.count(2, 2)
    assert host.watch.tell(6)["cgroup_kills"] == 1


def test_kills_before_a_process_began_are_not_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    now = 1000.0
    monkeypatch.setattr("hostmesh.launcher.agent.observing.memory.time.monotonic", lambda: now)
    host = FakeHost(tmp_path, FakeLog(can_tell=False))
    now += 1
    host.count(1, 1)
    since = host.watch.begin()
    now += 1
    host.watch.look([7])
    found = host.watch.tell(7, since)
    assert (found["cgroup_kills"], found["host_kills"]) == (0, 0)


def test_a_cgroup_that_is_gone_and_a_log_that_is_closed_are_not_known(tmp_path: Path) -> None:
    host = FakeHost(tmp_path, FakeLog(can_tell=False))
    host.watch.look([7])
    (tmp_path / "sys/fs/cgroup/job/memory.events").unlink()
    found = host.watch.tell(7)
    assert found["cgroup_kills"] is None and found["named"] is None and found["host_kills"] == 0


def test_a_system_without_such_files_tells_nothing(tmp_path: Path) -> None:
    watch = MemoryWatch(str(tmp_path), FakeLog(can_tell=False))
    assert watch.tell(7) == {}
    watch.begin()
    watch.look([7])
    assert watch.tell(7) == {} and watch.tell(None) == {}


# Real processes.

# Process 1 takes memory until it is ended; the others wait. It is slow enough to be looked at meanwhile.
EAT = """
import os, sys, time
def eat():
    kept = []
    while True:
        kept.append(b"x" * (16 << 20))
        time.sleep(0.02)
if os.environ["HOSTMESH_PROCESS_ID"] == "1":
    {eat}
time.sleep(1000)
"""
IN_A_CHILD = """
    import multiprocessing
    child = multiprocessing.Process(target=eat)
    child.start()
    child.join()
    raise RuntimeError(f"DataLoader worker (pid {child.pid}) is killed by signal: Killed.")
"""


@pytest.fixture
def memory_cgroup() -> Iterator[MemoryCgroup]:
    """With room for a nursery and two processes that only wait. Before `start` in a test: that cleans up first."""
    yield from lend(700 << 20)


def assert_out_of_memory(result: dict[str, Any], process_id: int = 1) -> None:
    found = result["verdict"]
    assert found["kind"] == "out of memory" and found["culprit"]["process_id"] == process_id, result
    assert "out of memory (it had " in result["message"]
    assert "the limit of its cgroup is 734 MB" in result["message"]


@pytest.mark.parametrize("how", [[], ["--cold"]], ids=["warm", "cold"])
def test_a_kill_for_memory_is_told_as_such(
    memory_cgroup: MemoryCgroup, start: Start, script: Script, how: list[str]
) -> None:
    run = start("--local", "2", *how, script(EAT.format(eat="eat()")), below=memory_cgroup.below)
    assert run.wait() == 137
    assert_out_of_memory(run.result)
    assert run.result["verdict"]["sure"] in (["certain"] if KernelLog().can_tell else ["certain", "likely"])
    assert run.result["verdict"]["victims"] == [0]


# As in a container: pids are others than those in the log, so that only counters tell.
OTHER_PIDS = ("unshare", "--pid", "--fork", "--kill-child", "--mount-proc")


@pytest.fixture
def other_pids() -> tuple[str, ...]:
    if subprocess.run([*OTHER_PIDS, "true"], capture_output=True).returncode != 0:
        pytest.skip("no pid namespace can be made here")
    return OTHER_PIDS


@pytest.mark.parametrize("how", [[], ["--cold"]], ids=["warm", "cold"])
@pytest.mark.slow
def test_counters_tell_where_the_log_does_not(
    memory_cgroup: MemoryCgroup, other_pids: tuple[str, ...], start: Start, script: Script, how: list[str]
) -> None:
    program = script(EAT.format(eat="eat()"))
    run = start("--local", "2", *how, program, below=[*memory_cgroup.below, *other_pids])
    assert run.wait() == 137
    assert_out_of_memory(run.result)
    assert "the kernel killed 1 process of its cgroup for memory" in run.result["verdict"]["evidence"]


def test_counters_that_have_not_moved_tell_of_a_plain_kill(
    memory_cgroup: MemoryCgroup, other_pids: tuple[str, ...], start: Start, script: Script
) -> None:
    text = WAIT.replace("import time", "import os, signal, time\nif os.environ['HOSTMESH_PROCESS_ID'] == '1': {kill}")
    program = script(text.format(kill="os.kill(os.getpid(), signal.SIGKILL)"))
    run = start("--local", "2", "--cold", program, below=[*memory_cgroup.below, *other_pids])
    assert_plain_kill(run)
    assert "the kernel killed no process of its cgroup for memory" in run.result["verdict"]["evidence"]


def test_a_shells_program_killed_for_memory_is_told_as_such(
    memory_cgroup: MemoryCgroup, start: Start, script: Script
) -> None:
    command = f"{sys.executable} {script(EAT.format(eat='eat()'))}; exit $?"
    run = start("--local", "2", "--", "sh", "-c", command, below=memory_cgroup.below)
    assert run.wait() == 137
    assert_out_of_memory(run.result)


def test_a_failure_because_a_process_below_was_killed_for_memory(
    memory_cgroup: MemoryCgroup, start: Start, script: Script
) -> None:
    run = start("--local", "2", "--cold", script(EAT.format(eat=IN_A_CHILD.strip())), below=memory_cgroup.below)
    assert run.wait() == 1
    assert_out_of_memory(run.result)


WAIT = "print('up', flush=True)\nimport time\ntime.sleep(1000)\n"


def assert_plain_kill(run: LiveRun) -> None:
    assert run.wait() == 137
    found = run.result["verdict"]
    assert (found["kind"], found["culprit"]["process_id"]) == ("killed", 1), run.result
    assert "was killed by signal 9 (SIGKILL)" in run.result["message"]
    assert "out of memory" not in run.result["message"]


def test_a_plain_kill_is_not_for_memory(start: Start, script: Script) -> None:
    run = start("--local", "2", "--cold", script(WAIT))
    pid = run.await_event("process started", process_id=1)["pid"]
    await_true(lambda: run.stderr.count("up\n") == 2, 30, "both processes")
    os.kill(pid, signal.SIGKILL)
    assert_plain_kill(run)


def test_another_process_killed_for_memory_is_not_ours(
    memory_cgroup: MemoryCgroup, start: Start, script: Script
) -> None:
    """In the same cgroup, a moment before ours gets a plain kill: only the log tells the two apart."""
    run = start("--local", "2", "--cold", script(WAIT), below=memory_cgroup.below)
    pid = run.await_event("process started", process_id=1)["pid"]
    await_true(lambda: run.stderr.count("up\n") == 2, 30, "both processes")
    other = [*memory_cgroup.below, sys.executable, "-c", "kept = [b'x' * (16 << 20) for _ in range(1000)]"]
    assert subprocess.run(other, stderr=subprocess.DEVNULL).returncode == -signal.SIGKILL
    os.kill(pid, signal.SIGKILL)
    if KernelLog().can_tell:
        assert_plain_kill(run)
        assert "the kernel killed process" in run.result["message"]
    else:
        assert run.wait() == 137 and run.result["verdict"]["sure"] != "certain"


RAISE = {
    "MemoryError": "bytearray(1 << 60)",
    "MemoryError: Unable to allocate": "import numpy; numpy.ones(1 << 50)",
    "RESOURCE_EXHAUSTED: Out of memory": "import jax; jax.numpy.ones(1 << 46).sum()",
}


@pytest.mark.parametrize("how", [[], ["--cold"]], ids=["warm", "cold"])
@pytest.mark.parametrize("said", RAISE)
@pytest.mark.quick("MemoryError-warm")
def test_an_exception_for_memory_is_one_too(start: Start, script: Script, said: str, how: list[str]) -> None:
    run = start("--local", "2", *how, script(EAT.format(eat=RAISE[said])))
    assert run.wait() == 1
    found = run.result["verdict"]
    assert (found["kind"], found["sure"], found["place"]) == ("out of memory", "certain", "script.py:9 in <module>")
    assert run.result["message"] == "the run failed: process 1 on localhost exited with 1"
    assert said in run.result["detail"][0]


@pytest.mark.docker
@pytest.mark.timeout(300)
@pytest.mark.parametrize("transport", ["ssh", "docker"])
def test_a_container_with_a_limit(
    cluster: DockerCluster, start: Start, script: Script, tmp_path: Path, transport: str
) -> None:
    """Its log cannot be read, and its pids are others: the counters of its cgroup tell."""
    cluster.limit_memory(HOSTS[1], "700m")
    run = start("--hosts", cluster.write_file(tmp_path, transport), script(EAT.format(eat="eat()")))
    assert run.wait() == 137
    assert_out_of_memory(run.result)
