"""What compiled programs and their folders are called on a host; stdlib only, Python 3.9 or newer.

The launcher knows these names, and makes none: it does without hashlib, which takes some milliseconds of a start.
"""

from __future__ import annotations

import os
import re

# A larger program is neither kept nor carried.
MAX_ENTRY = 1 << 30
ENTRY = re.compile("[0-9a-f]{40}")
FOLDER = re.compile(r"jax-[A-Za-z0-9+_][A-Za-z0-9+_.-]{0,150}")
CPU_INFO = "/proc/cpuinfo"
# What tells one kind of processor from another: x86's names, then Arm's.
CPU_FIELDS = ("vendor_id", "cpu family", "model", "flags", "CPU implementer", "CPU part", "Features")


def name_entry(key: str) -> str:
    """jax's key holds the name of a function, which may be long and have any letters."""
    return _digest(key.encode("utf-8", "replace"), 20)


def name_folder(jax: str, jaxlib: str) -> str:
    """For programs of these versions, on processors as this machine has them."""
    return re.sub("[^A-Za-z0-9+_.-]", "_", f"jax-{jax}-{jaxlib}")[:100] + f"-{describe_machine()}"


def is_for_this_machine(folder: str) -> bool:
    return FOLDER.fullmatch(folder) is not None and folder.endswith(f"-{describe_machine()}")


def describe_machine(cpu_info: str = CPU_INFO) -> str:
    """A fingerprint of what the processor can do: code for another kind may not run here.

    Only the beginning is read, which is of the first core: all of it takes long where there are hundreds.
    """
    try:
        with open(cpu_info, "rb") as file:
            text = file.read(16 << 10).decode("utf-8", "replace").partition("\n\n")[0]
    except OSError:
        text = ""
    pairs = (line.partition(":") for line in text.splitlines())
    fields = {name.strip(): value.strip() for name, _, value in pairs}
    known = [os.uname().machine, *(fields.get(name, "") for name in CPU_FIELDS)]
    return _digest("\n".join(known).encode(), 6)


def _digest(data: bytes, size: int) -> str:
    import hashlib

    return hashlib.blake2b(data, digest_size=size).hexdigest()
