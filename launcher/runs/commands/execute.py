"""`launch exec`: a command on the hosts of a run, beside its processes; what it prints has the host before it."""

from __future__ import annotations

import base64
import json
import sys
from pathlib import Path
from typing import Any

from hostmesh.launcher.errors import EXIT_HOST_LOST, EXIT_INTERRUPTED
from hostmesh.launcher.runs.client import ask


def execute(folder: Path, host: str | None, argv: list[str], as_json: bool) -> int:
    """0 if it succeeded everywhere, else the first exit code that is not 0, as a shell tells it."""
    question = {"ask": "exec", "argv": argv, "hosts": None if host is None else [host]}
    code = 0
    printers: dict[str, Printer] = {}
    try:
        for answer in ask(folder, question, timeout=None):
            name = answer.get("host")
            if name is None:
                width = max(map(len, answer["hosts"]))
                printers = {each: Printer(each, width, as_json) for each in answer["hosts"]}
            elif "data" in answer:
                printers[name].feed(base64.b64decode(answer["data"]))
            else:
                printers[name].flush()
                code = code or tell_end(name, answer, as_json)
    except KeyboardInterrupt:
        return EXIT_INTERRUPTED  # the end of our stream ends it on every host
    return code


def tell_end(host: str, answer: dict[str, Any], as_json: bool) -> int:
    code = EXIT_HOST_LOST if answer.get("lost") else int(answer["code"])
    code = 128 - code if code < 0 else code
    if as_json:
        print(json.dumps({"host": host, "exit_code": code, "lost": bool(answer.get("lost"))}), flush=True)
    elif answer.get("lost"):
        print(f"launch: {host} was lost meanwhile", file=sys.stderr)
    elif code:
        print(f"launch: on {host} it ended with {code}", file=sys.stderr)
    return code


class Printer:
    """Whole lines of one host."""

    def __init__(self, host: str, width: int, as_json: bool) -> None:
        self._host, self._as_json = host, as_json
        self._label = f"[{host:<{width}}] ".encode()
        self._half = b""

    def feed(self, data: bytes) -> None:
        *lines, self._half = (self._half + data).split(b"\n")
        for line in lines:
            self._print(line)

    def flush(self) -> None:
        if self._half:
            self._print(self._half)
        self._half = b""

    def _print(self, line: bytes) -> None:
        text = (
            json.dumps({"host": self._host, "line": line.decode(errors="replace")}).encode() if self._as_json else b""
        )
        sys.stdout.buffer.write((text or self._label + line) + b"\n")
        sys.stdout.buffer.flush()
