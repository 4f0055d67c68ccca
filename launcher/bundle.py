"""What a host needs to become an agent: a few lines for `python -c`, and the source that follows on the stream."""

from __future__ import annotations

import json
import zlib
from pathlib import Path

ROOT = Path(__file__).parent.parent

# Reads 16 hexadecimal digits and that many bytes, writes the files to a private folder, becomes the agent.
BOOTSTRAP = """
import json, os, sys, zlib
def take(n):
    data = b""
    while len(data) < n:
        more = os.read(0, n - len(data))
        if not more:
            sys.exit("the stream ended before the agent had arrived")
        data += more
    return data
files = json.loads(zlib.decompress(take(int(take(16), 16))))
folder = os.path.join(os.environ.get("TMPDIR") or "/tmp", "hostmesh-" + os.environ["HOSTMESH_AGENT"])
os.mkdir(folder, 0o700)
for name, text in files.items():
    path = os.path.join(folder, name)
    os.makedirs(os.path.dirname(path), exist_ok=True)
    with open(path, "w", encoding="utf-8") as file:
        file.write(text)
sys.dont_write_bytecode = True
sys.path[:0] = [os.path.join(folder, "agent"), os.path.join(folder, "code")]
from launcher.agent.main import main
main(folder)
"""


def pack() -> bytes:
    """`agent/` holds the agent's own modules; `code/` is what workers import, with `start.py` beside the package."""
    launcher, worker = ROOT / "launcher", ROOT / "worker"
    files = {"agent/launcher/__init__.py": "", "agent/launcher/wire.py": (launcher / "wire.py").read_text("utf-8")}
    for path in sorted((launcher / "agent").glob("*.py")):
        files[f"agent/launcher/agent/{path.name}"] = path.read_text("utf-8")
    for path in sorted(worker.rglob("*.py")):
        files[f"code/worker/{path.relative_to(worker)}"] = path.read_text("utf-8")
    files["code/start.py"] = files.pop("code/worker/start.py")
    body = zlib.compress(json.dumps(files).encode(), 1)
    return b"%016x" % len(body) + body
