"""Which code a workdir holds: a hash of its Python files, and of what the last sync put there."""

from __future__ import annotations

import json
import os
import stat
from typing import Any, Dict, Iterator, List, Optional, Tuple

from hostmesh.launcher.agent.sync.manifest import STATE_FOLDER, Entry, hash_bytes, new_hash, show, to_bytes, to_text
from hostmesh.launcher.agent.sync.state import RECORDS, Record

MAX_FILES = 5000
MAX_BYTES = 64 << 20
MAX_CHANGES = 100


def read_code(workdir: str) -> Dict[str, Any]:
    """`digest` is None where there is no Python file; `synced` is the launcher's own hash of the tree it sent."""
    synced, changed = read_synced(workdir)
    return {"digest": hash_python_files(workdir), "synced": synced, "changed": changed}


def hash_python_files(workdir: str) -> Optional[str]:
    whole, count, size = new_hash(), 0, 0
    for path in _python_files(workdir):
        with open(path, "rb") as file:
            content = file.read(MAX_BYTES + 1)
        count, size = count + 1, size + len(content)
        if count > MAX_FILES or size > MAX_BYTES:
            raise ValueError(f"{workdir} holds too much code to compare: over {MAX_FILES} Python files or 64 MB")
        name = os.fsencode(os.path.relpath(path, workdir))
        whole.update(b"%d %d " % (len(name), len(content)) + name + content)
    return str(whole.hexdigest()) if count else None


def _python_files(workdir: str) -> Iterator[str]:
    """Sorted by name, without hidden folders and virtual environments, which hold no code of the job's own."""
    for folder, inner, files in os.walk(workdir):
        inner[:] = sorted(name for name in inner if name[0] != "." and not _is_environment(f"{folder}/{name}"))
        yield from (f"{folder}/{name}" for name in sorted(files) if name.endswith(".py"))


def _is_environment(folder: str) -> bool:
    return os.path.exists(f"{folder}/pyvenv.cfg")


def read_synced(workdir: str) -> Tuple[Optional[str], List[str]]:
    """The hash of the last sync's manifest, and the files that were touched since."""
    try:
        with open(os.path.join(workdir, STATE_FOLDER, os.fsdecode(RECORDS))) as file:
            records = {path: Record(*fields) for path, fields in json.load(file).items()}
    except (OSError, ValueError, TypeError, AttributeError):
        return None, []
    manifest, changed = [], []
    for path, record in sorted(records.items()):
        entry, is_same = _compare(os.path.join(os.fsencode(workdir), to_bytes(path)), path, record)
        manifest.append(entry)
        if not is_same:
            changed.append(show(path))
    return hash_bytes(json.dumps(manifest).encode()), changed[:MAX_CHANGES]


def _compare(file: bytes, path: str, record: Record) -> Tuple[Entry, bool]:
    """A file's entry in the manifest, and whether it is untouched. Its change time does not count, since sync does not
    always record it."""
    target = None
    is_same = False
    try:
        status = os.lstat(file)
        if stat.S_ISLNK(status.st_mode):
            target = to_text(os.readlink(file))
        is_same = record._replace(ctime_ns=0) == Record.of(record.digest, status, record.ours)._replace(ctime_ns=0)
    except OSError:
        pass
    return Entry(path, "file" if target is None else "link", record.mode, record.size, record.digest, target), is_same
