"""Asks a store again where the answer may be better next time, with limits, and checks what it sends."""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

from hostmesh.worker.remote.failures import Kind, StoreFailure, as_store_error
from hostmesh.worker.remote.stores.base import RemoteFile, Store

Answer = TypeVar("Answer")


@dataclass(frozen=True)
class Limits:
    """After the first try come others, after pauses that double, each cut at random so that processes do not ask all at
    once. Nothing is tried again that would take longer than `seconds` altogether."""

    tries: int = 8
    first_pause: float = 0.1
    longest_pause: float = 5.0
    seconds: float = 120.0

    def pause(self, tried: int) -> float:
        return min(self.longest_pause, self.first_pause * 2.0 ** (tried - 1)) * random.uniform(0.5, 1.0)


LIMITS = Limits()


def with_retries(
    ask: Callable[[], Answer], url: str, where: str, gives_up: tuple[Kind, ...] = (), limits: Limits | None = None
) -> Answer:
    """What the store answers, or a StoreError that says why not. The kinds in `gives_up` are left to the caller."""
    limits, began, tried = limits or LIMITS, time.monotonic(), 0
    while True:
        tried += 1
        try:
            return ask()
        except StoreFailure as failure:
            if failure.kind in gives_up:
                raise
            spent, pause = time.monotonic() - began, limits.pause(tried)
            may_pass = failure.kind is Kind.NO_ANSWER
            if not may_pass or tried >= limits.tries or spent + pause > limits.seconds:
                raise as_store_error(failure, url, where, tried, spent) from None
        time.sleep(pause)


def fetch(store: Store, file: RemoteFile, start: int, stop: int) -> bytes | bytearray:
    """Exactly these bytes, of the version that was opened."""

    def read() -> bytes | bytearray:
        data = store.read(file, start, stop)
        if len(data) != stop - start:
            # A connection that was cut; were the file shorter now, its version would be another one.
            raise StoreFailure(Kind.NO_ANSWER, f"{len(data):,} of {stop - start:,} bytes came")
        return data

    if stop <= start:
        return b""
    try:
        return with_retries(read, file.url, file.where, (Kind.NO_FILE, Kind.CHANGED))
    except StoreFailure:
        raise _explain(store, file) from None


def _explain(store: Store, file: RemoteFile) -> Exception:
    """Why a file that was there is not: it is gone, or another version is in its place."""
    try:
        found = with_retries(lambda: store.look(file.url), file.url, file.where, (Kind.NO_FILE,))
    except StoreFailure:
        return as_store_error(StoreFailure(Kind.NO_FILE, "any more: it was there when it was opened"), file.url, "")
    sizes = f"it had {file.size:,} bytes then, now {found.size:,}" if found.size != file.size else "other bytes"
    return as_store_error(StoreFailure(Kind.CHANGED, sizes), file.url, "")
