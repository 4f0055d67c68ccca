"""What is shown of the reason for a failure: its exception or its last lines, and a hint where there is one; pure."""

from __future__ import annotations

import re

from hostmesh.launcher.supervisor.blame.failures import Failure

# Of commands there is no crash record, but their last words may have a cause that is known here: a Python that does
# without what was put on its PYTHONPATH, and a stdin that there is not.
KNOWN_CAUSES = {
    re.compile(r"Number of processes must be defined"): (
        "A Python that leaves PYTHONPATH alone (-I, -E, -S, or a `hostmesh` of its own) does not know the others: give",
        "initialize() num_processes and process_id, from HOSTMESH_NUM_PROCESSES and HOSTMESH_PROCESS_ID.",
    ),
    re.compile(r"^(EOFError: EOF when reading a line|bdb\.BdbQuit)"): (
        "Its stdin had nothing to read: only `launch --local 1` in the foreground passes its own on to the process.",
    ),
}


def tell_why(failure: Failure, most: int) -> list[str]:
    """In at most `most` lines: the first ones of a message, the last ones of what was printed."""
    crash = failure.crash
    if crash is None:
        known = [lines for words, lines in KNOWN_CAUSES.items() if any(map(words.search, failure.said))]
        hints = [line for lines in known for line in lines]
        return [*failure.last_lines(most - len(hints)), *hints]
    head, *rest = str(crash["message"]).splitlines() or [""]
    if crash["explained"]:
        return _shorten([head, *rest], most)
    place = [f"  {crash['place']}"] if crash["place"] else []
    if crash["hint"]:
        place.append(str(crash["hint"]))
    if failure.said and crash["type"] == "SystemExit" and head.isdecimal():
        # sys.exit(2) explains nothing; what was printed before it may.
        return [*failure.last_lines(most - len(place)), *place]
    return [f"{crash['type']}: {head}".rstrip(": "), *rest[:3], *place]


def _shorten(lines: list[str], most: int) -> list[str]:
    left = len(lines) - (most - 1)
    return lines if left <= 1 else [*lines[: most - 1], f"… and {left} more lines"]
