import json
import random
import time
from collections.abc import Iterable

import pytest

from hostmesh.launcher.output.redact import Redactor, hide_in_urls, redact_json, redact_text

PEM = "-----BEGIN KEY-----\nMIIE\"v'QIB\\ADé\n-----END KEY-----\n"


def redact_chunks(chunks: Iterable[bytes], secrets: Iterable[str]) -> bytes:
    redactor = Redactor(secrets)
    return b"".join(redactor.feed(chunk) for chunk in chunks) + redactor.flush()


def single_bytes(data: bytes) -> list[bytes]:
    return [data[i : i + 1] for i in range(len(data))]


def random_chunks(data: bytes, rng: random.Random) -> list[bytes]:
    cuts = sorted(rng.choices(range(len(data) + 1), k=rng.randrange(6)))
    return [data[a:b] for a, b in zip([0, *cuts], [*cuts, len(data)], strict=True)]


def redact_slowly(data: bytes, secrets: list[str]) -> bytes:
    """Marks each byte of each occurrence; overlapping occurrences become one."""
    spans = sorted(
        (at, at + len(secret))
        for secret in map(str.encode, filter(None, secrets))
        for at in range(len(data))
        if data.startswith(secret, at)
    )
    out, end = b"", 0
    for start, stop in spans:
        if start >= end:
            out += data[end:start] + b"[redacted]"
        end = max(end, stop)
    return out + data[end:]


@pytest.mark.parametrize(
    ("secrets", "text", "wanted"),
    [
        (["abc", "abcdef"], "abcdef", "[redacted]"),
        (["abc", "abcdef"], "abcdeg", "[redacted]deg"),
        (["abcdef", "abc"], "xabcdabcdefx", "x[redacted]d[redacted]x"),
        (["aab"], "aaab", "a[redacted]"),
        (["aba"], "ababa.aba", "[redacted].[redacted]"),
        (["abc", "bcdef"], "abcdefg", "[redacted]g"),
        (["abcd", "bc"], "abcabcd", "a[redacted][redacted]"),
        (["ab"], "abab", "[redacted][redacted]"),
        (["", "ab"], "cab", "c[redacted]"),
        (["redacted", "x"], "x redacted", "[redacted] [redacted]"),
        (["ab"], "a", "a"),
    ],
)
def test_difficult_secrets_are_redacted_byte_by_byte_too(secrets: list[str], text: str, wanted: str) -> None:
    assert redact_text(text, secrets) == wanted
    assert redact_chunks([text.encode()], secrets) == wanted.encode()
    assert redact_chunks(single_bytes(text.encode()), secrets) == wanted.encode()


def test_chunk_boundaries_never_change_the_result() -> None:
    rng = random.Random(7)
    for _ in range(5000):
        alphabet = "ab" if rng.random() < 0.5 else "abc"
        secrets = ["".join(rng.choices(alphabet, k=rng.randrange(6))) for _ in range(rng.randrange(1, 4))]
        data = "".join(rng.choices(alphabet, k=rng.randrange(30))).encode()
        wanted = redact_slowly(data, secrets)
        for chunks in ([data], single_bytes(data), random_chunks(data, rng)):
            assert redact_chunks(chunks, secrets) == wanted, (secrets, chunks)


def test_without_secrets_the_same_object_comes_back() -> None:
    data = b"x" * 1000
    assert Redactor([]).feed(data) is data
    assert Redactor([""]).feed(data) is data


def test_bytes_that_cannot_begin_a_secret_are_not_held_back() -> None:
    redactor = Redactor(["hunter2"])
    assert redactor.feed(b"password: hu") == b"password: "
    assert redactor.feed(b"man\n") == b"human\n"


def test_no_more_is_held_back_than_the_longest_secret() -> None:
    redactor = Redactor(["a" * 100, "a" * 99 + "b"])
    for _ in range(2000):
        redactor.feed(b"a" * 7)
        assert len(redactor._held) < 100


@pytest.mark.parametrize("quote", [str, json.dumps, repr, lambda v: json.dumps(v, ensure_ascii=False)])
def test_a_key_of_several_lines_is_found_in_its_escaped_forms(quote) -> None:
    shown = quote(PEM)
    data = f"config: {shown}!".encode()
    wanted = f"config: {shown}!".replace(shown.strip("'\""), "[redacted]")
    assert redact_chunks(single_bytes(data), [PEM]).decode() == wanted
    assert redact_text(data.decode(), [PEM]) == wanted


def test_a_secret_that_is_not_utf8_is_redacted_as_its_bytes() -> None:
    assert redact_chunks([b"<caf\xe9>"], [b"caf\xe9".decode("utf-8", "surrogateescape")]) == b"<[redacted]>"


def test_json_is_redacted_at_every_depth_and_in_keys() -> None:
    value = {"s3cret": [("a s3cret", 1), {"x": None, "y": "s3cret!"}], 2: True}
    wanted = {"[redacted]": [("a [redacted]", 1), {"x": None, "y": "[redacted]!"}], 2: True}
    assert redact_json(value, (secret for secret in ["s3cret"])) == wanted


def test_text_with_lone_surrogates_passes() -> None:
    assert redact_text("\ud800 s3cret \udc80", ["s3cret"]) == "\ud800 [redacted] \udc80"


def test_an_address_is_looked_for_in_long_values_without_waiting() -> None:
    began = time.monotonic()
    for text in (
        "x" * 100_000,
        "http://h/" + "x" * 100_000,
        "http://h?" + "secret" * 20_000,
        "://" * 50_000,
        "-token" * 20_000,
    ):
        assert hide_in_urls(text) == text
    assert time.monotonic() - began < 2
    assert hide_in_urls("https://me:pw@h/a?my-token=pw&b=1 and a@b") == "https://…@h/a?my-token=…&b=1 and a@b"
