"""Small values exchanged between processes through jax's coordination service: every wait ends, and says for whom."""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any, TypeAlias
from urllib.parse import quote

from hostmesh.worker.errors import DisagreementError

JSON: TypeAlias = "None | bool | int | float | str | Sequence[JSON] | Mapping[str, JSON]"

TIMEOUT = 300.0
MAX_VALUE = 200
MAX_FAILURE = 2000

# How often each kind of meeting was held here: processes that do the same in the same order meet under one number.
_held: Counter[str] = Counter()


class PeerFailedError(DisagreementError):
    """Another process failed, and this one only heard of it."""

    lost_peer = True


def exchange(what: str, value: JSON, timeout: float = TIMEOUT) -> list[Any]:
    """Everyone's value by process id; `what` completes "waited for process 3 to …"."""
    meeting = _meet("exchange", what)
    said = json.dumps(value)
    return [json.loads(said)] if meeting is None else meeting.attend(said, timeout)


def require_same(what: str, value: Mapping[str, JSON], timeout: float = TIMEOUT) -> None:
    """Raises on every process when a value differs on any; `what` completes "wanted the same on all to …"."""
    values = exchange(what, value, timeout)
    if differences := _differences(values):
        raise DisagreementError(f"wanted the same on all processes to {what}; found {'; '.join(differences)}")


@contextmanager
def share_failure(what: str, timeout: float = TIMEOUT) -> Iterator[None]:
    """All leave the body well, or all raise: its own error where it failed, elsewhere "process 2 failed to …".

    A process that fails waits for nobody.
    """
    meeting = _meet("share_failure", what)
    try:
        yield
    except BaseException as error:
        if meeting is not None:
            meeting.publish_failure(error)
        raise
    if meeting is not None:
        meeting.attend("null", timeout)


def arrange(what: str) -> Meeting | None:
    """A meeting for a thread beside training; arranged in the same order everywhere. None when alone."""
    return _meet("later", what)


def name_processes(ids: Sequence[int]) -> str:
    """`process 4`, or `processes 0, 1, 4 to 63`."""
    runs: list[list[int]] = []
    for process_id in sorted(ids):
        if runs and process_id == runs[-1][-1] + 1:
            runs[-1].append(process_id)
        else:
            runs.append([process_id])
    parts = [part for run in runs for part in ([f"{run[0]} to {run[-1]}"] if len(run) > 3 else map(str, run))]
    return ("process " if len(ids) == 1 else "processes ") + ", ".join(parts)


def _meet(kind: str, what: str) -> Meeting | None:
    """None when alone."""
    from jax._src import distributed  # the public API has no client

    state = distributed.global_state
    if state.client is None:
        return None
    name = f"hostmesh/{kind}/{quote(what, safe='')}"
    _held[name] += 1
    return Meeting(state.client, what, name, _held[name], state.process_id, state.num_processes)


@dataclass(frozen=True)
class Meeting:
    """Each process leaves its value in a folder of the store; whoever sees them all writes the outcome beside it.

    An outcome is written once: the values, or who failed, or who was missing when somebody's timeout ended. So all
    processes learn the same, also those that come too late. A barrier of jax's has no such answer for them.
    """

    client: Any
    what: str
    name: str
    number: int
    process_id: int
    num_processes: int

    def attend(self, said: str, timeout: float) -> list[Any]:
        self.say(said)
        values = self.said()
        all_here = len(values) == self.num_processes
        outcome = self._settle_all(values) if all_here else self._await_outcome(timeout)
        self._check(outcome)
        return list(outcome["values"])

    def say(self, said: str) -> None:
        """`said` is JSON; this waits for nobody, and nor do the next two."""
        self.client.key_value_set(f"{self._folder}/said/{self.process_id}", said)

    def said(self) -> dict[int, Any]:
        found = self.client.key_value_dir_get(f"{self._folder}/said/")
        return {int(key.rpartition("/")[2]): json.loads(said) for key, said in found}

    def look(self) -> dict[str, Any] | None:
        """The outcome, if there is one by now."""
        try:
            outcome: dict[str, Any] = json.loads(self.client.key_value_try_get(f"{self._folder}/outcome"))
        except RuntimeError as error:
            if not str(error).startswith("NOT_FOUND"):
                raise
            return None
        return outcome

    def settle(self, outcome: dict[str, Any]) -> dict[str, Any]:
        """The outcome, which is another one when somebody wrote first."""
        try:
            self.client.key_value_set(f"{self._folder}/outcome", json.dumps(outcome))
        except RuntimeError as error:
            if not str(error).startswith("ALREADY_EXISTS"):
                raise
            return self._read_outcome(TIMEOUT)
        return outcome

    def publish_failure(self, error: BaseException) -> None:
        failure = f"{type(error).__name__}: {error}"[:MAX_FAILURE]
        with suppress(RuntimeError):  # the service is gone: then nobody listens, and this error matters more
            self.settle({"failed": self.process_id, "failure": failure})

    @property
    def _folder(self) -> str:
        return f"{self.name}/{self.number}"

    def _settle_all(self, values: Mapping[int, Any]) -> dict[str, Any]:
        # All are here, so all have read the outcome before this one: the store does not grow.
        self.client.key_value_delete(f"{self.name}/{self.number - 1}")
        return self.settle({"values": [values[process_id] for process_id in range(self.num_processes)]})

    def _await_outcome(self, timeout: float) -> dict[str, Any]:
        try:
            return self._read_outcome(timeout)
        except RuntimeError as error:
            if not str(error).startswith("DEADLINE_EXCEEDED"):
                raise
        values = self.said()
        missing = [process_id for process_id in range(self.num_processes) if process_id not in values]
        return self.settle({"missing": missing, "timeout": timeout}) if missing else self._settle_all(values)

    def _read_outcome(self, timeout: float) -> dict[str, Any]:
        outcome: dict[str, Any] = json.loads(
            self.client.blocking_key_value_get(f"{self._folder}/outcome", int(timeout * 1000))
        )
        return outcome

    def _check(self, outcome: Mapping[str, Any]) -> None:
        if "failed" in outcome:
            raise PeerFailedError(f"process {outcome['failed']} failed to {self.what}: {outcome['failure']}")
        if "missing" in outcome:
            late = "; this process came too late" if self.process_id in outcome["missing"] else ""
            waited = f"waited {outcome['timeout']:g} s for {name_processes(outcome['missing'])}"
            raise DisagreementError(f"{waited} to {self.what}{late}")


def _differences(values: Sequence[Mapping[str, Any]]) -> list[str]:
    """`batch_size: processes 0, 1, 3 have 256, process 2 has 128`, for each key that differs."""
    differences = []
    for key in dict.fromkeys(key for value in values for key in value):
        holders: defaultdict[str, list[int]] = defaultdict(list)
        for process_id, value in enumerate(values):
            holders[json.dumps(value[key], sort_keys=True) if key in value else "none"].append(process_id)
        if len(holders) > 1:
            by_majority = sorted(holders.items(), key=lambda found: -len(found[1]))
            differences.append(f"{key}: {', '.join(_holding(ids, value) for value, ids in by_majority)}")
    return differences


def _holding(ids: Sequence[int], value: str) -> str:
    shown = value if len(value) <= MAX_VALUE else value[:MAX_VALUE] + "…"
    return f"{name_processes(ids)} {'has' if len(ids) == 1 else 'have'} {shown}"
