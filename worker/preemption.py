"""Stopping when asked: after SIGTERM at any process all of them stop at the same step, with time to save."""

from __future__ import annotations

import os
import signal
import socket
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

from hostmesh.worker.process.facts import send_fact

SECONDS_TO_SAVE = 60
# Where a process that Ctrl-C ends tells process 0 so, in jax's own store.
INTERRUPTED = "hostmesh/interrupted"
LOOK_EVERY = 0.02

_asked = False
_calls = 0  # of preemption_requested


def handle_preemption() -> None:
    """From here on SIGTERM asks this program to save and leave, and the launcher gives it the time.

    Call it after joining. The launcher then sends SIGTERM for Ctrl-C as well.
    """
    if not _is_joined():
        signal.signal(signal.SIGTERM, _note)
    send_fact("saves_when_stopped", must_arrive=True, seconds=SECONDS_TO_SAVE)


def preemption_requested(step: int) -> bool:
    """Call it once at every step: true from the same step on everywhere, after SIGTERM reached any process.

    A call takes less than a microsecond. jax looks for the signal once a second and then picks the step after the
    furthest one: steps of 1 ms went on for 0.9 s, steps of 20 ms for 0.7 s, steps of 300 ms for three.
    """
    global _asked, _calls
    _calls += 1
    if _is_joined():
        from jax.experimental.multihost_utils import reached_preemption_sync_point

        # jax says so at one number only, the one after the highest it was given so far: asked before the first step of
        # a resumed run that would be 1, which the steps of such a run never are. So it is given the number of calls.
        _asked = _asked or reached_preemption_sync_point(_calls)
    return _asked


def _is_joined() -> bool:
    """Then jax owns SIGTERM, and a handler set after it would keep jax from ever hearing of it."""
    from jax._src import distributed  # `jax.distributed.is_initialized` imports no less

    return distributed.global_state.client is not None


def _note(number: int, frame: FrameType | None) -> None:
    global _asked
    _asked = True


@contextmanager
def let_ctrl_c_end() -> Iterator[None]:
    """For a call that waits in native code, where KeyboardInterrupt cannot be raised: Ctrl-C ends the process then."""
    is_main = threading.current_thread() is threading.main_thread()
    if not is_main or signal.getsignal(signal.SIGINT) is not signal.default_int_handler:
        yield
        return
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def leave_after_others(timeout: float) -> None:
    """For a process that Ctrl-C ends: without process 0, where its coordinator is, jax aborts the others, who may still
    be in their exit handlers. So process 0 waits for them; who waits for it in a collective is let go first.
    """
    distributed = sys.modules.get("jax._src.distributed")
    if distributed is None or distributed.global_state.client is None:
        return
    state, until = distributed.global_state, time.monotonic() + timeout
    if state.process_id != 0:
        state.client.key_value_set(f"{INTERRUPTED}/{state.process_id}", "")
        return
    _hang_up(but=int(state.coordinator_address.rpartition(":")[2]))
    while time.monotonic() < until and len(state.client.key_value_dir_get(INTERRUPTED)) < state.num_processes - 1:
        time.sleep(LOOK_EVERY)


def _hang_up(but: int) -> None:
    """End the connections of this process, but for those of its coordinator's port: that ends its collectives."""
    for name in os.listdir("/dev/fd"):
        try:
            with socket.socket(fileno=os.dup(int(name))) as end:
                ports = (end.getsockname()[1], end.getpeername()[1])
                if end.family in (socket.AF_INET, socket.AF_INET6) and but not in ports:
                    end.shutdown(socket.SHUT_RDWR)
        except (OSError, IndexError):
            continue  # no socket, or no connection
