"""The line of the user's own code in which something was raised."""

from __future__ import annotations

import os
import sysconfig
import traceback
from types import FrameType, TracebackType

LIBRARIES = (
    "<frozen ",  # importlib's and runpy's own frames
    *(os.path.join(sysconfig.get_path(name), "") for name in ("stdlib", "platstdlib", "purelib", "platlib")),
)
PACKAGES = (f"{os.sep}site-packages{os.sep}", f"{os.sep}dist-packages{os.sep}")
OURS = os.path.join(os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__)))), "")


def find_user_frame(trace: TracebackType | None) -> str | None:
    """`train.py:12 in prepare`: the innermost frame that is neither a library's nor ours."""
    frames = traceback.extract_tb(trace)
    own = [frame for frame in frames if not is_library(frame.filename) and not frame.filename.startswith(OURS)]
    return describe_frame(own[-1].filename, own[-1].lineno, own[-1].name) if own else None


def find_running_frame(frame: FrameType | None) -> str | None:
    """`train.py:12 in prepare`: the innermost frame of a stack that is neither a library's nor ours."""
    while frame is not None:
        file = frame.f_code.co_filename
        if not is_library(file) and not file.startswith(OURS) and file != "<string>":
            return describe_frame(file, frame.f_lineno, frame.f_code.co_name)
        frame = frame.f_back
    return None


def is_library(file: str) -> bool:
    return file.startswith(LIBRARIES) or any(folder in file for folder in PACKAGES)


def describe_frame(file: str, line: object, name: str) -> str:
    try:
        shown = file if file.startswith("<") else os.path.relpath(file)
    except OSError:  # the working directory is gone
        shown = file
    return f"{shown}:{line} in {name}"
