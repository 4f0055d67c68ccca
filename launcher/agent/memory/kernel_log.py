"""What the kernel's log says of processes that were killed for memory."""

# Without `from __future__ import annotations`, as in launcher/protocol/wire.py: it would make NamedTuple slow.
import errno
import os
import re
from typing import List, NamedTuple, Optional

KMSG = "/dev/kmsg"
# Of the first pid namespace: the log has pids of that one, which in a container are not ours.
FIRST_NAMESPACE = "pid:[4026531836]"
RECORDS_AT_ONCE = 2000
# "Memory cgroup out of memory: Killed process 4242 (python) total-vm:…kB, anon-rss:…kB, file-rss:…kB, shmem-rss:…kB, …"
KILLED = r"Killed process (?P<pid>\d+),? .*?\((?P<name>.*)\),? (?=.*total-vm:)"
RSS = r"(?:anon|file|shmem)-rss:(\d+)kB"
# "oom-kill:constraint=CONSTRAINT_MEMCG,…,task_memcg=/job,task=python,pid=4242,uid=0": comes before the signal is sent.
CHOSEN = r"oom-kill:.*,task=(?P<name>.*),pid=(?P<pid>\d+),uid="
OF_A_CGROUP = ("Memory cgroup out of memory", "CONSTRAINT_MEMCG")


class Killed(NamedTuple):
    """`rss` is in bytes, 0 where it is not told; `by_cgroup` says that a cgroup's limit was reached, not the host's."""

    pid: int
    name: str
    rss: int
    by_cgroup: bool


class KernelLog:
    """Only what is logged from now on; `can_tell` is False where that cannot be read, or has other pids than ours."""

    def __init__(self, path: str = KMSG) -> None:
        self._file: Optional[int] = None
        try:
            if os.readlink("/proc/self/ns/pid") == FIRST_NAMESPACE:
                self._file = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
                os.lseek(self._file, 0, os.SEEK_END)
        except OSError:
            self._close()

    @property
    def can_tell(self) -> bool:
        return self._file is not None

    def read_new(self) -> List[Killed]:
        """Each read gives one record."""
        found = []
        for _ in range(RECORDS_AT_ONCE):
            if self._file is None:
                break
            try:
                record = os.read(self._file, 8192)
            except OSError as error:
                if error.errno == errno.EPIPE:
                    continue  # some records were overwritten before they were read
                if error.errno != errno.EAGAIN:
                    self._close()
                break
            killed = parse_record(record.decode(errors="replace"))
            found += [killed] if killed is not None else []
        return found

    def _close(self) -> None:
        if self._file is not None:
            os.close(self._file)
            self._file = None


def parse_record(record: str) -> Optional[Killed]:
    """`3,1017,12868578913,-;Memory cgroup out of memory: Killed process …`, and lines that begin with a space."""
    text = record.partition(";")[2].partition("\n")[0]
    if "Killed process" not in text and "oom-kill:" not in text:
        return None  # most records: what compiles the expressions, when it is needed, takes a millisecond of a start
    match = re.search(KILLED, text) or re.search(CHOSEN, text)
    if match is None:
        return None
    rss = sum(map(int, re.findall(RSS, text))) * 1024
    return Killed(int(match["pid"]), match["name"], rss, any(words in text for words in OF_A_CGROUP))
