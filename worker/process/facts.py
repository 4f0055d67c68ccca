"""Facts that a process sends to the agent on its host; sending never holds up training."""

from __future__ import annotations

import atexit
import json
import os
import socket
import time

from hostmesh.worker.identity import FACTS_SOCKET, PROCESS_ID

MAX_FACT = 128 << 10
TIMEOUT = 1.0

dropped_facts = 0  # how many the agent did not get; sent with the next fact, and at the end


def send_fact(name: str, *, must_arrive: bool = False, **detail: object) -> None:
    """A fact is dropped and counted when the agent does not keep up; one that must arrive waits for a second."""
    deadline = time.monotonic() + (TIMEOUT if must_arrive else 0)
    while not offer_fact(name, **detail):
        if time.monotonic() >= deadline:
            note_dropped()
            return
        time.sleep(0.01)


def offer_fact(name: str, **detail: object) -> bool:
    """False when the agent does not keep up: the caller may offer the fact again later."""
    address = os.environ.get(FACTS_SOCKET)
    if address is None:
        return True
    fact = {
        "name": name,
        "process_id": int(os.environ[PROCESS_ID]),
        "pid": os.getpid(),
        "detail": detail,
        "dropped": dropped_facts,
    }
    message = json.dumps(fact, ensure_ascii=False).encode("utf-8", "replace")
    if len(message) > MAX_FACT:
        note_dropped()
        return True
    return _try_send(address, message)


def note_dropped() -> None:
    global dropped_facts
    if not dropped_facts:
        atexit.register(send_fact, "leaving", must_arrive=True)
    dropped_facts += 1


def _try_send(address: str, message: bytes) -> bool:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as channel:
        channel.setblocking(False)
        try:
            channel.sendto(message, address)
        except OSError:
            return False
    return True
