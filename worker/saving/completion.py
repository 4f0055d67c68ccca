"""Which snapshots every process has: two generations are enough as long as nobody runs ahead of the others."""

from __future__ import annotations

import json
import time
from collections.abc import Iterable, Mapping, Sequence
from itertools import count
from typing import Any, NamedTuple
from urllib.parse import quote

from hostmesh.worker.errors import DisagreementError
from hostmesh.worker.process.coordination import name_processes

TIMEOUT = 600.0
# How long process 0 waits before it looks again who is ready; as a rule all are, since their snapshot was N steps ago.
FIRST_PAUSE, MAX_PAUSE = 0.002, 0.1

_numbers = count(1)  # of openings; the same on processes that do the same


class Taken(NamedTuple):
    """When a snapshot was taken. An attempt that goes on from an older step takes other snapshots of the same steps."""

    attempt: int
    step: int


class GivenUpError(Exception):
    """Another process keeps no snapshots any more."""


def find_newest_common(held: Sequence[Iterable[Taken]]) -> Taken | None:
    """The newest one that every process has; None if there is none."""
    common = set.intersection(*(set(each) for each in held)) if held else set()
    return max(common, default=None)


def may_overwrite(completed: Mapping[int, int], num_processes: int, newest: int) -> bool:
    """Whether a process whose newest snapshot is that of `newest` may begin the next one, in place of the one before.

    Only when everybody has completed `newest`: whoever dies from then on, they have that one in common. Sooner, a
    process that is quick would lose the last step that a slow one has. `completed` is the newest step of each process.
    """
    return len(completed) == num_processes and all(step >= newest for step in completed.values())


class Completion:
    """Of processes, told through jax's coordination service, by a thread beside training.

    Everybody tells process 0, which tells everybody when all are ready: two small messages a process and snapshot, and
    no key for long, because they are overwritten or deleted.
    """

    def __init__(self, what: str) -> None:
        from jax._src import distributed  # the public API has no client

        state = distributed.global_state
        self._client: Any = state.client
        self._process_id, self._num_processes = state.process_id or 0, state.num_processes or 1
        self._name = f"hostmesh/snapshots/{quote(what, safe='')}/{next(_numbers)}"
        self._agreed: int | None = None  # the last step that everybody has

    def tell(self, step: int) -> None:
        """This process has completed the snapshot of that step."""
        self._set(f"completed/{self._process_id}", step)

    def give_up(self, step: int, why: str) -> None:
        """This process has not completed the snapshot of that step, and takes no more."""
        self._set(f"all/{step}" if self._process_id == 0 else f"completed/{self._process_id}", why)

    def await_all(self, step: int, timeout: float = TIMEOUT) -> None:
        """Wait until every process has completed the snapshot of that step."""
        if self._client is None:
            return
        answer = self._collect(step, timeout) if self._process_id == 0 else self._hear(step, timeout)
        if isinstance(answer, str):
            raise GivenUpError(answer)
        self._agreed = step

    def _collect(self, step: int, timeout: float) -> int | str:
        deadline, pause = time.monotonic() + timeout, FIRST_PAUSE
        while True:
            found = self._read_all()
            reasons = [each for each in found.values() if isinstance(each, str)]
            if reasons or may_overwrite(found, self._num_processes, step):
                break
            if time.monotonic() > deadline:
                late = [each for each in range(self._num_processes) if found.get(each, -1) < step]
                raise DisagreementError(
                    f"waited {timeout:g} s for {name_processes(late)} to keep a snapshot of step {step}"
                )
            time.sleep(pause)
            pause = min(2 * pause, MAX_PAUSE)
        answer = reasons[0] if reasons else step
        self._set(f"all/{step}", answer)
        if self._agreed is not None:
            # Everybody has read it, or they would not have gone on to complete this step.
            self._client.key_value_delete(f"{self._name}/all/{self._agreed}")
        return answer

    def _hear(self, step: int, timeout: float) -> int | str:
        answer: int | str = json.loads(
            self._client.blocking_key_value_get(f"{self._name}/all/{step}", int(timeout * 1000))
        )
        return answer

    def _read_all(self) -> dict[int, Any]:
        found = self._client.key_value_dir_get(f"{self._name}/completed/")
        return {int(key.rpartition("/")[2]): json.loads(text) for key, text in found}

    def _set(self, key: str, value: int | str) -> None:
        if self._client is not None:
            self._client.key_value_set(f"{self._name}/{key}", json.dumps(value), allow_overwrite=True)
