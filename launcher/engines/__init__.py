"""Interchangeable owners of hosts that hand them out: schedulers that a run asks for its hosts."""

from __future__ import annotations

import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, NoReturn

from hostmesh.launcher.cluster.model import Cluster, Kubernetes

if TYPE_CHECKING:
    from hostmesh.launcher.engines.base import Engine, Note

# What ends a launcher that has no supervisor yet; SIGINT does so by itself.
ENDING = (signal.SIGTERM, signal.SIGHUP)


def note_on_stderr(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def open_engine(cluster: Cluster, run_id: str, note: Note = note_on_stderr) -> Engine | None:
    """None for a cluster whose hosts nobody hands out."""
    if cluster.engine is None:
        return None
    if isinstance(cluster.engine, Kubernetes):
        from hostmesh.launcher.engines.kubernetes.engine import KubernetesEngine

        return KubernetesEngine(cluster.engine, run_id, cluster.lease, note)
    from hostmesh.launcher.engines.slurm.allocation import SlurmEngine, find_job

    return SlurmEngine(find_job() or "")


def show_request(cluster: Cluster) -> list[dict[str, Any]]:
    """What an engine would be asked for by a run of the name RUN; for --dry-run."""
    if not isinstance(cluster.engine, Kubernetes) or cluster.engine.selector is not None:
        return []
    from hostmesh.launcher.engines.kubernetes.manifests import make_manifests

    return make_manifests(cluster.engine, "RUN", cluster.lease)


@contextmanager
def acquired(engine: Engine | None) -> Iterator[None]:
    """The engine's hosts are there inside, and given back whatever happens; also when they never came."""
    try:
        if engine is not None:
            with interruptible():
                engine.acquire()
        yield
    finally:
        if engine is not None:
            with uninterrupted():
                engine.release()


@contextmanager
def interruptible() -> Iterator[None]:
    """A request to end becomes an exception, as Ctrl-C is one."""
    before = {number: signal.signal(number, _leave) for number in ENDING if not _is_ignored(number)}
    try:
        yield
    finally:
        _restore(before)


@contextmanager
def uninterrupted() -> Iterator[None]:
    """Requests to end wait: what is done here is short."""
    pending: list[int] = []
    before = {number: signal.signal(number, lambda n, _: pending.append(n)) for number in (signal.SIGINT, *ENDING)}
    try:
        yield
    finally:
        _restore(before)


def _is_ignored(number: int) -> bool:
    return signal.getsignal(number) is signal.SIG_IGN  # as nohup leaves SIGHUP


def _leave(number: int, _: Any) -> NoReturn:
    raise SystemExit(128 + number)


def _restore(before: dict[Any, Any]) -> None:
    for number, handler in before.items():
        signal.signal(number, handler)
