"""The code that is shipped to a host, packed for the stream: the agent's, and the package that workers import."""

from __future__ import annotations

import importlib.util
import json
import marshal
import zlib
from collections.abc import Iterator, Mapping
from importlib.machinery import SourceFileLoader
from pathlib import Path, PurePosixPath

PACKAGE = Path(__file__).parent.parent
OF_THE_AGENT = (
    "__init__.py",
    "launcher/__init__.py",
    "launcher/framing.py",
    "launcher/wire.py",
    "launcher/agent",
    "worker/__init__.py",
    "worker/identity.py",
)
UNCHECKED_HASH = (1).to_bytes(4, "little")

# The program that a host's Python is started with. It is short, and safe to quote in any shell; the rest comes on the
# stream.
BOOTSTRAP = 'import os;exec(eval(os.fdopen(0,"rb",0,closefd=False).readline()))'

# The stream's first line. It is short because it is read byte by byte: what follows it must stay in the stream.
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
    """The command that starts an agent, for transports that cannot hand over an environment."""
    return ["env", *(f"{name}={value}" for name, value in env.items()), python, "-I", "-S", "-c", BOOTSTRAP]


def pack_agent() -> bytes:
    """The beginning of the stream, which makes a host's Python an agent."""
    body = pack(read_sources(find_modules(*OF_THE_AGENT)))
    source = (PACKAGE / "launcher" / "agent" / "unpack.py").read_bytes() + b"\nbecome_agent()\n"
    first = repr(FIRST_LINE % {"size": len(source)}).encode()
    return b"%s\n%s%016x%s" % (first, source, len(body), body)


def pack_code() -> bytes:
    """The package that workers import. Beside it lie two modules that Python finds by their plain names:
    sitecustomize.py, which it imports at its start, and start.py, which the agent has it run."""
    sources = find_modules("__init__.py", "worker")
    sources |= {name: sources.pop(f"hostmesh/worker/process/{name}") for name in ("sitecustomize.py", "start.py")}
    data = {name: path.read_bytes() for name, path in find_files("worker", "*.npz")}
    return pack({**data, **read_sources(sources)})


def find_modules(*parts: str) -> dict[str, Path]:
    """The named modules and all modules in the named folders: name in the package -> file on this machine."""
    found: dict[str, Path] = {}
    for part in parts:
        found |= {f"hostmesh/{part}": PACKAGE / part} if part.endswith(".py") else dict(find_files(part, "*.py"))
    return found


def find_files(folder: str, pattern: str) -> Iterator[tuple[str, Path]]:
    for path in (PACKAGE / folder).rglob(pattern):
        yield f"hostmesh/{path.relative_to(PACKAGE)}", path


def read_sources(sources: Mapping[str, Path]) -> dict[str, bytes]:
    files = {}
    for name, path in sources.items():
        files[name] = path.read_bytes()
        files[importlib.util.cache_from_source(name)] = compiled(path)
    return files


def compiled(path: Path) -> bytes:
    """A module's .pyc file, marked so that a host with the same Python uses it without comparing it to the source.

    Compiling on the host would take 40 ms of every start.
    """
    code = SourceFileLoader(path.stem, str(path)).get_code(path.stem)
    return importlib.util.MAGIC_NUMBER + UNCHECKED_HASH + bytes(8) + marshal.dumps(code)


def pack(files: Mapping[str, bytes]) -> bytes:
    """In the format that agent/unpack.py describes."""
    folders = sorted({str(above) for name in files for above in PurePosixPath(name).parents} - {"."})
    listing = json.dumps([folders, [(name, len(data)) for name, data in files.items()]]).encode()
    return zlib.compress(b"\n".join([listing, b"".join(files.values())]), 1)
