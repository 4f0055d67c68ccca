"""The states of an agent's processes, told without an agent."""

from __future__ import annotations

import json
import os
import signal
import socket
import struct
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from conftest import await_true

from hostmesh.launcher.agent.flow import Limits, Window
from hostmesh.launcher.agent.observing.native import NOT_JAX, NativeStack
from hostmesh.launcher.agent.processes.forwarding import Forwarding
from hostmesh.launcher.agent.processes.process import Boot, ProcessState
from hostmesh.launcher.agent.processes.registry import Phase, Processes
from hostmesh.launcher.protocol import wire


class FakeLink:
    """Keeps what is sent, and has a window of ten bytes."""

    def __init__(self) -> None:
        self.sent: list[Any] = []
        self.window = Window(Limits(first=10, least=10, most=10, quick=0.1, slow=0.3))
        self.send = self.sent.append

    @property
    def takes_output(self) -> bool:
        return self.window.room > 0

    def kinds(self) -> list[type]:
        return [type(message) for message in self.sent]


@pytest.fixture
def link() -> FakeLink:
    return FakeLink()


@pytest.fixture
def processes(tmp_path: Path, link: FakeLink) -> Iterator[Processes]:
    made = Processes(str(tmp_path), link.send)
    yield made
    made.facts.socket.close()
    for process in made:
        process.output.close()


def forward(link: FakeLink, processes: Processes) -> None:
    starter, duties = SimpleNamespace(nursery_output=None), SimpleNamespace(setup_output=None)
    Forwarding(link, processes, starter, duties).forward()  # type: ignore[arg-type]


def test_a_process_is_drained_when_it_has_ended_and_all_its_output_is_sent(
    link: FakeLink, processes: Processes
) -> None:
    process = processes.add(0)
    writer = os.open(process.output.path, os.O_WRONLY)
    process.note_started(os.getpid())
    assert process.state is ProcessState.RUNNING
    os.write(writer, b"hi")
    processes.note_reaped(os.getpid(), 3)
    forward(link, processes)
    assert process.state is ProcessState.ENDED, "somebody has its output open"
    os.close(writer)
    forward(link, processes)
    assert process.state is ProcessState.DRAINED
    assert link.kinds() == [wire.Exited, wire.Output, wire.Drained]
    assert link.sent[0].code == 3 and link.sent[0].data == b"hi"


def test_a_full_window_does_not_end_an_output_that_somebody_writes_to(link: FakeLink, processes: Processes) -> None:
    chatty, ended = processes.add(0), processes.add(1)
    writers = [os.open(process.output.path, os.O_WRONLY) for process in (chatty, ended)]
    processes.note_ended(ended, 0)
    os.write(writers[0], b"0123456789")
    os.write(writers[1], b"more")
    forward(link, processes)
    assert ended.state is ProcessState.ENDED
    link.window.note_acknowledged(10)
    forward(link, processes)
    assert wire.Output(1, b"more") in link.sent
    for writer in writers:
        os.close(writer)


def test_a_process_that_was_ended_by_a_stop_is_not_revived_by_its_start(link: FakeLink, processes: Processes) -> None:
    process = processes.add(0)
    processes.end_ordered(-signal.SIGKILL)
    process.note_started(os.getpid())
    assert process.state is ProcessState.ENDED and not process.is_alive
    processes.note_reaped(os.getpid(), 1)
    assert link.kinds() == [wire.Exited]


@pytest.mark.parametrize("is_stopped", [False, True])
def test_what_a_shell_left_behind_has_time_until_a_stop(link: FakeLink, processes: Processes, is_stopped: bool) -> None:
    process = processes.add(0)
    with subprocess.Popen(["sleep", "1000"], start_new_session=True) as rest:
        process.note_started(rest.pid)
        processes.stop_signal = signal.SIGTERM
        process.signal_group(signal.SIGSTOP)  # so that it takes no notice of SIGTERM
        processes.note_reaped(rest.pid, -signal.SIGTERM)
        processes.end_leaving()
        assert process.state is ProcessState.LEAVING and link.sent == []
        if is_stopped:
            processes.phase = Phase.COLLECTING_STACKS
            processes.end_leaving()
        rest.kill()
    processes.end_leaving()
    assert process.state is ProcessState.ENDED
    assert [message.code for message in link.sent] == [-signal.SIGTERM]


@pytest.mark.parametrize("sender, boot", [("itself", Boot.BEGAN), ("a child", Boot.CHILD_BEGAN)])
def test_only_a_process_that_said_hello_itself_can_dump(
    link: FakeLink, processes: Processes, tmp_path: Path, sender: str, boot: Boot
) -> None:
    process = processes.add(0)
    process.note_started(1234)
    pid = 1234 if sender == "itself" else 1235
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as worker:
        fact = {"name": "hello", "process_id": 0, "pid": pid, "detail": {}}
        worker.sendto(json.dumps(fact).encode(), str(tmp_path / "facts"))
    processes.facts.hear()
    assert process.boot is boot and process.can_dump is (boot is Boot.BEGAN)


class LeftOver(NativeStack):
    """An address in jax lies further up on the stack than one in Python, which is in the system call `call`."""

    def __init__(self, call: int) -> None:
        super().__init__(os.getpid())
        self.call = call

    def _read_stack(self) -> tuple[int, bytes]:
        return self.call, struct.pack("=2Q", 0x1010, 0x2010)

    def _read_code(self) -> None:
        self._starts, self._code = [0x1000, 0x2000], [(0x1100, "libjax_common.so"), (0x2100, "python3.11")]


def test_jax_waits_for_a_futex_and_not_for_a_file() -> None:
    futex = {"x86_64": 202, "aarch64": 98}[os.uname().machine]
    assert LeftOver(futex).find_library() == "libjax_common.so"
    assert {LeftOver(call).find_library() for call in NOT_JAX} == {"python3.11"}


def test_a_process_that_sleeps_is_in_python() -> None:
    command = [sys.executable, "-c", "import time; print(flush=True); time.sleep(1000)"]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        process.stdout.readline()
        stack = NativeStack(process.pid)
        await_true(lambda: "python" in (stack.find_library() or ""), 30, "a library")
        process.kill()
