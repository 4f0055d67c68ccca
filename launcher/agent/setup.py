"""Run a cluster's setup commands on this host, once for each content."""

from __future__ import annotations

import os
import socket
import subprocess
import time
from typing import Dict, List, Optional

from launcher.agent.files import lock_within, read_if_there

LOCK_PATIENCE = 1800.0
LAST_BYTES = 8 << 10  # shown are the last lines, once secrets are taken out


class SetupError(Exception):
    """A command failed; `said` is the end of its output, from where it was cut."""

    def __init__(self, problem: str, said: str = "") -> None:
        super().__init__(problem)
        self.said = said


def set_up(commands: List[str], key: str, workdir: Optional[str], env: Dict[str, str], output: str) -> float:
    """Seconds it took; 0 when the same commands had succeeded before under this key."""
    folder = os.path.expanduser(workdir or "~")
    stamp = _stamp_of(folder)
    with open(stamp + ".lock", "w") as lock:  # hosts that share a home folder must not install over each other
        if not lock_within(lock.fileno(), LOCK_PATIENCE):
            raise SetupError("setup: another run has been setting up this host for 30 minutes")
        if read_if_there(stamp) == key.encode():
            return 0.0
        began = time.monotonic()
        for command in commands:
            _run(command, folder, env, output)
        with open(stamp, "w") as file:
            file.write(key)
    return max(time.monotonic() - began, 0.001)


def _stamp_of(folder: str) -> str:
    """Outside the workdir: it says something about the host, not about the code."""
    import hashlib

    place = f"{socket.gethostname()}\0{os.path.realpath(folder)}"
    cache = os.path.join(os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache"), "hostmesh")
    os.makedirs(cache, exist_ok=True)
    return os.path.join(cache, "setup-" + hashlib.sha256(place.encode(errors="surrogateescape")).hexdigest()[:16])


def _run(command: str, folder: str, env: Dict[str, str], output: str) -> None:
    with open(output, "ab", buffering=0) as file:
        file.write(f"$ {command}\n".encode(errors="surrogateescape"))
        began = file.tell()
        code = subprocess.run(
            ["/bin/sh", "-c", command], cwd=folder, env=env, stdin=subprocess.DEVNULL, stdout=file, stderr=file
        ).returncode
    if code != 0:
        how = f"exited with {code}" if code > 0 else f"was killed by signal {-code}"
        raise SetupError(f"setup: `{command}` {how}", _last_words(output, began))


def _last_words(output: str, began: int) -> str:
    with open(output, "rb") as file:
        file.seek(max(began, os.path.getsize(output) - LAST_BYTES))
        return file.read().decode(errors="replace")
