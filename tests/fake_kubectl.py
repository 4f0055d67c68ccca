"""A stand-in for kubectl: objects are files in the folder FAKE_KUBECTL, and `exec` runs on this machine."""

from __future__ import annotations

import fcntl
import json
import os
import sys
from pathlib import Path
from typing import Any

STATE = Path(os.environ["FAKE_KUBECTL"])
RUNNING = {"phase": "Running", "containerStatuses": [{"name": "host", "state": {"running": {}}}]}


def main(argv: list[str]) -> int:
    with (STATE / "calls").open("a") as calls:
        calls.write(json.dumps(argv) + "\n")
    if "--context=nowhere" in argv:
        return fail('error: context "nowhere" does not exist')
    words = [word for word in argv if not word.startswith("--")]
    lock = (STATE / "lock").open("w")
    if words[0] != "exec":
        fcntl.flock(lock, fcntl.LOCK_EX)  # pods are made several at once
    return {"create": create, "get": get, "delete": delete, "patch": lambda *_: 0, "exec": run}[words[0]](words, argv)


def fail(text: str) -> int:
    print(text, file=sys.stderr)
    return 1


def objects() -> dict[Path, dict[str, Any]]:
    return {path: json.loads(path.read_text()) for path in sorted(STATE.glob("*.object"))}


def path_of(kind: str, name: str) -> Path:
    return STATE / f"{kind.lower()}-{name}.object"


def create(words: list[str], argv: list[str]) -> int:
    made = json.load(sys.stdin)
    if "--namespace=missing" in argv:
        return fail('Error from server (NotFound): namespaces "missing" not found')
    quota = STATE / "quota"
    if made["kind"] == "Pod" and quota.exists():
        quota.unlink()
        return fail('Error from server (Forbidden): pods "x" is forbidden: exceeded quota: small')
    made["metadata"]["uid"] = f"uid-{len(objects())}"
    path_of(made["kind"], made["metadata"]["name"]).write_text(json.dumps(made))
    print(json.dumps(made))
    return 0


def next_status() -> dict[str, Any]:
    """The first line of `statuses` counts, and is taken away when another one follows."""
    file = STATE / "statuses"
    lines = file.read_text().splitlines() if file.exists() else []
    if len(lines) > 1:
        file.write_text("\n".join(lines[1:]))
    found: dict[str, Any] = json.loads(lines[0]) if lines else RUNNING
    return found


def get(words: list[str], argv: list[str]) -> int:
    if words[1] == "pods":
        status = next_status()
        pods = [each for each in objects().values() if each["kind"] == "Pod"]
        print(json.dumps({"items": [{**each, "status": status} for each in pods]}))
        return 0
    path = path_of(words[1], words[2])
    if not path.exists():
        return fail(f'Error from server (NotFound): {words[1]}s "{words[2]}" not found')
    after = STATE / "after"
    status = json.loads(after.read_text()) if after.exists() else RUNNING
    print(json.dumps({**json.loads(path.read_text()), "status": status}))
    return 0


def delete(words: list[str], argv: list[str]) -> int:
    for path in objects():
        path.unlink()
    return 0


def run(words: list[str], argv: list[str]) -> int:
    command = argv[argv.index("--") + 1 :]
    os.execvp(command[0], command)


sys.exit(main(sys.argv[1:]))
