"""What a process that does not move is doing, from all that is known of it; pure."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum, auto
from typing import Any

from hostmesh.launcher.agent.observing.native import IDLE, JAX
from hostmesh.launcher.supervisor.state.progress import Progress
from hostmesh.launcher.supervisor.stuck.stacks import Stacks, parse_stacks

# Of a core: who uses more computes.
BUSY = 0.5


class Doing(Enum):
    STOPPED = auto()
    LEFT = auto()
    NOT_JOINED = auto()
    JOINING = auto()
    DISK = auto()
    COMPILING = auto()
    LOADING = auto()
    SAVING = auto()
    PROGRAM = auto()
    CALLBACK = auto()
    SLEEPING = auto()
    COMPUTING = auto()  # outside of jax: native code, or a loop
    WAITING = auto()  # inside jax, for others
    WORKING = auto()  # inside jax, and the processor is busy
    OTHER_PROGRAM = auto()  # inside jax, in something else than the others
    CUT_OFF = auto()  # inside jax, and nothing gets through between it and the others
    UNKNOWN = auto()


@dataclass(frozen=True)
class Activity:
    """`text` is the end of "process 3 on gpu-b …"; `place` is a line of the user's code."""

    process_id: int
    host: str
    doing: Doing
    text: str
    place: str = ""
    step: int = 0
    phase: str = ""
    cores: float | None = None


@dataclass(frozen=True)
class Evidence:
    """What is known of one process."""

    process_id: int
    host: str
    progress: Progress
    exit_code: int | None = None
    has_joined: bool = True
    others_join: bool = False
    found: dict[str, Any] = field(default_factory=dict)
    stacks: Stacks = field(default_factory=Stacks)

    @property
    def phase(self) -> str:
        return self.progress.phase

    @property
    def waits_in_jax(self) -> bool:
        """A jitted function is called without a Python frame of jax's: then the library tells."""
        return self.stacks.waits_in_jax or bool(JAX.search(str(self.found.get("library") or "")))

    @property
    def cores(self) -> float | None:
        return as_number(self.found.get("cores"))

    @property
    def main_cores(self) -> float | None:
        return as_number(self.found.get("main_cores"))


def as_number(value: Any) -> float | None:
    """What comes from a host may be anything."""
    return float(value) if isinstance(value, int | float) else None


def gather(process_id: int, host: str, progress: Progress, **known: Any) -> Evidence:
    examined = progress.examined
    if examined is None:
        return Evidence(process_id, host, progress, **known)
    stacks = parse_stacks(examined.data.decode("utf-8", "replace"))
    return Evidence(process_id, host, progress, found=dict(examined.found), stacks=stacks, **known)


def find_activity(known: Evidence) -> Activity:
    doing, text, place = _find(known)
    progress = known.progress
    return Activity(known.process_id, known.host, doing, text, place, progress.step, progress.phase, known.cores)


def _find(known: Evidence) -> tuple[Doing, str, str]:
    stacks, progress = known.stacks, known.progress
    place = str(stacks.place) if stacks.place is not None else ""
    at = f" at {place}" if place else ""
    after = f" after step {progress.step}" if progress.step else ""
    if known.exit_code is not None:
        return Doing.LEFT, f"has left with exit code {known.exit_code}{after}", ""
    if progress.is_stopped or known.found.get("state") in ("T", "t"):
        return Doing.STOPPED, f"is stopped (SIGSTOP, or a debugger){after}", ""
    if known.phase == "leaving":
        return Doing.LEFT, f"has ended its script{after}, and waits for the others to leave as well", ""
    if known.phase == "compiling":
        return Doing.COMPILING, f"is compiling{at}", place
    if known.found.get("state") == "D" and (known.cores or 0.0) < IDLE:
        return Doing.DISK, f"waits for a disk{_name_file(known.found)}{at}", place
    if not known.has_joined and known.others_join:
        if known.phase == "joining":
            return Doing.JOINING, "waits for all processes to join", place
        return Doing.NOT_JOINED, f"has not called jax.distributed.initialize{at}", place
    if (callback := stacks.callback) is not None:
        return Doing.CALLBACK, f"is in a callback at {callback}", str(callback)
    if known.phase == "loading" and not known.waits_in_jax:
        return _find_loading(known, place)
    if known.phase in ("saving", "restoring"):
        return Doing.SAVING, f"is {known.phase}{at}", place
    if known.waits_in_jax:
        if (known.cores or 0.0) >= BUSY:
            return Doing.WORKING, f"computes in jax{_name_step(progress)}{at}", place
        return Doing.WAITING, f"waits{_name_step(progress)}{at}", place
    return _find_outside(known, place, at)


def _find_outside(known: Evidence, place: str, at: str) -> tuple[Doing, str, str]:
    """Of a process that is not inside jax."""
    programs = known.found.get("programs") or []
    if programs and known.stacks.runs_program:
        return Doing.PROGRAM, f"runs another program (`{programs[0]}`){at}", place
    busy = known.main_cores or 0.0
    if busy >= BUSY or known.found.get("state") == "R":  # on a host that is busy otherwise it gets little
        return Doing.COMPUTING, f"computes{at}, in native code or a loop ({busy:.1f} cores)", place
    if not known.stacks.main:
        return Doing.UNKNOWN, "does not say where it is", ""
    if known.found.get("library") is None and not known.stacks.waits_in_python:
        return Doing.UNKNOWN, f"is{at}", place  # a jitted function may be called there, which has no frame
    return Doing.SLEEPING, f"sleeps or waits for a lock{at}", place


def _find_loading(known: Evidence, place: str) -> tuple[Doing, str, str]:
    reading = known.found.get("reading")
    frame = str(known.stacks.reading or "")
    if not isinstance(reading, dict):
        at = f" at {frame}" if frame else ""
        return Doing.LOADING, f"is loading step {known.progress.step + 1}{at}", place
    frame = frame or str(reading.get("place") or "")  # of a data process, whose stacks are not here
    at = f" at {frame}" if frame else ""
    # The reader counts steps from 0, and may be ahead of the step that is waited for.
    step = int(as_number(reading.get("step")) or 0) + 1
    what = f"step {step} from {reading.get('source') or 'its source'} (record {reading.get('row')})"
    return Doing.LOADING, f"is loading {what}{at}", frame or place


def _name_file(found: dict[str, Any]) -> str:
    wait = found.get("wait")
    wait = wait if isinstance(wait, dict) else {}
    named = [str(wait[key]) for key in ("path", "function") if wait.get(key)]
    return f" ({', '.join(named)})" if named else ""


def _name_step(progress: Progress) -> str:
    if progress.is_kept and progress.step:
        return f" in step {progress.step}"
    return ""
