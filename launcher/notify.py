"""`--notify`: tell a URL or a command how a run has ended; whatever comes of that changes no exit code."""

from __future__ import annotations

import subprocess
import time
from collections.abc import Callable

TRIES = 3
PAUSE = 1.0  # seconds before the second try, doubled each time
URL_TIMEOUT, COMMAND_TIMEOUT = 10.0, 60.0


def notify(target: str, result: bytes, note: Callable[[str], None]) -> None:
    """`result` is what result.json has: the body of a POST, or the standard input of a command."""
    send = post if is_url(target) else execute
    for attempt in range(1, TRIES + 1):
        problem = send(target, result)
        if problem is None:
            return
        if attempt < TRIES:
            time.sleep(PAUSE * 2 ** (attempt - 1))
    note(f"launch: --notify failed {TRIES} times: {problem}")


def is_url(target: str) -> bool:
    return target.startswith(("http://", "https://"))


def post(url: str, result: bytes) -> str | None:
    """What went wrong."""
    import urllib.request
    from urllib.error import URLError

    request = urllib.request.Request(url, result, {"Content-Type": "application/json"}, method="POST")
    try:
        with urllib.request.urlopen(request, timeout=URL_TIMEOUT):
            return None
    except URLError as error:
        return str(error.reason if not hasattr(error, "code") else f"HTTP {error.code}")
    except (OSError, ValueError) as error:
        return str(error)


def execute(command: str, result: bytes) -> str | None:
    """What went wrong."""
    try:
        done = subprocess.run(["/bin/sh", "-c", command], input=result, capture_output=True, timeout=COMMAND_TIMEOUT)
    except subprocess.TimeoutExpired:
        return f"it did not end within {COMMAND_TIMEOUT:g} s"
    except OSError as error:
        return error.strerror or str(error)
    if done.returncode == 0:
        return None
    said = done.stderr.decode(errors="replace").strip().rpartition("\n")[2]
    return f"it ended with {done.returncode}" + (f": {said}" if said else "")
