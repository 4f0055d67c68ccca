"""Run a script or module in this process as Python itself would, with stack dumps and a crash record."""

from __future__ import annotations

import atexit
import builtins
import faulthandler
import os
import runpy
import signal
import sys
import threading
import time
from contextlib import suppress
from importlib.machinery import SourceFileLoader
from types import ModuleType, TracebackType
from typing import NoReturn

from hostmesh.worker.distributed import forget_jax, prepare_jax, widen_cpu_pool
from hostmesh.worker.errors import WorkerError
from hostmesh.worker.identity import CHAOS, DUMP_SIGNAL, EXIT_PREEMPTED, GRACE, STACKS_FILE, Identity
from hostmesh.worker.preemption import leave_after_others
from hostmesh.worker.process.as_python.command_line import show_command
from hostmesh.worker.process.crash import crash_record, explain_no_input
from hostmesh.worker.process.facts import send_fact
from hostmesh.worker.recording.recorder import RECORDER

EXIT_HANDLERS_TIMEOUT = 5.0
LOST_PEER_TIMEOUT = 3.0
EXIT_INTERRUPTED = 128 + signal.SIGINT
OWN_FRAMES = (__file__, "<frozen runpy>", "<frozen importlib._bootstrap>", "<frozen importlib._bootstrap_external>")


def run(argv: list[str]) -> None:
    """`argv` is `SCRIPT.py ARGS…` or `-m MODULE ARGS…`. Returns, or raises SystemExit, only for an orderly leave."""
    try:
        _run(argv)
    except KeyboardInterrupt as error:  # not in _run: Ctrl-C may also come while that handles another exception
        _interrupt(error)


def _run(argv: list[str]) -> None:
    _say_hello()
    show_command(argv)
    widen_cpu_pool()
    prepare_jax()
    try:
        if CHAOS in os.environ:
            from hostmesh.worker.chaos.schedule import begin_faults

            begin_faults()
        _execute(argv)
    except SystemExit as stop:
        if (unseen := _explain_unseen_code(stop)) is not None:
            _fail(WorkerError(unseen).with_traceback(stop.__traceback__), 1)
        if (code := _exit_code(stop)) not in (0, EXIT_PREEMPTED):
            _fail(stop, code)
        raise
    except KeyboardInterrupt:
        raise
    except WorkerError as error:
        _fail(error, error.exit_code)
    except BaseException as error:
        _fail(error, 1)


def _say_hello() -> None:
    """Let the agent ask for stacks: before this, the signal would kill the process."""
    faulthandler.enable()
    if path := os.environ.get(STACKS_FILE):
        # What was set before is set again when Python itself ends: a request that comes then must not kill.
        signal.signal(DUMP_SIGNAL, signal.SIG_IGN)
        # Every dump is appended, so that the agent can empty the file before it asks for one.
        faulthandler.register(DUMP_SIGNAL, file=open(path, "ab", buffering=0), all_threads=True)  # noqa: SIM115
    RECORDER.open()
    sys.stdout.reconfigure(line_buffering=True)  # type: ignore[union-attr]
    send_fact("hello", must_arrive=True)


def _execute(argv: list[str]) -> None:
    made_by_python = sys.modules["__main__"]
    main = sys.modules["__main__"] = ModuleType("__main__")
    if "__annotations__" in made_by_python.__dict__:  # up to Python 3.13
        main.__annotations__ = {}
    main.__dict__["__builtins__"] = builtins
    if argv[0] == "-m":
        sys.path[0] = os.getcwd()
        sys.argv[:] = argv[1:]
        runpy._run_module_as_main(argv[1])  # type: ignore[attr-defined]  # what `python -m` calls
        return
    path = os.path.abspath(argv[0])
    sys.path[0] = os.path.dirname(os.path.realpath(argv[0]))
    sys.argv[:] = argv
    main.__file__ = path
    main.__loader__ = loader = SourceFileLoader("__main__", path)
    main.__dict__["__cached__"] = None
    exec(loader.source_to_code(loader.get_data(path), path), main.__dict__)


def _exit_code(stop: SystemExit) -> int:
    if stop.code is None or isinstance(stop.code, int):
        return (stop.code or 0) & 0xFF
    return 1


def _explain_unseen_code(stop: SystemExit) -> str | None:
    """The system keeps eight bits of an exit code: a failure must not look like success."""
    if isinstance(stop.code, int) and stop.code != 0 and stop.code & 0xFF == 0:
        return f"sys.exit({stop.code}) is exit code 0 to the system; taken as a failure with exit code 1"
    return None


def _fail(error: BaseException, code: int) -> NoReturn:
    error.__traceback__ = _without_own_frames(error.__traceback__)
    record = crash_record(error)
    send_fact("crash", must_arrive=True, explained=isinstance(error, WorkerError), **record)
    _flush_metrics()
    if record["lost_peer"]:
        # The cause is elsewhere, and the launcher about to end this process: a traceback here would only hide it.
        time.sleep(LOST_PEER_TIMEOUT)
    _show(error, record["message"])
    _leave(code)


def _interrupt(error: KeyboardInterrupt) -> NoReturn:
    """Ends as Python does: with exit handlers, then by the signal. One process of several prints no traceback: they
    were all asked, and as many tracebacks would bury the screen; the launcher keeps them in stacks/."""
    error.__traceback__ = _without_own_frames(error.__traceback__)
    record = {**crash_record(error), "lost_peer": False}  # also if it came while a lost peer was handled
    send_fact("crash", must_arrive=True, explained=False, **record)
    _flush_metrics()
    identity = Identity.from_env()
    if identity is None or identity.num_processes == 1:
        _show(error, "")
    grace = float(os.environ.get(GRACE) or 0)
    _run_exit_handlers(EXIT_INTERRUPTED, max(EXIT_HANDLERS_TIMEOUT, grace))
    with suppress(Exception):  # process 0, who is told, may be gone
        leave_after_others(grace / 2)
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    os.kill(os.getpid(), signal.SIGINT)
    os._exit(EXIT_INTERRUPTED)  # the signal is blocked


def _flush_metrics() -> None:
    """Send what is ready: other values may never come, and exit handlers may not run before a kill."""
    if (metrics := sys.modules.get("hostmesh.worker.metrics")) is not None:
        metrics.flush_ready()


def _show(error: BaseException, message: object) -> None:
    """A traceback would only hide a message that says all there is to say to the user."""
    if isinstance(error, WorkerError):
        print(f"error: {message}", file=sys.stderr)
    elif not isinstance(error, SystemExit):
        sys.excepthook(type(error), error, error.__traceback__)
    elif error.code is not None and not isinstance(error.code, int):
        with suppress(Exception):  # of its own __str__: Python says nothing then
            print(error.code, file=sys.stderr)
    if hint := explain_no_input(error):
        print(f"launch: {hint}", file=sys.stderr)


def _without_own_frames(trace: TracebackType | None) -> TracebackType | None:
    while trace is not None and trace.tb_frame.f_code.co_filename in OWN_FRAMES:
        trace = trace.tb_next
    return trace


def _leave(code: int) -> NoReturn:
    _run_exit_handlers(code, EXIT_HANDLERS_TIMEOUT)
    os._exit(code)


def _run_exit_handlers(code: int, timeout: float) -> None:
    """Without jax's: its shutdown barrier would wait up to 300 s for processes that wait for this one."""
    forget_jax()
    deadline = threading.Timer(timeout, os._exit, (code,))
    deadline.daemon = True
    deadline.start()
    atexit._run_exitfuncs()
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except (OSError, ValueError, AttributeError):
            pass
