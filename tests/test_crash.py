"""What a process records of an exception that ends it."""

from __future__ import annotations

import re
import time
from typing import Any

import jax
import jax.numpy as jnp
import pytest
from jax.experimental import io_callback

from hostmesh.worker.process.crash import crash_record

LOST = "UNKNOWN: Gloo AllGather failed: [external/gloo/gloo/transport/tcp/pair.cc:538] Connection reset by peer"
SHAPE = jax.ShapeDtypeStruct((), jnp.int32)


def divide(x: Any) -> Any:
    return x // 0 if isinstance(x, int) else divide(int(x))


def refuse(x: Any) -> Any:
    raise ConnectionRefusedError("UNAVAILABLE of my own: connection refused")


def record_of(act: Any) -> dict[str, Any]:
    with pytest.raises(Exception) as caught:
        act()
    return crash_record(caught.value)


CALLBACKS = {
    "pure_callback": lambda f: jax.jit(lambda x: jax.pure_callback(f, SHAPE, x))(jnp.int32(1)).block_until_ready(),
    "io_callback": lambda f: jax.jit(lambda x: io_callback(f, SHAPE, x))(jnp.int32(1)).block_until_ready(),
    "debug.callback": lambda f: (jax.jit(lambda x: jax.debug.callback(f, x))(jnp.int32(1)), jax.effects_barrier()),
}


@pytest.mark.parametrize("kind", CALLBACKS)
def test_an_error_in_a_callback_is_the_users_own(kind: str) -> None:
    record = record_of(lambda: CALLBACKS[kind](divide))
    with pytest.raises(ZeroDivisionError) as plain:
        divide(1)
    assert (record["type"], record["message"]) == ("ZeroDivisionError", str(plain.value))  # Python 3.14's are shorter
    assert re.fullmatch(
        r"\S*test_crash\.py:\d+ in divide \(a callback of \S*test_crash\.py:\d+ in \S+\)", record["place"]
    )
    assert not record["lost_peer"]


def test_a_callback_that_could_not_connect_has_lost_no_peer() -> None:
    record = record_of(lambda: CALLBACKS["pure_callback"](refuse))
    assert record["type"] == "ConnectionRefusedError" and not record["lost_peer"]


def test_a_lost_peer_in_other_words_is_a_lost_peer() -> None:
    def wrapped() -> None:
        try:
            raise ValueError(LOST)
        except ValueError as error:
            raise RuntimeError("step 7 failed") from error

    def in_passing() -> None:
        try:
            raise ValueError(LOST)
        finally:
            {}["no such key"]

    assert record_of(wrapped)["lost_peer"] and record_of(in_passing)["lost_peer"]


def test_an_error_that_hides_a_lost_peer_on_purpose_is_its_own() -> None:
    def replaced() -> None:
        try:
            raise ValueError(LOST)
        except ValueError:
            raise RuntimeError("out of data") from None

    assert not record_of(replaced)["lost_peer"]


def test_processes_that_do_different_things_have_lost_no_peer() -> None:
    text = "UNKNOWN: Gloo AllReduce failed: Received data size doesn't match expected size. Is there a distributed "
    assert not crash_record(ValueError(text + "collective mismatch in your code?"))["lost_peer"]


def test_a_record_says_when() -> None:
    assert abs(crash_record(ValueError())["at"] - time.time()) < 5  # type: ignore[operator]
