"""Promise 1: a script finds under `launch`, warm and cold, what plain Python shows it.

A row is a script. All that it prints, tracebacks included, and its exit code are compared.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

import pytest
from conftest import Launch, Script, clean_env


class Row(NamedTuple):
    """`said` is what only a warm start has to say, each in one line of every process."""

    text: str
    args: tuple[str, ...] = ()
    env: Mapping[str, str] = {}
    said: tuple[str, ...] = ()
    name: str = "script.py"


# What a program can see of its start, and of the world it is in.
SURROUNDINGS = """
'''what it does'''
import atexit, json, os, signal, sys, threading
import __main__
shown = {
    "globals": sorted(globals()),
    "annotations": __annotations__,
    "argv": sys.argv,
    "orig_argv": sys.orig_argv,
    "ps": open("/proc/self/cmdline").read().rstrip("\\0").split("\\0"),
    "path": [p for p in sys.path if "hostmesh-" not in p],
    "cwd": os.getcwd(),
    "name": __name__,
    "file": __file__,
    "spec": str(__spec__),
    "package": str(__package__),
    "doc": __doc__,
    "main": __main__.__dict__ is globals() and sys.modules["__main__"] is __main__,
    "builtins": type(__builtins__).__name__,
    "executable": sys.executable,
    "umask": oct(os.umask(0o022)),
    "stdin": os.read(0, 10).decode(),
    "sigint": str(signal.getsignal(signal.SIGINT)).split(" at ")[0],
    "sigterm": str(signal.getsignal(signal.SIGTERM)),
    "sigpipe": str(signal.getsignal(signal.SIGPIPE)),
    "sigchld": str(signal.getsignal(signal.SIGCHLD)),
    "blocked": sorted(signal.pthread_sigmask(signal.SIG_BLOCK, [])),
    "threads": threading.active_count(),
    "encoding": [sys.stdout.encoding, sys.stdout.errors, sys.stderr.encoding, sys.stderr.errors],
    "excepthook": sys.excepthook is sys.__excepthook__,
    "fds": sorted(int(fd) for fd in os.listdir("/proc/self/fd") if int(fd) < 3),
    "imported": sorted({"jax", "jaxlib", "numpy", "ml_dtypes"} & set(sys.modules)),
    "native variables": {n: v for n, v in os.environ.items() if n.startswith(("TF_", "TPU_", "OPENBLAS_"))},
    "jax variables": sorted(n for n in os.environ if n.startswith("JAX_") and n != "JAX_COORDINATOR_ADDRESS"),
}
for name, value in shown.items():
    print(name, json.dumps(value))
x: int = 1
print("annotated", __annotations__)
os.setpgrp()
signal.signal(signal.SIGUSR1, lambda *_: print("the group's signal"))
os.killpg(0, signal.SIGUSR1)
print("a shared group", os.getpgid(os.getppid()) == os.getpgrp())
atexit.register(lambda: print("at exit"))
"""

# A variable counts that is set before the import of who reads it, and one that is taken away is away.
LATE_VARIABLES = """
import ctypes, glob, os
os.environ.pop("JAX_PLATFORMS", None)
os.environ.pop("JAX_NUM_CPU_DEVICES", None)
del os.environ["JAX_ENABLE_X64"]
os.environ["OMP_NUM_THREADS"] = "1"
import numpy
library = glob.glob(os.path.join(numpy.__path__[0] + ".libs", "*openblas*"))[0]
names = ["scipy_openblas_get_num_threads64_", "openblas_get_num_threads64_", "openblas_get_num_threads"]
print("threads", next(f for f in (getattr(ctypes.CDLL(library), n, None) for n in names) if f)())
print("still", numpy.ones((300, 300)) @ numpy.ones(300) == 300)
os.environ["JAX_EXPLICIT_X64_DTYPES"] = "error"
os.environ["JAX_NUMPY_DTYPE_PROMOTION"] = "strict"
os.environ["TF_CPP_MIN_LOG_LEVEL"] = "2"
os.environ["OPENBLAS_CORETYPE"] = os.environ["OMP_NUM_THREADS"] = "too late for anybody"
import jax
config = jax.config
print(repr(config.jax_explicit_x64_dtypes), repr(config.jax_numpy_dtype_promotion), config.jax_platforms)
print(config.jax_num_cpu_devices, config.jax_enable_x64, jax.local_device_count(), os.environ["TF_CPP_MIN_LOG_LEVEL"])
"""

TRACEBACK = """
def f(x):
    return 1 / x
try:
    f(0)
except ZeroDivisionError as error:
    raise KeyError("x") from error
"""

ROWS = {
    "surroundings": Row(SURROUNDINGS, args=("a b", "--cold"), name="sub folder/probe.py"),
    "late variables": Row(
        LATE_VARIABLES,
        env={"JAX_NUM_CPU_DEVICES": "3", "JAX_ENABLE_X64": "1"},
        said=("launch: TF_CPP_MIN_LOG_LEVEL=2 comes too late for ",),
    ),
    "exit with an object": Row(
        "import sys\nclass Reason:\n    def __str__(self): return 'a reason'\nsys.exit(Reason())\n"
    ),
    "exit with a tuple": Row("print('before')\nraise SystemExit(1, 'two')\n"),
    "a traceback": Row(TRACEBACK),
}


@pytest.mark.parametrize("name", ROWS)
@pytest.mark.quick("surroundings", "a traceback")
def test_warm_cold_and_plain_python_look_alike(launch: Launch, script: Script, tmp_path: Path, name: str) -> None:
    row = ROWS[name]
    file, env = script(row.text, row.name), {"JAX_PLATFORMS": "cpu", **row.env}
    plain = subprocess.run(
        [sys.executable, file, *row.args],
        cwd=tmp_path,
        env=clean_env(env),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    wanted = sorted(plain.stdout.splitlines())
    assert wanted
    for how, said in (["--cold"], ()), ([], row.said):
        done = launch("--local", "2", "--runs", f"runs{len(how)}", *how, file, *row.args, env=env)
        assert done.returncode == plain.returncode, done.stdout + done.stderr
        logs = sorted((tmp_path / f"runs{len(how)}").glob("*/logs/process-*.log"))
        seen = [sorted(without(said, log.read_text().splitlines())) for log in logs]
        # Where they fail, the one is stopped as soon as the other has.
        assert wanted in seen if plain.returncode else seen == [wanted] * 2, how


def without(said: tuple[str, ...], lines: list[str]) -> list[str]:
    for beginning in said:
        [line] = [line for line in lines if line.startswith(beginning)]
        lines.remove(line)
    return lines


def test_a_long_command_line_leaves_the_environment_alone(tmp_path: Path) -> None:
    """The processes of a run are found by it."""
    text = (
        "from pathlib import Path\nfrom hostmesh.worker.process.as_python.command_line import write_command_line\n"
        "mine = Path('/proc/self')\n"
        "before = (mine / 'environ').read_bytes(), len((mine / 'cmdline').read_bytes())\n"
        "write_command_line(['python', 'x' * 100_000])\n"
        "line = (mine / 'cmdline').read_bytes()\n"
        "assert ((mine / 'environ').read_bytes(), len(line)) == before, line\n"
        "assert line.startswith(b'python\\0xxxxxxx') and line.endswith(b'x\\0'), line\n"
    )
    subprocess.run([sys.executable, "-c", text], env=clean_env({"MARK": "here"}), cwd=tmp_path, check=True)
