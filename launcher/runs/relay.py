"""For somebody on another machine: one question from stdin to a run on this one, and its answers to stdout."""

from __future__ import annotations

import os
import socket
import sys
import threading
from pathlib import Path

from hostmesh.launcher.supervisor.control.server import with_address

CHUNK = 1 << 16


def main() -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as link:
        try:
            with_address(Path(sys.argv[1]) / "control", link.connect)
            threading.Thread(target=pass_on, args=(link,), daemon=True).start()
            while data := link.recv(CHUNK):
                sys.stdout.buffer.write(data)
                sys.stdout.buffer.flush()
        except OSError as error:
            sys.exit(f"the run's socket: {error.strerror or error}")


def pass_on(link: socket.socket) -> None:
    """Whoever asked has left when stdin ends, and the run is told so."""
    try:
        while data := os.read(0, CHUNK):
            link.sendall(data)
        link.shutdown(socket.SHUT_WR)
    except OSError:
        pass  # the run has ended, which the other direction notices


if __name__ == "__main__":
    main()
