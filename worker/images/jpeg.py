"""What the bytes of a JPEG file say of themselves: its size, and whether it has its end."""

from __future__ import annotations

START, END, SEGMENT = b"\xff\xd8", b"\xff\xd9", 0xFF
# Some programs write a few bytes after the end.
AFTER_END = 64
# Of the segments that begin a frame; three in the same range are tables.
FRAMES = {*range(0xC0, 0xD0)} - {0xC4, 0xC8, 0xCC}
# Segments without a length.
ALONE = {0x01, *range(0xD0, 0xD9)}


def find_size(data: bytes) -> tuple[int, int] | None:
    """Width and height; None of what is no JPEG file, or a broken one."""
    if data[:2] != START:
        return None
    at = 2
    while at + 9 <= len(data) and data[at] == SEGMENT:
        kind = data[at + 1]
        if kind in FRAMES:
            return int.from_bytes(data[at + 7 : at + 9], "big"), int.from_bytes(data[at + 5 : at + 7], "big")
        if kind == SEGMENT:
            at += 1  # padding
        else:
            at += 2 if kind in ALONE else 2 + int.from_bytes(data[at + 2 : at + 4], "big")
    return None


def is_whole(data: bytes) -> bool:
    """False of a JPEG file without an end: OpenCV would make the missing part grey, without a word."""
    return data[:2] != START or END in data[-AFTER_END:]
