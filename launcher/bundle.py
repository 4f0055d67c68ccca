"""What a host needs to become an agent: a few lines for `python -c`, and the source that follows on the stream."""

from __future__ import annotations

import importlib.util
import json
import marshal
import os
import zlib
from collections.abc import Mapping
from importlib.machinery import SourceFileLoader
from pathlib import Path, PurePosixPath

ROOT = Path(__file__).parent.parent
UNCHECKED_HASH = (1).to_bytes(4, "little")

# What a host's Python is started with: short, and safe in whatever shell a login gives. The rest comes on the stream.
BOOTSTRAP = 'import os;exec(eval(os.fdopen(0,"rb",0,closefd=False).readline()))'

# The stream's first line, which is read byte by byte: what follows must stay where it is.
FIRST_LINE = """
import os
source = b""
while len(source) < %d:
    source += os.read(0, %d - len(source)) or os._exit(1)
exec(source)
"""

# Reads 16 hexadecimal digits and that many bytes, writes the files to a private folder and becomes the agent. Unpacked
# the bytes are a line with folders and files, `[["agent", …], [["agent/launcher/wire.py", 5120], …]]`, then the files.
UNPACK = r"""
import sys
if sys.version_info < (3, 9):
    sys.exit("the agent needs Python 3.9 or newer, found %d.%d; agent_python: names another" % sys.version_info[:2])
import json, zlib
def take(n):
    data = b""
    while len(data) < n:
        more = os.read(0, n - len(data))
        if not more:
            sys.exit("the stream ended before the agent had arrived")
        data += more
    return data
listing, _, data = zlib.decompress(take(int(take(16), 16))).partition(b"\n")
base = os.environ.get("TMPDIR") or "/tmp"
base = base if len(base) <= 60 else "/tmp"  # a socket's path has room for 107 bytes
folder = os.path.join(base, "hostmesh-" + os.environ["HOSTMESH_AGENT"])
try:
    os.mkdir(folder, 0o700)
except OSError as error:
    sys.exit("cannot make the folder " + folder + ": " + error.strerror)
folders, files = json.loads(listing)
at = 0
try:
    for name in folders:
        os.mkdir(folder + "/" + name)
    for name, size in files:
        # Compiled for another Python it would only be in the way.
        if not name.endswith(".pyc") or sys.implementation.cache_tag in name:
            file = os.open(folder + "/" + name, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
            rest = memoryview(data)[at:at + size]
            while rest:
                rest = rest[os.write(file, rest):]
            os.close(file)
        at += size
except OSError as error:
    import shutil
    shutil.rmtree(folder, ignore_errors=True)
    sys.exit("cannot write the agent to " + folder + ": " + error.strerror)
sys.dont_write_bytecode = True
sys.path[:0] = [os.path.join(folder, "agent"), os.path.join(folder, "code")]
from launcher.agent.main import main
main(folder)
"""


def host_folder(environ: Mapping[str, str]) -> str:
    """Where the bootstrap, under this environment, puts its files."""
    base = environ.get("TMPDIR") or "/tmp"
    return os.path.join(base if len(base) <= 60 else "/tmp", "hostmesh-" + environ["HOSTMESH_AGENT"])


def agent_command(python: str, env: Mapping[str, str]) -> list[str]:
    """For a transport that cannot hand over an environment: what the host is to run."""
    return ["env", *(f"{name}={value}" for name, value in env.items()), python, "-I", "-S", "-c", BOOTSTRAP]


def pack() -> bytes:
    """`agent/` holds the agent's own modules; `code/` is what workers import, with `start.py` beside the package."""
    launcher, worker = ROOT / "launcher", ROOT / "worker"
    sources = {f"agent/launcher/agent/{path.name}": path for path in (launcher / "agent").glob("*.py")}
    sources |= {f"code/worker/{path.relative_to(worker)}": path for path in worker.rglob("*.py")}
    sources |= {f"agent/launcher/{name}": launcher / name for name in ("__init__.py", "wire.py")}
    sources["code/start.py"] = sources.pop("code/worker/start.py")
    files = {f"code/worker/{path.relative_to(worker)}": path.read_bytes() for path in worker.rglob("*.npz")}
    for name, path in sources.items():
        files[name] = path.read_bytes()
        files[importlib.util.cache_from_source(name)] = compiled(path)
    return wrap(files)


def wrap(files: Mapping[str, bytes]) -> bytes:
    folders = sorted({str(above) for name in files for above in PurePosixPath(name).parents} - {"."})
    listing = json.dumps([folders, [(name, len(data)) for name, data in files.items()]]).encode()
    body = zlib.compress(b"\n".join([listing, b"".join(files.values())]), 1)
    source = UNPACK.encode()
    first = repr(FIRST_LINE % (len(source), len(source))).encode()
    return b"%s\n%s%016x%s" % (first, source, len(body), body)


def compiled(path: Path) -> bytes:
    """What this Python cached of a module, as a file that a host with the same Python believes without looking.

    Compiling there would take 40 ms of every start. Another Python looks for a cache of another name.
    """
    code = SourceFileLoader(path.stem, str(path)).get_code(path.stem)
    return importlib.util.MAGIC_NUMBER + UNCHECKED_HASH + bytes(8) + marshal.dumps(code)
