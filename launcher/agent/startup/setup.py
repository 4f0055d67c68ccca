"""Run a cluster's setup commands on this host, unless the same ones have succeeded before."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import time
from typing import Dict, FrozenSet, List, NamedTuple, Optional, Set

from hostmesh.launcher.agent.files import find_cache, lock_within, read_if_there
from hostmesh.launcher.agent.sync.manifest import STATE_FOLDER

LOCK_TIMEOUT = 1800.0
TOKEN = "setup"


class SetupError(Exception):
    """A command failed."""


def set_up(commands: List[str], key: str, workdir: Optional[str], env: Dict[str, str], output: str) -> float:
    """Seconds it took; 0 if the same commands had succeeded before under this key, and what they made still exists."""
    folder = os.path.expanduser(workdir or "~")
    if not os.path.isdir(folder):
        raise SetupError(f"setup: found no folder {folder} to run its commands in; make it, or fix workdir")
    stamp = _stamp_of(folder)
    with open(stamp + ".lock", "w") as lock:  # hosts that share a home folder must not install over each other
        if not lock_within(lock.fileno(), LOCK_TIMEOUT):
            raise SetupError("setup: another run has been setting up this host for 30 minutes")
        done, before = _read_stamp(stamp), _list_names(folder) if workdir else set()
        if done.key == key and (workdir is None or (done.token == read_token(folder) and done.made <= before)):
            return 0.0
        began = time.monotonic()
        done = done._replace(key="")  # a setup that fails or is killed half way does not count as done
        _write_stamp(stamp, done)
        try:
            for command in commands:
                _run(command, folder, env, output)
            done = done._replace(key=key)
        finally:
            if workdir:
                after = _list_names(folder)
                made = frozenset(after - before) | (done.made & after)
                done = done._replace(token=make_token(folder), made=made)
            _write_stamp(stamp, done)
    return max(time.monotonic() - began, 0.001)


class Done(NamedTuple):
    """What setups did on a host: the key of the last one if it succeeded, the token of its workdir, which is another
    once the workdir has been replaced, and the names that setups made at the workdir's top."""

    key: str = ""
    token: str = ""
    made: FrozenSet[str] = frozenset()


def _read_stamp(stamp: str) -> Done:
    """A stamp that is missing, or cannot be understood, counts as no setup at all."""
    try:
        key, token, made = json.loads(read_if_there(stamp))
        return Done(key, token, frozenset(made))
    except (ValueError, TypeError):
        return Done()


def _write_stamp(stamp: str, done: Done) -> None:
    _write_atomically(stamp, json.dumps([done.key, done.token, sorted(done.made)]))


def _list_names(folder: str) -> Set[str]:
    return set(os.listdir(folder)) - {STATE_FOLDER}


def read_token(folder: str) -> str:
    return read_if_there(os.path.join(folder, STATE_FOLDER, TOKEN)).decode(errors="replace")


def make_token(folder: str) -> str:
    """The token of a workdir, made if it has none. Hosts that share the workdir share the token. Empty where this user
    may not write to the workdir."""
    state = os.path.join(folder, STATE_FOLDER)
    try:
        if not read_token(folder):
            os.makedirs(state, exist_ok=True)
            _write_atomically(os.path.join(state, TOKEN), os.urandom(16).hex())
    except OSError:
        return ""
    return read_token(folder)


def _write_atomically(path: str, text: str) -> None:
    """A reader finds the old file or the new one, never half of it."""
    temporary = f"{path}.{socket.gethostname()}.{os.getpid()}"
    with open(temporary, "w") as file:
        file.write(text)
    os.rename(temporary, path)


def _stamp_of(folder: str) -> str:
    """A stamp tells what was done on a host, so it is not in the workdir, which several hosts may share."""
    import hashlib

    name = f"{socket.gethostname()}\0{os.path.realpath(folder)}"
    cache = find_cache(os.environ)
    os.makedirs(cache, exist_ok=True)
    return os.path.join(cache, "setup-" + hashlib.sha256(name.encode(errors="surrogateescape")).hexdigest()[:16])


def _run(command: str, folder: str, env: Dict[str, str], output: str) -> None:
    with open(output, "wb", buffering=0) as pipe:
        pipe.write(header(command))
        code = subprocess.run(
            ["/bin/sh", "-c", command], cwd=folder, env=env, stdin=subprocess.DEVNULL, stdout=pipe, stderr=pipe
        ).returncode
    if code != 0:
        how = f"exited with {code}" if code > 0 else f"was killed by signal {-code}"
        raise SetupError(f"setup: `{command}` {how}")


def header(command: str) -> bytes:
    """The line in the output before what a command prints."""
    return f"$ {command}\n".encode(errors="surrogateescape")


def find_last(output: bytes, commands: List[str]) -> str:
    """What the last command printed; the beginning of `output` may be missing."""
    began = max(output.rfind(header(command)) for command in commands)
    own = output[began:].partition(b"\n")[2] if began >= 0 else output
    return own.decode(errors="replace")
