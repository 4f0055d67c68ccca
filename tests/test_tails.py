"""What jaxlib 0.10.2 and Python print at the end of a process, and what is made of it."""

from __future__ import annotations

import pytest

from hostmesh.launcher.protocol import wire
from hostmesh.launcher.supervisor.blame.tails import lines_worth_showing, tasks_named_by_jax, was_aborted_by_jax

GLOO = "[Gloo] Rank 2 is connected to 3 peer ranks. Expected number of connected peer ranks is : 3\n"
TERMINATING = (
    "F1117 02:09:59.829073    9619 client.h:80] Terminating process because the JAX distributed service detected fatal "
    "errors. This most likely indicates that another task died; see the other task logs for more details. Disable "
    "Python buffering, i.e. `python -u`, to be sure to see all the previous output. absl::Status: UNAVAILABLE: "
)
NO_LEADER = (
    "E1117 02:09:59.829012    9619 coordination_service_agent.cc:289] Polled an error from coordination service (this "
    "can be an error from this or another task).\n"
    + TERMINATING
    + "Failed to send RPC to coordination service. Either the "
    "leader task was preempted/died/restarted unexpectedly or this task is experiencing network issues. Check earlier "
    "logs from 1) this task, 2) the leader (usually slice 0 task 0), and 3) cluster scheduler to debug further.\n"
    "Additional GRPC error information from remote target coordination_service while calling /xla.coordination."
    "CoordinationService/PollForError:\n"
    ':UNKNOWN:Error received from peer  {grpc_status:14, grpc_message:"recvmsg:Connection reset by peer"}\n'
)
UNHEALTHY = (
    TERMINATING
    + "The following tasks are unhealthy (stopped sending heartbeats):\n2\nThe tasks have crashed. Check the "
    "task logs for an earlier error, or scheduler events (e.g. preemption, eviction) to debug further.\n\nRPC: /xla."
    "coordination.CoordinationService/PollForError [type.googleapis.com/tensorflow.CoordinationServiceError='']\n"
)
BARRIER = (
    "DEADLINE_EXCEEDED: Barrier timed out. Id: x::0. This usually happens because a task triggered the barrier too "
    "early or too slowly. Please look at the task logs (both timed out and first task) to debug further.\n"
    "# of tasks that reached the barrier: 2/4.\nThe first task at the barrier: 2. Some timed out task names:\n1\n3\n"
)
NATIVE = (
    "*** Check failure stack trace: ***\n"
    "    @     0x7effc5240634  absl::lts_20260107::log_internal::LogMessage::SendToLog()\n"
    "    @     0x7effcce4e1f5  (unknown)\n"
)
FRAMES = (
    '  File "/venv/lib/python3.11/site-packages/jax/experimental/multihost_utils.py", line 165 in sync_global_devices\n'
    '  File "/home/me/job.py", line 9 in fault\n'
    '  File "/home/me/job.py", line 22 in <module>\n'
    '  File "/tmp/hostmesh-1117-kmvn9v.0/code/hostmesh/worker/process/as_python/boot.py", line 70 in _execute\n'
    '  File "/tmp/hostmesh-1117-kmvn9v.0/code/hostmesh/worker/process/as_python/boot.py", line 34 in run\n'
    '  File "/tmp/hostmesh-1117-kmvn9v.0/code/start.py", line 14 in <module>\n'
)
OTHER_THREAD = "Thread 0x00007effccdc3b80 (most recent call first):\n" + FRAMES + "\n"
CURRENT_THREAD = "Current thread 0x00007f6e1e7fab80 (most recent call first):\n" + FRAMES + "\n"
MODULES = "Extension modules: jaxlib.cpu_feature_guard, numpy._core._multiarray_umath (total: 2)\n"
FATAL = "Fatal Python error: Aborted\n\n"
CHECK_FAILED = "F1117 02:09:59.829073    9619 shape.cc:80] Check failed: rank == 2 (3 vs. 2)\n"
PADDING = "x" * 99 + "\n"

ABORTS = {
    "the coordinator was lost": (GLOO + NO_LEADER + NATIVE + FATAL + OTHER_THREAD + MODULES, True),
    "another stopped sending heartbeats": (GLOO + UNHEALTHY + NATIVE + FATAL + OTHER_THREAD, True),
    "os.abort()": (GLOO + FATAL + CURRENT_THREAD + MODULES, False),
    "os.abort() beside other threads": (GLOO + FATAL + OTHER_THREAD + CURRENT_THREAD + MODULES, False),
    "a failed check of XLA": (GLOO + CHECK_FAILED + NATIVE + FATAL + OTHER_THREAD, False),
    "a program that is no Python": ("terminate called after throwing an instance of 'std::bad_alloc'\n", False),
    "a script that talks of heartbeats": ("a heartbeat of the coordination service\n" + FATAL + CURRENT_THREAD, False),
    "nothing said": ("", False),
    "a native thread, and its reason cut off": (OTHER_THREAD * (wire.TAIL_LENGTH // len(OTHER_THREAD)), True),
    "os.abort() among a hundred threads": (
        OTHER_THREAD * (wire.TAIL_LENGTH // len(OTHER_THREAD)) + CURRENT_THREAD + OTHER_THREAD, False
    ),
    "a program that says nothing after much output": (PADDING * (wire.TAIL_LENGTH // 100), False),
    "os.abort() after much output": (PADDING * (wire.TAIL_LENGTH // 100) + FATAL + CURRENT_THREAD, False),
}  # fmt: skip


@pytest.mark.parametrize("how", ABORTS)
def test_an_abort_is_jaxs_doing_or_its_own(how: str) -> None:
    tail, is_jaxs = ABORTS[how]
    assert was_aborted_by_jax(tail) is is_jaxs


NAMED = {
    "heartbeats": (UNHEALTHY, {2}),
    "heartbeats of two": (UNHEALTHY.replace("\n2\n", "\n2\n3\n"), {2, 3}),
    "tasks by their long names": (UNHEALTHY.replace("\n2\n", "\n/job:jax_worker/replica:0/task:2\n"), {2}),
    "a barrier: those who are missing, not the first to come": (BARRIER, {1, 3}),
    "the leader": (NO_LEADER, {0}),
    "nobody": (GLOO + FATAL, set()),
}  # fmt: skip


@pytest.mark.parametrize("who", NAMED)
def test_jax_names(who: str) -> None:
    text, wanted = NAMED[who]
    assert tasks_named_by_jax(text) == wanted


def test_of_an_abort_the_users_own_frames_are_shown() -> None:
    shown = lines_worth_showing("epoch 3\n" + GLOO + FATAL + OTHER_THREAD + CURRENT_THREAD + MODULES, 12)
    assert shown == [
        "Fatal Python error: Aborted",
        '  File "/home/me/job.py", line 9 in fault',
        '  File "/home/me/job.py", line 22 in <module>',
        "epoch 3",
    ]


def test_of_a_failed_check_the_check_is_shown_and_no_native_page() -> None:
    shown = lines_worth_showing(GLOO + CHECK_FAILED + NATIVE * 20 + FATAL + OTHER_THREAD + MODULES, 12)
    assert shown == [CHECK_FAILED.strip(), "Fatal Python error: Aborted"]


def test_a_traceback_loses_only_frames_of_ours() -> None:
    frame = '  File "/tmp/hostmesh-1117-x.0/code/hostmesh/worker/process/as_python/boot.py", line 34, in run\n'
    own = frame + "    _execute(argv)\n    ^^^^^^^^\n"
    theirs = '  File "/home/me/hostmesh/boot.py", line 3, in main\n    1 / 0\n'
    shown = lines_worth_showing("Traceback (most recent call last):\n" + own + theirs + "ZeroDivisionError: x\n", 12)
    assert shown == ["Traceback (most recent call last):", *theirs.splitlines(), "ZeroDivisionError: x"]


def test_plain_output_is_shown_as_it_is() -> None:
    assert lines_worth_showing("one\n\ntwo  \nthree\n", 2) == ["two", "three"]
