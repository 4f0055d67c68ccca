"""`launch attach`: the screen of a run, in this terminal; leaving it leaves the run alone."""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path
from typing import Any

from hostmesh.launcher.errors import UsageError
from hostmesh.launcher.output.run_folder import Run
from hostmesh.launcher.output.screen import Screen, use_colour
from hostmesh.launcher.output.view import choose_view
from hostmesh.launcher.runs.following import Follower
from hostmesh.launcher.runs.owner import is_held
from hostmesh.launcher.runs.queued import find_queued_job
from hostmesh.launcher.runs.reading import Lines, read_json, read_names

LOOK_EVERY = 0.1
ASK_SLURM_EVERY = 2.0
DIED = 1


def attach(folder: Path, show_all: bool, show: str | None, as_json: bool) -> int:
    """The run's exit code at its end; 0 when the user leaves before."""
    if not await_begin(folder):
        return 0
    if as_json:
        return follow_events(folder, show_all)
    names = read_names(folder)
    if not (folder / "logs").is_dir():
        raise UsageError(f"run {folder.name} has no logs to show")
    view = choose_view(show, False, len(names))
    screen = Screen(sys.stdout, use_colour(sys.stdout, os.environ), sys.stderr, (), *view)
    lives = is_held(folder)
    follower = Follower(folder, screen, names, at_end=lives and not show_all)
    screen.start()
    try:
        while is_held(folder) and not screen.broken:
            time.sleep(LOOK_EVERY)
            follower.look()
        follower.finish()
        screen.finish(timeout=None)
    except KeyboardInterrupt:
        print(f"\nlaunch: run {folder.name} goes on; launch stop {folder.name} ends it", file=sys.stderr)
        return 0
    return tell_end(folder)


def await_begin(folder: Path) -> bool:
    """Tells why a run waits in Slurm's queue, when that changes; False when the user leaves before it begins."""
    if find_queued_job(folder) is None:
        return True
    from hostmesh.launcher.engines.slurm.queued import close_queued, describe_queued

    told = ""
    try:
        while (job := find_queued_job(folder)) is not None:
            state, message = describe_queued(job)
            if message != told:
                print(f"launch: run {folder.name}: {message}", file=sys.stderr)
            if state != "queued":
                close_queued(Run(folder), job)
                break
            told = message
            time.sleep(ASK_SLURM_EVERY)
    except KeyboardInterrupt:
        print(f"\nlaunch: run {folder.name} waits on; launch stop {folder.name} ends it", file=sys.stderr)
        return False
    return True


def follow_events(folder: Path, show_all: bool) -> int:
    events = Lines(folder / "events.jsonl", at_end=not show_all and is_held(folder))
    try:
        while True:
            lives = is_held(folder)
            for event in events.read():
                print_json(event)
            if not lives:
                return int(read_json(folder / "result.json").get("exit_code", DIED))
            time.sleep(LOOK_EVERY)
    except KeyboardInterrupt:
        return 0


def tell_end(folder: Path) -> int:
    result = read_json(folder / "result.json")
    if not result:
        print(f"launch: run {folder.name} has no result: its supervisor died without a word", file=sys.stderr)
        return DIED
    return int(result["exit_code"])


def print_json(value: Any) -> None:
    import json

    print(json.dumps(value), flush=True)
