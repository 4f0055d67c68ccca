"""Bounded read-ahead to the host and then to the devices, by a thread or by the caller that would wait for it."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from typing import Any, Generic, TypeVar

from hostmesh.worker.loading.ahead.failure import Failure

H = TypeVar("H")
D = TypeVar("D")

CLOSING_TIMEOUT = 5.0
# Seconds it takes to wake a thread and to be woken by it again: 60 to 140 µs in a virtual machine.
WAKE_UP = 150e-6


class Average:
    """A moving average of the last few values, infinite before the first."""

    def __init__(self) -> None:
        self.seconds = float("inf")

    def add(self, seconds: float) -> None:
        self.seconds = seconds if self.seconds == float("inf") else self.seconds + (seconds - self.seconds) / 8


class ReadAhead(Generic[H, D]):
    """Items in order, each made in two stages: `read(step)` on the host, then `transfer` to the devices.

    At most `host` items wait to be transferred and `devices` to be taken, including those being made. With 0 of both
    the caller of `take` does all the work. A caller that finds nothing ready does the next piece of work that nobody
    does yet. The thread rests while it would save less time than it costs to wake it. Two reads never run at once: they
    call code of the user's, which may have one file open or one buffer. Nothing here holds an item that was taken.
    """

    def __init__(
        self,
        read: Callable[[int], H],
        transfer: Callable[[H], D],
        steps: Iterator[int],
        host: int,
        devices: int,
    ) -> None:
        self._read, self._transfer, self._steps = read, transfer, steps
        self._room, self._host_room, self._device_room = host + devices, max(1, host), devices
        self._lock = threading.RLock()  # itself, because a condition takes it by way of Python
        self._changed = threading.Condition(self._lock)
        # Items by number, in order; None while an item is being made.
        self._on_host: dict[int, H | None] = {}
        self._on_device: dict[int, D | Failure | None] = {}
        self._next_read = self._next_take = 0
        self._ended = self._closed = False
        self._read_time, self._transfer_time, self._use_time = Average(), Average(), Average()
        self._taken_at: float | None = None
        self._thread = threading.Thread(target=self._run, name="hostmesh read-ahead", daemon=True)
        if self._room:
            self._thread.start()

    def take(self) -> D:
        """Raises StopIteration after the last item, and in its turn what reading or transferring an item raised."""
        if self._taken_at is not None:
            # A long pause, such as an evaluation, says little about the steps to come.
            self._use_time.add(min(time.perf_counter() - self._taken_at, 10 * WAKE_UP))
        with self._lock:
            step = self._claim_all()
        item = self._await_item() if step is None else self._make_now(step)
        self._taken_at = time.perf_counter()
        return item

    def _claim_all(self) -> int | None:
        """The next step, for a caller that does all of its work; None if somebody has begun it or the thread should."""
        if self._on_host or self._on_device or self._ended or (self._room and self._overlap_pays()):
            return None
        return self._next_step()

    def _next_step(self) -> int | None:
        """The caller has to read it; None at the end."""
        step = next(self._steps, None)
        if step is None:
            self._ended = True
            self._changed.notify_all()
        else:
            self._on_host[self._next_read] = None
            self._next_read += 1
        return step

    def _make_now(self, step: int) -> D:
        began = time.perf_counter()
        try:
            on_host = self._read(step)
            read = time.perf_counter()
            with self._lock:
                del self._on_host[self._next_take]
            item = self._transfer(on_host)
        except BaseException as error:
            with self._lock:
                self._fail(self._next_take, Failure.of_raised(error))
            raise
        self._read_time.add(read - began)
        self._transfer_time.add(time.perf_counter() - read)
        self._next_take += 1
        return item

    def _await_item(self) -> D:
        while True:
            with self._lock:
                item = self._on_device.get(self._next_take)
                if item is not None:
                    return self._hand_out(item)
                work = self._claim(for_taker=True)
                if work is None and self._ended and self._next_take == self._next_read:
                    raise StopIteration
                if work is None:
                    self._changed.wait()
            if work is not None:
                work()

    def close(self) -> None:
        """Waits some seconds for the item being made: its read may be stuck, and nothing can interrupt it."""
        with self._lock:
            self._closed = True
            self._changed.notify_all()
        if self._room:
            self._thread.join(CLOSING_TIMEOUT)

    def _hand_out(self, item: D | Failure) -> D:
        if isinstance(item, Failure):
            raise item.take()
        del self._on_device[self._next_take]
        self._next_take += 1
        if self._overlap_pays():
            self._changed.notify_all()
        return item

    def _overlap_pays(self) -> bool:
        """Whether the thread saves time: at most the shorter of the times for making an item and for using it."""
        making = self._read_time.seconds + self._transfer_time.seconds
        return min(making, self._use_time.seconds) > WAKE_UP

    def _run(self) -> None:
        while True:
            with self._lock:
                while (work := self._claim() if self._overlap_pays() else None) is None:
                    if self._closed or (self._ended and not self._on_host):
                        return
                    self._changed.wait()
            assert work is not None
            work()
            work = None  # it holds the item

    def _claim(self, for_taker: bool = False) -> Callable[[], None] | None:
        """The first piece of work that nobody does yet and for which there is room."""
        for number, item in self._on_host.items():
            wanted_now = for_taker and number == self._next_take
            if item is not None and (wanted_now or len(self._on_device) < self._device_room):
                return self._claim_transfer(number, item)
        wanted_now = for_taker and self._next_read == self._next_take
        has_room = len(self._on_host) < self._host_room and len(self._on_host) + len(self._on_device) < self._room
        if self._ended or None in self._on_host.values() or not (wanted_now or has_room):
            return None
        return self._claim_read()

    def _claim_read(self) -> Callable[[], None] | None:
        number, step = self._next_read, self._next_step()
        return None if step is None else lambda: self._do(number, self._read, step, self._on_host, self._read_time)

    def _claim_transfer(self, number: int, item: H) -> Callable[[], None]:
        del self._on_host[number]
        self._on_device[number] = None
        return lambda: self._do(number, self._transfer, item, self._on_device, self._transfer_time)

    def _do(self, number: int, make: Callable[[Any], Any], of: Any, into: dict[int, Any], time_of: Average) -> None:
        began = time.perf_counter()
        try:
            made = make(of)
        except BaseException as error:
            with self._lock:
                self._fail(number, Failure(error))
            return
        with self._lock:
            time_of.add(time.perf_counter() - began)
            into[number] = made
            self._changed.notify_all()

    def _fail(self, number: int, failure: Failure) -> None:
        """Nothing is read after a failure; what was read before it is still handed out, and the thread ends."""
        self._ended = True
        for later in [other for other in self._on_host if other >= number]:
            del self._on_host[later]
        self._on_device[number] = failure
        self._changed.notify_all()
