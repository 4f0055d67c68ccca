"""From the word for a run on the command line, an id, its beginning or `last`, to the run's folder."""

from __future__ import annotations

import os
import re
from pathlib import Path

from hostmesh.launcher.errors import UsageError
from hostmesh.launcher.output.run_folder import ALPHABET
from hostmesh.launcher.words import list_some

RUN_ID = re.compile(rf"\d{{4}}-[{ALPHABET}]{{6}}")
MAX_SHOWN = 5


def list_runs(runs: Path) -> list[Path]:
    """The folders of all runs, in no order."""
    try:
        with os.scandir(runs) as entries:
            return [Path(entry.path) for entry in entries if RUN_ID.fullmatch(entry.name) and entry.is_dir()]
    except FileNotFoundError:
        return []
    except OSError as error:
        raise UsageError(f"--runs: found {runs}, which cannot be read ({error.strerror})") from None


def when_begun(folder: Path) -> float:
    """Seconds since the epoch. The plan is written first of all, and never again."""
    for name in ("plan.json", "events.jsonl", "."):
        try:
            return (folder / name).stat().st_mtime
        except OSError:
            continue
    return 0.0


def find_run(runs: Path, word: str) -> Path:
    """Raises UsageError for a word that means no run, or several."""
    if RUN_ID.fullmatch(Path(word).name) and os.sep in word and Path(word).is_dir():
        return Path(word)
    folders = list_runs(runs)
    if not folders:
        raise UsageError(f"found no run in {runs}; --runs DIR says where run folders are")
    if word == "last":
        return max(folders, key=when_begun)
    found = [folder for folder in folders if folder.name.startswith(word)] if word else []
    if len(found) == 1:
        return found[0]
    if found:
        raise UsageError(f"found {len(found)} runs that begin with {word}, wanted one: {_name_newest(found)}")
    raise UsageError(f"found no run {word!r} in {runs}; the newest are {_name_newest(folders)}")


def _name_newest(folders: list[Path]) -> str:
    newest = sorted(folders, key=when_begun, reverse=True)
    return list_some([folder.name for folder in newest], MAX_SHOWN, MAX_SHOWN)
