"""Inspect a host: plain facts for the launcher to judge, found within seconds whatever hangs there."""

from __future__ import annotations

import errno
import json
import os
import re
import signal
import socket
import threading
import time
from functools import partial
from typing import Any, Callable, Dict, Iterator, List, Mapping, Optional, Sequence, Tuple

from hostmesh.launcher.agent.children.spawn import explain_start
from hostmesh.launcher.agent.files import find_program, measure_disk, read_if_there
from hostmesh.launcher.agent.inspect.devices import VISIBLE, count_devices, find_holders, find_tpu_lock

LIMIT = 6.0
# The workers' Python may be on a slow network disk or a busy host, and without it there is no run: it gets more time.
PYTHON_LIMIT = 60.0
END_TIMEOUT = 0.5
MAX_SAID = 4096  # the launcher redacts it and shows its last line
NAMES_LIMIT = 5.0
NAMES_AT_ONCE = 8  # a name server was seen to lose some of 32 questions
PACKAGES = (
    *("jax", "jaxlib", "numpy", "libtpu"),
    *("jax-cuda12-plugin", "jax-cuda12-pjrt", "jax-cuda13-plugin", "jax-cuda13-pjrt"),
)
PROXIES = ("grpc_proxy", "https_proxy", "http_proxy", "all_proxy", "no_grpc_proxy", "no_proxy")
CLOCK_SOURCE = "/sys/devices/system/clocksource/clocksource0/current_clocksource"
BOOT = "/proc/sys/kernel/random/boot_id"
TIME_ERROR = 5  # what adjtimex returns when the clock is not synchronised

# A program for the workers' Python, which may be of any version. The last line that it prints is the answer.
QUESTION = """
import json, sys
sys.path[:] = [place for place in sys.path if place]
versions = {}
try:
    from importlib.metadata import version
except ImportError:
    version = None
for name in sys.argv[1:]:
    try:
        versions[name] = version(name)
    except Exception:
        versions[name] = None
print()
print(json.dumps({"version": sys.version.split()[0], "packages": versions}))
"""


def inspect(
    python: str,
    workdir: Optional[str],
    env: Dict[str, str],
    thorough: bool,
    folder: str,
    root: str = "/",
    names: Sequence[str] = (),
) -> Dict[str, Any]:
    """Every fact but the time is found in a thread of its own; one that cannot be found is a `problem`."""
    seen, root = {**os.environ, **env}, root.rstrip("/")
    steps: Dict[str, Callable[[], Any]] = {
        "python": lambda: ask_python(python, seen),
        "platforms": lambda: seen.get("JAX_PLATFORMS", ""),
        "proxies": lambda: list_proxies(seen),
        "name": lambda: describe_name(root),
        "collectives": lambda: seen.get("JAX_CPU_COLLECTIVES_IMPLEMENTATION", ""),
        "names": lambda: resolve_all(names),
        "temp": lambda: describe_disk(os.path.dirname(folder)),
        "machine": lambda: measure_machine(root),
        "devices": lambda: count_devices(root, seen),
        "visible": lambda: {name: seen[name] for name in VISIBLE if name in seen},
        "holders": lambda: find_holders(root),
        "tpu_lock": lambda: find_tpu_lock(root),
    }
    if workdir is not None:
        path = os.path.expanduser(workdir)
        steps["workdir"] = lambda: describe_disk(path)
        if thorough:
            steps["workdir"] = lambda: {**describe_disk(path), **try_folder(path)}
            from hostmesh.launcher.agent.inspect.code_hash import read_code

            steps["code"] = lambda: read_code(path)
    if thorough:
        steps["shared_memory"] = lambda: describe_disk(f"{root}/dev/shm")
        steps["system"] = lambda: read_system(root)
    return {"time": time.time(), **run_together(steps, LIMIT, {"python": PYTHON_LIMIT + 2 * END_TIMEOUT})}


def run_together(
    steps: Mapping[str, Callable[[], Any]], limit: float, longer: Optional[Mapping[str, float]] = None
) -> Dict[str, Any]:
    """A step that has not returned within its limit is left to itself: nothing wakes a thread that waits for a dead
    file server. `longer` names steps that have another limit.
    """
    limits = {**dict.fromkeys(steps, limit), **(longer or {})}
    found: Dict[str, Any] = {}

    def run(name: str) -> None:
        try:
            found[name] = steps[name]()
        except Exception as error:
            found[name] = {"problem": _explain(error)}

    began = time.monotonic()
    threads = {name: threading.Thread(target=run, args=(name,), daemon=True) for name in steps}
    for thread in threads.values():
        thread.start()
    for name, thread in threads.items():
        thread.join(max(0.0, began + limits[name] - time.monotonic()))
    return {name: found.get(name, {"problem": f"no answer within {limits[name]:g} s"}) for name in steps}


def _explain(error: Exception) -> str:
    if isinstance(error, OSError) and error.filename is not None:
        return f"{os.fsdecode(error.filename)}: {error.strerror}"
    return str(error) or type(error).__name__


def ask_python(python: str, env: Mapping[str, str]) -> Dict[str, Any]:
    """The version of a Python and of its packages, none of which is imported."""
    path = find_program(os.path.expanduser(python), env.get("PATH", ""))
    if path is None:
        return {"problem": f"found no executable {python}"}
    path = os.path.abspath(path)
    try:
        code, output, errors = _run([path, "-c", QUESTION, *PACKAGES], env, PYTHON_LIMIT)
    except OSError as error:
        cause = "environment" if error.errno == errno.E2BIG else "python"
        return {"problem": f"{path} cannot be started: {explain_start(error, env)}", "cause": cause}
    if code is None:
        return {"problem": f"{path} is there, but has not answered within {PYTHON_LIMIT:g} s", "cause": "slow"}
    try:
        answer = json.loads(output.splitlines()[-1])
        return {"path": path, "version": answer["version"], "packages": answer["packages"]}
    except (ValueError, KeyError, TypeError, IndexError):
        return {"problem": f"{path} is no Python that works: it exited with {code}", "said": errors[-MAX_SAID:]}


def _run(argv: List[str], env: Mapping[str, str], limit: float) -> Tuple[Optional[int], str, str]:
    """Exit code, output, errors. The exit code is None if the program and its children had to be killed."""
    import subprocess

    pipe, nothing = subprocess.PIPE, subprocess.DEVNULL
    with_env: Any = {"env": env, "start_new_session": True, "text": True, "errors": "replace"}
    program = subprocess.Popen(argv, stdin=nothing, stdout=pipe, stderr=pipe, **with_env)
    try:
        output, errors = program.communicate(timeout=limit)
        return program.returncode, output, errors
    except subprocess.TimeoutExpired:
        _end(program)
        return None, "", ""


def _end(program: Any) -> None:
    """Kill its process group. Programs outside the group may hold its pipes open; nobody waits for these."""
    import subprocess

    os.killpg(program.pid, signal.SIGKILL)
    try:
        program.communicate(timeout=END_TIMEOUT)
    except subprocess.TimeoutExpired:
        pass


def list_proxies(env: Mapping[str, str]) -> Dict[str, str]:
    return {name: _strip_credentials(env[name]) for name in _both_cases(PROXIES) if name in env}


def _both_cases(names: Sequence[str]) -> Iterator[str]:
    for name in names:
        yield from (name, name.upper())


def _strip_credentials(url: str) -> str:
    """Removes everything between the scheme and the last @, since a password may hold any character."""
    scheme = re.match(r"([a-zA-Z][\w+.-]*://)?", url)
    assert scheme is not None
    return scheme[0] + url[scheme.end() :].rpartition("@")[2]


def describe_name(root: str) -> Dict[str, Any]:
    """`network` is equal for two hosts that are in truth one machine with one loopback interface."""
    name = socket.gethostname()
    boot = read_if_there(root + BOOT).decode().strip()
    return {"host": name, "addresses": resolve(name), "network": f"{boot} {os.stat('/proc/self/ns/net').st_ino}"}


def resolve(name: str) -> Optional[List[str]]:
    """The addresses of a name, an empty list if it has none; None if the name server does not answer."""
    try:
        found = socket.getaddrinfo(name, None, type=socket.SOCK_STREAM)
    except socket.gaierror as error:
        return None if error.errno == socket.EAI_AGAIN else []
    except UnicodeError:  # no host can have such a name
        return []
    return sorted({str(address[0]) for *_, address in found})


def resolve_all(names: Sequence[str]) -> Dict[str, Optional[List[str]]]:
    found: Dict[str, Optional[List[str]]] = {}

    def resolve_some(some: Sequence[str]) -> None:
        for name in some:
            found[name] = resolve(name)

    shares = [names[start::NAMES_AT_ONCE] for start in range(min(NAMES_AT_ONCE, len(names)))]
    run_together({str(number): partial(resolve_some, share) for number, share in enumerate(shares)}, NAMES_LIMIT)
    return {name: found.get(name) for name in names}


def describe_disk(path: str) -> Dict[str, Any]:
    size, free = measure_disk(path)
    return {"path": path, "size": size, "free": free}


def try_folder(path: str) -> Dict[str, Any]:
    """Whether a folder exists, and why files cannot be made in it. A missing folder is not made."""
    is_there = os.path.isdir(path)
    trial = os.path.join(path, f".hostmesh-check-{os.getpid()}")
    try:
        if is_there:
            os.close(os.open(trial, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600))
            os.unlink(trial)
        else:
            _check_can_be_made(path)
    except OSError as error:
        return {"is_there": is_there, "unwritable": error.strerror}
    return {"is_there": is_there, "unwritable": None}


def _check_can_be_made(path: str) -> None:
    """Raises the error that making the folder would raise."""
    above = os.path.abspath(path)
    while not os.path.lexists(above):
        above = os.path.dirname(above)
    if not os.path.isdir(above):
        raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), above)
    if os.statvfs(above).f_flag & os.ST_RDONLY:
        raise OSError(errno.EROFS, os.strerror(errno.EROFS), above)
    if not os.access(above, os.W_OK | os.X_OK, effective_ids=True):
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), above)


def measure_machine(root: str) -> Dict[str, Any]:
    with open(f"{root}/proc/meminfo") as file:
        kilobytes = dict(re.findall(r"^(\w+): +(\d+) kB", file.read(), re.MULTILINE))
    memory, free = (int(kilobytes.get(name, 0)) << 10 for name in ("MemTotal", "MemAvailable"))
    return {"cpus": len(os.sched_getaffinity(0)), "memory": memory, "memory_free": free}


def read_system(root: str) -> Dict[str, Any]:
    import resource

    return {
        "kernel": os.uname().release,
        "open_files": resource.getrlimit(resource.RLIMIT_NOFILE)[0],
        "clock_source": read_if_there(f"{root}{CLOCK_SOURCE}").decode().strip(),
        "clock_is_kept": _is_clock_kept(),
    }


def _is_clock_kept() -> bool:
    """Whether a time service keeps the kernel's clock in step."""
    import ctypes

    return bool(ctypes.CDLL(None).adjtimex(ctypes.create_string_buffer(512)) != TIME_ERROR)
