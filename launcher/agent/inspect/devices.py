"""This host's accelerators: how many there are, who holds them, locks left behind; found without opening any."""

from __future__ import annotations

import os
import re
import stat
from typing import Any, Dict, Iterator, List, Mapping, Optional

# The folders of device files and the names of these, by kind; kinds are named as JAX_PLATFORMS names them.
FILES = {
    "tpu": {"/dev": r"accel\d+", "/dev/vfio": r"\d+"},
    "cuda": {"/dev": r"nvidia\d+"},
    "rocm": {"/dev/dri": r"renderD\d+"},
}
# Every program that computes on a GPU opens these; monitors, displays and the persistence daemon do not.
COMPUTE_FILES = {"cuda": "/dev/nvidia-uvm", "rocm": "/dev/kfd"}
# Variables that say which devices a program sees. Of AMD's two, ROCR picks among all devices, and HIP among those that
# ROCR leaves.
VISIBLE = ("CUDA_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES")
TPU_LOCK = "/tmp/libtpu_lockfile"
WORDS_SHOWN = 3
MAX_COMMAND = 1000  # the launcher redacts it and shows less


def count_devices(root: str, env: Mapping[str, str]) -> Dict[str, int]:
    counts = {kind: len(_files(kind, root)) for kind in FILES}
    cuda, rocr, hip = (env.get(name) for name in VISIBLE)
    if cuda is not None:
        counts["cuda"] = _count_visible(cuda, counts["cuda"])
    if rocr is not None:
        counts["rocm"] = _count_visible(rocr, counts["rocm"])
    # HIP reads CUDA's variable if its own is not set; it takes an empty variable for one that is not set.
    if listed := hip or cuda:
        counts["rocm"] = _count_visible(listed, counts["rocm"])
    return counts


def find_holders(root: str) -> Dict[str, Any]:
    """Processes that have device files open; `unseen` counts those whose files this user may not see."""
    wanted = {file for kind in FILES for file in _files(kind, root)}
    holders: List[Dict[str, Any]] = []
    unseen = 0
    for pid in _pids(root) if wanted else ():
        folder = f"{root}/proc/{pid}"
        try:
            held = set(_links(f"{folder}/fd")) & (wanted | set(COMPUTE_FILES.values()))
        except PermissionError:
            unseen += bool(_command(folder))  # threads of the kernel have none
            continue
        if held:
            holders.append({"pid": pid, "user": _owner(folder), "command": _command(folder), "files": sorted(held)})
    return {"processes": holders, "unseen": unseen}


def find_tpu_lock(root: str) -> Optional[Dict[str, Any]]:
    """libtpu opens this file for writing and then locks it. If it can open a file that was left behind, that does no
    harm as long as nobody holds the TPU."""
    path = root + TPU_LOCK
    if not os.path.exists(path):
        return None
    return {"path": TPU_LOCK, "owner": _owner(path), "can_be_opened": _can_be_opened(path, root)}


def _files(kind: str, root: str) -> List[str]:
    if kind == "rocm" and not os.path.exists(root + COMPUTE_FILES["rocm"]):
        return []  # /dev/dri alone is any display
    return [
        f"{folder}/{name}"
        for folder, pattern in FILES[kind].items()
        for name in _names(root + folder)
        if re.fullmatch(pattern, name)
    ]


def _names(folder: str) -> List[str]:
    try:
        return os.listdir(folder)
    except OSError:
        return []


def _count_visible(visible: str, present: int) -> int:
    """CUDA reads numbers and names such as GPU-1f2e, and ignores everything from the first invalid one on."""
    count = 0
    for item in (word.strip() for word in visible.split(",")):
        if not (item.startswith(("GPU-", "MIG-")) or (item.isdigit() and int(item) < present)):
            break
        count += 1
    return count if present else 0


def _pids(root: str) -> List[int]:
    return sorted(int(name) for name in _names(f"{root}/proc") if name.isdigit())


def _links(folder: str) -> Iterator[str]:
    """The targets of a folder's links. The process that the folder is about may end meanwhile."""
    try:
        names = os.listdir(folder)
    except (FileNotFoundError, ProcessLookupError):
        return
    for name in names:
        try:
            yield os.readlink(f"{folder}/{name}")
        except (FileNotFoundError, ProcessLookupError):
            continue


def _command(folder: str) -> str:
    try:
        with open(f"{folder}/cmdline", "rb") as file:
            words = file.read(4096).split(b"\0")
    except OSError:
        return ""
    return os.fsdecode(b" ".join(words[:WORDS_SHOWN]).strip())[:MAX_COMMAND]


def _owner(path: str) -> str:
    import pwd

    try:
        number = os.stat(path).st_uid
    except OSError:
        return "?"
    try:
        return pwd.getpwuid(number).pw_name
    except KeyError:
        return str(number)


def _can_be_opened(path: str, root: str) -> bool:
    """Where fs.protected_regular is set, not even root may open with O_CREAT a file of others in a shared folder."""
    owner, folder = os.stat(path).st_uid, os.stat(os.path.dirname(path))
    is_shared = bool(folder.st_mode & stat.S_ISVTX) and owner not in (os.geteuid(), folder.st_uid)
    try:
        with open(f"{root}/proc/sys/fs/protected_regular") as file:
            is_protected = file.read().strip() != "0"
    except OSError:
        is_protected = False
    return os.access(path, os.W_OK, effective_ids=True) and not (is_shared and is_protected)
