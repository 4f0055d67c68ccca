"""Small values exchanged through jax's coordination service: every wait has a timeout, and names who is missing."""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any, TypeAlias
from urllib.parse import quote

from hostmesh.worker.errors import DisagreementError
from hostmesh.worker.process.words import plural

JSON: TypeAlias = "None | bool | int | float | str | Sequence[JSON] | Mapping[str, JSON]"

TIMEOUT = 300.0
MAX_VALUE = 200
MAX_FAILURE = 2000

# How often this process has come to each rendezvous. Processes that do the same in the same order have equal counts.
_counts: Counter[str] = Counter()


class PeerFailedError(DisagreementError):
    """Another process failed, and this one only heard of it."""

    lost_peer = True


def exchange(what: str, value: JSON, timeout: float = TIMEOUT) -> list[Any]:
    """Everyone's value by process id; `what` completes "waited for process 3 to …"."""
    rendezvous = _open("exchange", what)
    text = json.dumps(value)
    return [json.loads(text)] if rendezvous is None else rendezvous.exchange(text, timeout)


def require_same(what: str, value: Mapping[str, JSON], timeout: float = TIMEOUT) -> None:
    """Raises on every process when a value differs on any; `what` completes "wanted the same on all to …"."""
    refuse_differences(what, exchange(what, value, timeout))


def refuse_differences(what: str, values: Sequence[Mapping[str, JSON]]) -> None:
    """Of what each process has said."""
    if differences := _differences(values):
        raise DisagreementError(f"wanted the same on all processes to {what}; found {'; '.join(differences)}")


@contextmanager
def share_failure(what: str, timeout: float = TIMEOUT) -> Iterator[None]:
    """Either no process raises, or all do: its own error where the body failed, elsewhere "process 2 failed to …".

    A process that fails waits for nobody.
    """
    rendezvous = _open("share_failure", what)
    try:
        yield
    except BaseException as error:
        if rendezvous is not None:
            rendezvous.publish_failure(error)
        raise
    if rendezvous is not None:
        rendezvous.exchange("null", timeout)


def open_rendezvous(what: str) -> Rendezvous | None:
    """For a thread beside training. All processes open them in the same order. None when alone."""
    return _open("later", what)


def name_processes(ids: Sequence[int]) -> str:
    """`process 4`, or `processes 0, 1, 4 to 63`."""
    runs: list[list[int]] = []
    for process_id in sorted(ids):
        if runs and process_id == runs[-1][-1] + 1:
            runs[-1].append(process_id)
        else:
            runs.append([process_id])
    parts = [part for run in runs for part in ([f"{run[0]} to {run[-1]}"] if len(run) > 3 else map(str, run))]
    return f"{plural(len(ids), 'process')} {', '.join(parts)}"


def _open(kind: str, what: str) -> Rendezvous | None:
    """None when alone."""
    from jax._src import distributed  # the public API has no client

    state = distributed.global_state
    if state.client is None:
        return None
    name = f"hostmesh/{kind}/{quote(what, safe='')}"
    _counts[name] += 1
    return Rendezvous(state.client, what, name, _counts[name], state.process_id, state.num_processes)


@dataclass(frozen=True)
class Rendezvous:
    """Each process publishes its value in a folder of the store; whoever sees all values publishes the outcome.

    An outcome is published once: the values, or who failed, or who was missing when the timeout of a process ended. So
    all processes get the same outcome, also those that come too late. jax's own barrier has no answer for those.
    """

    client: Any
    what: str
    name: str
    number: int
    process_id: int
    num_processes: int

    def exchange(self, text: str, timeout: float) -> list[Any]:
        self.publish(text)
        values = self.values()
        is_complete = len(values) == self.num_processes
        outcome = self._publish_values(values) if is_complete else self._resolve(timeout)
        self._check(outcome)
        return list(outcome["values"])

    def publish(self, text: str) -> None:
        """This process's value, as JSON. Neither this nor `values` and `poll_outcome` wait for other processes."""
        self.client.key_value_set(f"{self._folder}/values/{self.process_id}", text)

    def values(self) -> dict[int, Any]:
        found = self.client.key_value_dir_get(f"{self._folder}/values/")
        return {int(key.rpartition("/")[2]): json.loads(text) for key, text in found}

    def poll_outcome(self) -> dict[str, Any] | None:
        """The outcome, or None as long as there is none."""
        try:
            outcome: dict[str, Any] = json.loads(self.client.key_value_try_get(f"{self._folder}/outcome"))
        except RuntimeError as error:
            if not str(error).startswith("NOT_FOUND"):
                raise
            return None
        return outcome

    def publish_outcome(self, outcome: dict[str, Any]) -> dict[str, Any]:
        """Returns the outcome, which is another one when another process was first."""
        try:
            self.client.key_value_set(f"{self._folder}/outcome", json.dumps(outcome))
        except RuntimeError as error:
            if not str(error).startswith("ALREADY_EXISTS"):
                raise
            return self._wait_for_outcome(TIMEOUT)
        return outcome

    def publish_failure(self, error: BaseException) -> None:
        failure = f"{type(error).__name__}: {error}"[:MAX_FAILURE]
        with suppress(RuntimeError):  # the service is gone, and the error that is being raised matters more
            self.publish_outcome({"failed": self.process_id, "failure": failure})

    @property
    def _folder(self) -> str:
        return f"{self.name}/{self.number}"

    def _publish_values(self, values: Mapping[int, Any]) -> dict[str, Any]:
        # All processes are here, so all have read the outcome before this one. It is deleted: the store must not grow.
        self.client.key_value_delete(f"{self.name}/{self.number - 1}")
        return self.publish_outcome({"values": [values[process_id] for process_id in range(self.num_processes)]})

    def _resolve(self, timeout: float) -> dict[str, Any]:
        try:
            return self._wait_for_outcome(timeout)
        except RuntimeError as error:
            if not str(error).startswith("DEADLINE_EXCEEDED"):
                raise
        values = self.values()
        missing = [process_id for process_id in range(self.num_processes) if process_id not in values]
        if not missing:
            return self._publish_values(values)
        return self.publish_outcome({"missing": missing, "timeout": timeout})

    def _wait_for_outcome(self, timeout: float) -> dict[str, Any]:
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
