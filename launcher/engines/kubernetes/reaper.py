"""A small process beside the launcher that deletes what a run has made when the launcher itself no longer can."""

from __future__ import annotations

import subprocess
from collections.abc import Sequence
from contextlib import suppress

# It waits for a word. The end of its stdin without one means that the launcher is gone, however that was. What the
# launcher had just asked for may still be made after the first time.
WAIT = 'read word && exit; "$@"; sleep 5; exec "$@"'


class Reaper:
    """`command` deletes everything. A machine that goes as a whole takes the reaper along: then the run's owner in
    the cluster has a deadline."""

    def __init__(self, command: Sequence[str]) -> None:
        """Raises OSError where no process can be started."""
        # A session of its own: what a terminal or a scheduler sends to the launcher's group must not end it too.
        self._process = subprocess.Popen(
            ["sh", "-c", WAIT, "hostmesh-reaper", *command],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )

    def dismiss(self) -> None:
        """All is deleted."""
        with suppress(OSError, subprocess.TimeoutExpired):
            self._process.communicate(b"dismissed\n", timeout=5.0)
