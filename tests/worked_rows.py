"""Sources and functions for tests of data processes, which import them: nothing here is slow to import."""

from __future__ import annotations

import multiprocessing
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np

LENGTH = 120


class Rows:
    """Records of which each takes a moment, so that several threads pay."""

    def __init__(self, seconds: float = 0.0, length: int = LENGTH) -> None:
        self.seconds, self.length = seconds, length

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, index: int) -> dict[str, Any]:
        if self.seconds:
            time.sleep(self.seconds)
        return {"id": np.int64(index), "image": np.full((4, 3), index, np.float32)}


def shake(block: Any, ids: Any, rng: Any) -> Any:
    """An augmentation that depends on the seed and the position alone."""
    return {**block, "image": block["image"] + rng.random((4, 3)).astype(np.float32)}


def pad(records: list[Any], ids: Any, rng: Any) -> Any:
    image = np.stack([record["image"] for record in records])
    return {"id": np.array([record["id"] for record in records]), "image": image * rng.random((4, 3))}


def fail_at_17(block: Any) -> Any:
    if 17 in block["id"]:
        raise KeyError("caption")
    return block


def grow_at_17(block: Any) -> Any:
    return {**block, "image": np.zeros((len(block["id"]), 5))} if 17 in block["id"] else block


def rename_at_17(block: Any) -> Any:
    return {"id": block["id"], "picture": block["image"]} if 17 in block["id"] else block


def die_at_17(block: Any) -> Any:
    if 17 in block["id"] and threading.current_thread() is threading.main_thread():
        os.kill(os.getpid(), signal.SIGKILL)
    return block


def leave_at_17(block: Any) -> Any:
    if 17 in block["id"]:
        os._exit(3)
    return block


class Missing17(Rows):
    def __getitem__(self, index: int) -> dict[str, Any]:
        if index == 17:
            raise FileNotFoundError("17.jpg")
        return super().__getitem__(index)


class SharedFile:
    """Reads all records from one open file: what several threads must not do."""

    def __init__(self, path: Path) -> None:
        np.arange(LENGTH * 1000, dtype=np.int64).tofile(path)
        self._file = open(path, "rb", buffering=0)  # noqa: SIM115

    def __len__(self) -> int:
        return LENGTH

    def __getitem__(self, index: int) -> dict[str, Any]:
        self._file.seek(index * 8000)
        time.sleep(2e-4)
        return {"id": np.frombuffer(self._file.read(8), np.int64)[0] // 1000}

    def __del__(self) -> None:
        self._file.close()


class SharedBuffer:
    """A `map` that gives the same memory again and again."""

    def __init__(self) -> None:
        self._buffer = np.empty((64, 4, 3), np.float32)

    def __call__(self, block: Any) -> Any:
        time.sleep(2e-3)
        out = self._buffer[: len(block["image"])]
        out[:] = block["image"]
        return {**block, "image": out}


def less_mean(block: Any) -> Any:
    """Depends on the other rows of its block."""
    time.sleep(2e-3)
    return {**block, "image": block["image"] - block["image"].mean(0)}


def own_noise(block: Any) -> Any:
    time.sleep(2e-3)
    return {**block, "image": block["image"] + np.random.default_rng().random((4, 3)).astype(np.float32)}


class ForkAt17:
    """Starts a process that outlives the data process, and holds all that it had open."""

    def __init__(self, note: Path) -> None:
        self._note = note

    def __call__(self, block: Any) -> Any:
        if 17 in block["id"] and threading.current_thread() is threading.main_thread():
            child = os.fork()
            if not child:
                time.sleep(60)
                os._exit(0)
            self._note.write_text(str(child))
            os.kill(os.getpid(), signal.SIGKILL)
        return block


def end_others(block: Any) -> Any:
    """The exit codes of processes that a `map` starts and ends in a data process."""
    if "jax" in sys.modules:
        return {**block, "codes": np.full((len(block["id"]), 2), -signal.SIGTERM, np.int32)}
    forked = multiprocessing.get_context("fork").Process(target=time.sleep, args=(60,))
    forked.start()
    started = subprocess.Popen(["sleep", "60"])
    forked.terminate()
    started.terminate()
    forked.join()
    codes = np.full((len(block["id"]), 2), [forked.exitcode, started.wait()], np.int32)
    return {**block, "codes": codes}
