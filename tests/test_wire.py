"""The agent protocol survives every way a stream can cut or dirty it."""

from __future__ import annotations

import random

import pytest

from hostmesh.launcher.protocol import wire

MESSAGES = [
    wire.Hello(pid=7, guardian_pid=6, python="3.9.1", addresses=["10.0.0.7"]),
    wire.Spawn(3, {"NAME": "v\udcff\n\u2028é"}, ["train.py", "a b", ""], True),
    wire.Output(3, bytes(range(256)) * 300),
    wire.Output(4),
    wire.Fact("crash", 2, {"type": "ValueError", "lines": [1, None]}),
    wire.Beat(),
    wire.Bye([]),
]


@pytest.mark.parametrize("seed", range(20))
def test_messages_arrive_however_the_bytes_are_cut(seed: int) -> None:
    stream = wire.MAGIC + b"".join(map(wire.encode, MESSAGES))
    decoder, choose = wire.Decoder(after_magic=True), random.Random(seed)
    received, position = [], 0
    while position < len(stream):
        size = choose.choice([1, 2, 7, 4096, 100_000])
        received += decoder.feed(stream[position : position + size])
        position += size
    assert received == MESSAGES


def test_noise_before_the_magic_is_skipped_and_kept_for_the_message() -> None:
    decoder = wire.Decoder(after_magic=True)
    assert decoder.feed(b"Welcome to Debian!\n\x00hostmesh-ag") == []
    assert b"Welcome" in decoder.noise[0]
    assert decoder.feed(b"ain\n" + wire.MAGIC + wire.encode(wire.Beat())) == [wire.Beat()]


@pytest.mark.parametrize(
    "stream",
    [
        b"\xff" * 8,
        wire.LENGTHS.pack(4, 0) + b"nope",
        wire.LENGTHS.pack(10, 0) + b'["Nope",{}]'[:10],
        wire.LENGTHS.pack(19, 0) + b'["Beat",{"extra":1}]'[:19],
        wire.LENGTHS.pack(20, 0) + b'["Beat",{"extra":1}]',
        wire.LENGTHS.pack(2, 0) + b"{}",
    ],
)
def test_what_is_not_a_frame_is_refused(stream: bytes) -> None:
    with pytest.raises(wire.WireError):
        wire.Decoder().feed(stream)


def test_endless_noise_is_refused() -> None:
    decoder = wire.Decoder(after_magic=True)
    with pytest.raises(wire.WireError, match="no agent answered"):
        for _ in range(100):
            decoder.feed(b"yes\n" * 10_000)


def test_random_bytes_never_break_the_decoder_otherwise() -> None:
    choose = random.Random(0)
    for _ in range(2000):
        good = bytearray(wire.encode(choose.choice(MESSAGES)))
        good[choose.randrange(min(40, len(good)))] = choose.randrange(256)
        try:
            wire.Decoder().feed(bytes(good))
        except wire.WireError:
            pass
