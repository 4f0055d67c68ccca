"""The code that is shipped to a host, packed for the stream: the agent's, and the package that workers import."""

from __future__ import annotations

import importlib.util
import json
import marshal
import os
import zlib
from collections.abc import Iterator, Mapping
from importlib.machinery import SourceFileLoader
from types import MappingProxyType

PACKAGE = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
OF_THE_AGENT = (
    "launcher/__init__.py",
    "launcher/protocol",
    "launcher/agent",
    "worker/__init__.py",
    "worker/identity.py",
    "worker/audit/__init__.py",
    "worker/audit/last_word.py",
    "worker/compiling/__init__.py",
    "worker/compiling/names.py",
    "worker/compiling/store.py",
    "worker/recording/__init__.py",
    "worker/recording/record.py",
)
# What the nursery imports beside jax (and what lies beside the package): it need not wait for the rest to be written.
FIRST_MODULES = (
    *("", "__init__.py", "worker/__init__.py", "worker/distributed.py", "worker/errors.py", "worker/identity.py"),
    "worker/preemption.py",
)
FIRST_FOLDERS = ("worker/compiling/", "worker/process/", "worker/recording/")
# Levels of zlib. To compress takes longer than a pipe of this machine does with it as it is.
COMPRESSED, STORED = 1, 0
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


def pack_agent(level: int = COMPRESSED) -> bytes:
    """The beginning of the stream, which makes a host's Python an agent. It needs nothing of what `hostmesh` offers to
    scripts."""
    body = pack({"hostmesh/__init__.py": b"", **read_sources(find_modules(*OF_THE_AGENT))}, level=level)
    source = read_file(f"{PACKAGE}/launcher/agent/unpack.py") + b"\nbecome_agent()\n"
    first = repr(FIRST_LINE % {"size": len(source)}).encode()
    return b"%s\n%s%016x%s" % (first, source, len(body), body)


def pack_code(level: int = COMPRESSED) -> bytes:
    """The package that workers import.

    Beside it lie two modules that Python finds by their plain names: sitecustomize.py, which it imports at its start,
    and start.py, which the agent has it run.
    """
    sources = find_modules("__init__.py", "__main__.py", "worker")
    sources |= {name: sources.pop(f"hostmesh/worker/process/{name}") for name in ("sitecustomize.py", "start.py")}
    first = {name: path for name, path in sources.items() if is_wanted_first(name)}
    rest = {name: path for name, path in sources.items() if name not in first}
    data = {name: read_file(path) for name, path in find_files("worker", ".npz")}
    return pack(read_sources(first), {**read_sources(rest), **data}, level=level)


def is_wanted_first(name: str) -> bool:
    inside = name.partition("hostmesh/")[2]
    return inside in FIRST_MODULES or inside.startswith(FIRST_FOLDERS)


def find_modules(*parts: str) -> dict[str, str]:
    """The named modules and all modules in the named folders: name in the package -> file on this machine."""
    found: dict[str, str] = {}
    for part in parts:
        found |= {f"hostmesh/{part}": f"{PACKAGE}/{part}"} if part.endswith(".py") else dict(find_files(part, ".py"))
    return found


def find_files(folder: str, ending: str) -> Iterator[tuple[str, str]]:
    for above, folders, names in os.walk(os.path.join(PACKAGE, folder)):
        folders[:] = [name for name in folders if name != "__pycache__"]
        for name in names:
            if name.endswith(ending):
                yield f"hostmesh{above[len(PACKAGE) :]}/{name}", f"{above}/{name}"


def read_sources(sources: Mapping[str, str]) -> dict[str, bytes]:
    files = {}
    for name, path in sources.items():
        files[name] = read_file(path)
        files[importlib.util.cache_from_source(name)] = compiled(path)
    return files


def read_file(path: str) -> bytes:
    with open(path, "rb", buffering=0) as file:
        return file.read()


def compiled(path: str) -> bytes:
    """A module's .pyc file, marked so that a host with the same Python uses it without comparing it to the source.

    Compiling on the host would take 40 ms of every start.
    """
    code = read_cached(path) or marshal.dumps(SourceFileLoader("", path).get_code(""))
    return importlib.util.MAGIC_NUMBER + UNCHECKED_HASH + bytes(8) + code


def read_cached(path: str) -> bytes | None:
    """The code in the .pyc file that this Python has written for a module, if it was made from the source as it is now.

    Such a file begins with a magic number, flags (0), and the source's time of change and size.
    """
    try:
        data, source = read_file(importlib.util.cache_from_source(path)), os.stat(path)
    except OSError:
        return None
    fields = (0, int(source.st_mtime) & 0xFFFFFFFF, source.st_size & 0xFFFFFFFF)
    header = importlib.util.MAGIC_NUMBER + b"".join(field.to_bytes(4, "little") for field in fields)
    return data[16:] if data[:16] == header else None


def pack(first: Mapping[str, bytes], rest: Mapping[str, bytes] = MappingProxyType({}), *, level: int) -> bytes:
    """In the format that agent/unpack.py describes; `level` is zlib's."""
    files = {**first, **rest}
    above = [name.split("/")[:-1] for name in files]
    folders = sorted({"/".join(parts[:count]) for parts in above for count in range(1, len(parts) + 1)})
    listing = json.dumps([folders, [(name, len(data)) for name, data in files.items()], len(first)]).encode()
    return zlib.compress(b"\n".join([listing, b"".join(files.values())]), level)
