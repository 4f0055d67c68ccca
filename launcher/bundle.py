"""What a host needs to become an agent, and what its workers need: sources, packed for the stream."""

from __future__ import annotations

import importlib.util
import json
import marshal
import zlib
from collections.abc import Mapping
from importlib.machinery import SourceFileLoader
from pathlib import Path, PurePosixPath

ROOT = Path(__file__).parent.parent
UNCHECKED_HASH = (1).to_bytes(4, "little")

# What a host's Python is started with: short, and safe in whatever shell a login gives. The rest comes on the stream.
BOOTSTRAP = 'import os;exec(eval(os.fdopen(0,"rb",0,closefd=False).readline()))'

# The stream's first line. It is read byte by byte, since what follows must stay where it is; so it is short.
FIRST_LINE = """
import os, sys
if sys.version_info < (3, 9):
    sys.exit("the agent needs Python 3.9 or newer, found %%d.%%d; agent_python: names another" %% sys.version_info[:2])
source = b""
while len(source) < %(size)d:
    source += os.read(0, %(size)d - len(source)) or os._exit(1)
exec(source)
"""


def agent_command(python: str, env: Mapping[str, str]) -> list[str]:
    """For a transport that cannot hand over an environment: what the host is to run."""
    return ["env", *(f"{name}={value}" for name, value in env.items()), python, "-I", "-S", "-c", BOOTSTRAP]


def pack_agent() -> bytes:
    """The stream's beginning: with this an agent can say hello and look around."""
    launcher, worker = ROOT / "launcher", ROOT / "worker"
    sources = {f"launcher/agent/{path.name}": path for path in (launcher / "agent").glob("*.py")}
    sources |= {f"launcher/{name}": launcher / name for name in ("__init__.py", "wire.py")}
    sources |= {f"worker/{name}": worker / name for name in ("__init__.py", "identity.py")}
    body = pack(read_sources(sources))
    source = (launcher / "agent" / "unpack.py").read_bytes() + b"\nbecome_agent()\n"
    first = repr(FIRST_LINE % {"size": len(source)}).encode()
    return b"%s\n%s%016x%s" % (first, source, len(body), body)


def pack_code() -> bytes:
    """What workers import; beside the package what Python itself looks for, and what it is told to run."""
    worker = ROOT / "worker"
    sources = {f"worker/{path.relative_to(worker)}": path for path in worker.rglob("*.py")}
    sources |= {name: sources.pop(f"worker/{name}") for name in ("sitecustomize.py", "start.py")}
    data = {f"worker/{path.relative_to(worker)}": path.read_bytes() for path in worker.rglob("*.npz")}
    return pack({**data, **read_sources(sources)})


def read_sources(sources: Mapping[str, Path]) -> dict[str, bytes]:
    files = {}
    for name, path in sources.items():
        files[name] = path.read_bytes()
        files[importlib.util.cache_from_source(name)] = compiled(path)
    return files


def compiled(path: Path) -> bytes:
    """What this Python cached of a module, as a file that a host with the same Python believes without looking.

    Compiling there would take 40 ms of every start.
    """
    code = SourceFileLoader(path.stem, str(path)).get_code(path.stem)
    return importlib.util.MAGIC_NUMBER + UNCHECKED_HASH + bytes(8) + marshal.dumps(code)


def pack(files: Mapping[str, bytes]) -> bytes:
    """As agent/unpack.py has it."""
    folders = sorted({str(above) for name in files for above in PurePosixPath(name).parents} - {"."})
    listing = json.dumps([folders, [(name, len(data)) for name, data in files.items()]]).encode()
    return zlib.compress(b"\n".join([listing, b"".join(files.values())]), 1)
