"""Do something as a user with no rights of its own: root may read and write everything, and tests often run as root."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

NOBODY = 65534


def run_unprivileged(act: Callable[[], Any]) -> str:
    """In a child; the text of what `act` raised, empty when it raised nothing."""
    told, tell = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            if os.geteuid() == 0:
                os.setgroups([])
                os.setgid(NOBODY)
                os.setuid(NOBODY)
            act()
        except Exception as error:
            os.write(tell, str(error).encode("utf-8", "surrogateescape"))
        finally:
            os._exit(0)
    os.close(tell)
    with os.fdopen(told, errors="surrogateescape") as reader:
        text = reader.read()
    os.waitpid(pid, 0)
    return text
