"""Run a script or module in this process as Python itself would, with stack dumps and a crash record."""

from __future__ import annotations

import atexit
import builtins
import faulthandler
import os
import runpy
import sys
import threading
import time
from importlib.machinery import SourceFileLoader
from types import ModuleType, TracebackType
from typing import NoReturn

from worker.crash import crash_record
from worker.distributed import forget_jax, prepare_jax, widen_cpu_pool
from worker.errors import WorkerError
from worker.facts import send_fact
from worker.identity import DUMP_SIGNAL, EXIT_PREEMPTED, STACKS_FILE

EXIT_HANDLERS_PATIENCE = 5.0
LOST_PEER_PATIENCE = 3.0
OWN_FRAMES = (__file__, "<frozen runpy>", "<frozen importlib._bootstrap>", "<frozen importlib._bootstrap_external>")


def run(argv: list[str]) -> None:
    """`argv` is `SCRIPT.py ARGS…` or `-m MODULE ARGS…`. Returns, or raises SystemExit, only for an orderly leave."""
    _introduce()
    widen_cpu_pool()
    prepare_jax()
    try:
        _execute(argv)
    except SystemExit as stop:
        if (unseen := _explain_unseen_code(stop)) is not None:
            _fail(WorkerError(unseen).with_traceback(stop.__traceback__), 1)
        if (code := _exit_code(stop)) not in (0, EXIT_PREEMPTED):
            _fail(stop, code)
        raise
    except KeyboardInterrupt as error:
        _fail(error, 130)
    except WorkerError as error:
        _fail(error, error.exit_code)
    except BaseException as error:
        _fail(error, 1)


def _introduce() -> None:
    """From here on the agent may ask for stacks; before, the signal would kill."""
    faulthandler.enable()
    if path := os.environ.get(STACKS_FILE):
        faulthandler.register(DUMP_SIGNAL, file=open(path, "wb", buffering=0), all_threads=True)  # noqa: SIM115
    sys.stdout.reconfigure(line_buffering=True)  # type: ignore[union-attr]
    send_fact("hello", must_arrive=True)


def _execute(argv: list[str]) -> None:
    main = sys.modules["__main__"] = ModuleType("__main__")
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
    if record["lost_peer"]:
        # The cause is elsewhere, and the launcher about to end this process: a traceback here would only hide it.
        time.sleep(LOST_PEER_PATIENCE)
    _show(error, record["message"])
    _leave(code)


def _show(error: BaseException, message: object) -> None:
    """A traceback would only hide a message that says all there is to say to the user."""
    if isinstance(error, WorkerError):
        print(f"error: {message}", file=sys.stderr)
    elif not isinstance(error, SystemExit):
        sys.excepthook(type(error), error, error.__traceback__)
    elif isinstance(error.code, str):
        print(error.code, file=sys.stderr)


def _without_own_frames(trace: TracebackType | None) -> TracebackType | None:
    while trace is not None and trace.tb_frame.f_code.co_filename in OWN_FRAMES:
        trace = trace.tb_next
    return trace


def _leave(code: int) -> NoReturn:
    """jax's shutdown barrier would wait up to 300 s for processes that wait for this one."""
    forget_jax()
    deadline = threading.Timer(EXIT_HANDLERS_PATIENCE, os._exit, (code,))
    deadline.daemon = True
    deadline.start()
    atexit._run_exitfuncs()
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except (OSError, ValueError, AttributeError):
            pass
    os._exit(code)
