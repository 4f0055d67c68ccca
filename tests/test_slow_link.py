"""A whole run over a link that is slower than what its processes print: the verdict does not wait for the logs."""

from __future__ import annotations

import io
import signal
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from conftest import await_true, busyness
from test_agent import SlowStream

from hostmesh.launcher.agent.children.process_tree import MARK
from hostmesh.launcher.bundle import pack_agent, pack_code
from hostmesh.launcher.cluster.local import local_cluster
from hostmesh.launcher.cluster.model import Job
from hostmesh.launcher.output.events import EventLog
from hostmesh.launcher.output.run_folder import Run
from hostmesh.launcher.output.screen import Screen
from hostmesh.launcher.planning.plan import make_plan
from hostmesh.launcher.supervisor.blame.verdict import Verdict
from hostmesh.launcher.supervisor.loop import Shipment, Supervisor
from hostmesh.launcher.supervisor.records import Records
from hostmesh.worker.identity import RUN_ID

# Process 0 prints what takes the link 40 s; process 1 fails when it is told to.
CHATTY = """
if [ $HOSTMESH_PROCESS_ID = 0 ]; then
    yes 0123456789 | head -c 5000000
    touch printed
    sleep 1000
fi
while [ ! -e fail ]; do sleep 0.02; done
exit 3
"""


class SlowRun:
    def __init__(self, folder: Path) -> None:
        run = Run.create(folder / "runs")
        self.folder, self.verdict = folder, None
        command = ("sh", "-c", f"cd {folder}; {CHATTY}")
        self.out = io.StringIO()
        screen = Screen(self.out, colour=False)
        screen.start()
        stream = SlowStream(None, {RUN_ID: run.id, MARK: f"{run.id}.0"})
        plan = make_plan(local_cluster(2), Job(command=command))
        self.events = EventLog(run)
        records = Records(run, screen, self.events, {})
        self.supervisor = Supervisor(plan, [stream], Shipment(pack_agent(), pack_code), records, secrets={})
        self.thread = threading.Thread(target=self._run, daemon=True)
        self.thread.start()

    def _run(self) -> None:
        self.verdict: Verdict | None = self.supervisor.run()


@pytest.fixture
def slow(tmp_path: Path) -> Iterator[SlowRun]:
    run = SlowRun(tmp_path)
    await_true((tmp_path / "printed").exists, 30, "a backlog")
    await_true(lambda: "0123456789" in run.out.getvalue(), 10, "the first of it to arrive")
    time.sleep(2)  # the link is busy with it
    yield run
    for _ in range(3):
        run.supervisor.interrupt(signal.SIGINT)
    run.thread.join(30)
    run.events.close()


@pytest.mark.slow
def test_a_backlog_of_logs_does_not_delay_the_verdict(slow: SlowRun) -> None:
    (slow.folder / "fail").touch()
    seconds = await_true(lambda: "process 1 on localhost exited with 3" in slow.out.getvalue(), 20, "the verdict")
    assert seconds < 12  # it was 25 and more
    slow.supervisor.interrupt(signal.SIGINT)
    slow.thread.join(20)
    assert slow.verdict is not None and slow.verdict.exit_code == 3
    assert "not all that process 0 printed was fetched from localhost" in slow.out.getvalue()


@pytest.mark.slow
def test_a_backlog_of_logs_does_not_delay_ctrl_c(slow: SlowRun) -> None:
    began = time.monotonic()
    slow.supervisor.interrupt(signal.SIGINT)
    slow.thread.join(30)
    assert slow.verdict is not None and slow.verdict.exit_code == 130
    assert time.monotonic() - began < 10 * busyness()
