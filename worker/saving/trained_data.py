"""Which data a step was trained on: saved with it, and held against the data of whoever goes on from it."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, TypeAlias

import jax

from hostmesh.worker.errors import CheckpointError, StoreError
from hostmesh.worker.loading.choices import OK
from hostmesh.worker.process.coordination import exchange, share_failure
from hostmesh.worker.process.words import list_some
from hostmesh.worker.saving.state_shape import compare
from hostmesh.worker.streams.state import split_state
from hostmesh.worker.verify.known_data import BYTES, describe_data, find_known
from hostmesh.worker.verify.marks import NOT_COMPARED, Mark, compare_mark, compare_marks, is_known

# What a data_spec says of the data themselves; all else in it is an option, such as the batch size. A mixture says the
# same of each part: `content of web`.
LENGTH, CONTENT = ("records",), ("content", "rows", "kept", BYTES)
# Seconds that the others wait for process 0, which may have to read some gigabytes.
READING_TIMEOUT = 24 * 3600.0
WHAT = "compare the data with those of a saved step"

HOW_TO_ALLOW = 'go on with the data that are there now: --data-changed ok, in a script Checkpoint(…, data_changed="ok")'
WEIGHTS_ONLY = "take its state alone: restore(like, weights_only=True)"
OTHER_LENGTH = "with another number of records every step has other ones, so that nobody can go on after that step"


class TrainedData:
    """Of one Checkpoint. All processes make the same calls; process 0 knows, compares and saves."""

    def __init__(self, data_spec: Mapping[str, Any], data_changed: str) -> None:
        self._spec, self._is_allowed = dict(data_spec), data_changed == OK
        self._known = find_known(data_spec)
        self._from_step = 1
        self._history: list[dict[str, Any]] = []

    def check(self, where: str, step: int, position: Mapping[str, Any] | None) -> None:
        """Raises on all processes if a saved step was trained on other data; says so if that is allowed.

        `position` is what was saved with the step, None where that cannot be read.
        """
        answer: dict[str, str] = {}
        with share_failure(WHAT, READING_TIMEOUT):
            if jax.process_index() == 0 and position is not None:
                answer = self._judge(where, step, position)
                self._follow(position, "warning" in answer)
        found = exchange(WHAT, answer)[0]
        if "problem" in found:
            raise CheckpointError(found["problem"])
        if "warning" in answer:
            print(f"checkpoint: {answer['warning']}", file=sys.stderr, flush=True)

    def _follow(self, position: Mapping[str, Any], has_changed: bool) -> None:
        """The steps that led to this one may have been trained on other data than those that come."""
        saved = position.get("data") or describe_data(None, position["data_spec"])
        before = {key: saved[key] for key in ("source", "records", "content", "all_bytes") if key in saved}
        self._history, self._from_step = list(position.get("data_history", [])), saved.get("from_step", 1)
        if has_changed:
            self._history.append({"from_step": self._from_step, **before})
            self._from_step = count_batches(position) + 1
        if self._known is not None:
            self._known.history = self._history

    def begin_reading(self) -> None:
        """All bytes are read beside training, where nobody knows them yet."""
        if self._known is not None:
            self._known.begin_reading()

    def describe(self) -> dict[str, Any]:
        """For a save: what a person may want to know of the data, and what finds a change."""
        marks = None if self._known is None else self._known.current_marks()
        data = {**describe_data(self._known, self._spec), "from_step": self._from_step}
        if self._known is not None and marks is not None:
            data |= {"every": self._known.every, "stored": [mark.to_json() for mark in marks]}
        return {"data": data, "data_history": self._history}

    def _judge(self, where: str, step: int, position: Mapping[str, Any]) -> dict[str, str]:
        """A `problem`, or a `warning`, or nothing."""
        saved, spec = position["data_spec"], self._spec
        options = _differences(saved, spec, (*LENGTH, *CONTENT), is_other=True)
        length = _differences(saved, spec, LENGTH)
        try:
            changed = self._find_changes(step, position)
        except (OSError, StoreError) as error:
            return {"problem": f"{where}: its data cannot be compared with those that are there now: {error}"}
        if options:
            also = [*_tell(length), *changed]
            content = f"; beside these options the data have changed: {list_some(also)}" if also else ""
            back = "use the old values, or another folder (--checkpoint-dir), or"
            return {
                "problem": f"{where} was saved with other data: {compare(*options)}{content}; {back} {WEIGHTS_ONLY}"
            }
        told = list_some([*_tell(length), *changed])
        if length:
            back = "put the old data back, or use another folder (--checkpoint-dir), or"
            return {
                "problem": f"{where} was trained on data of another length: {told}; {OTHER_LENGTH}, also not by"
                f" --data-changed ok: {back} {WEIGHTS_ONLY}"
            }
        is_unsure = all(said.endswith(NOT_COMPARED) for said in changed)
        since = f"was trained on data that {'may have changed' if is_unsure else 'have changed'} since"
        if changed and not self._is_allowed:
            return {"problem": f"{where} {since}: {told}; put the old data back, or {HOW_TO_ALLOW}; or {WEIGHTS_ONLY}"}
        if changed:
            after = count_batches(position) + 1
            return {"warning": f"{where} {since}: {told}; allowed, from step {after} on"}
        return {}

    def _find_changes(self, step: int, position: Mapping[str, Any]) -> list[str]:
        """A sentence for each change of the content that is known."""
        stored = position.get("data", {}).get("stored")
        marks = None if self._known is None else self._known.current_marks()
        changed: list[str] = []
        is_sure = False
        if stored is not None and marks is not None:
            saved, every = [Mark.from_json(each) for each in stored], position["data"]["every"]
            read = self._read_behind(saved, marks, every, step)
            changed = compare_marks(saved, [read.get(n, mark) for n, mark in enumerate(marks)], every)
            if not changed:
                changed = self._compare_whole(saved, every, step)
                is_sure = all(is_known(a, read.get(n, marks[n])) for n, a in enumerate(saved))
        if changed:
            return changed
        names = tuple(name for name in CONTENT if not is_sure or name != BYTES)
        found = _tell(_differences(position["data_spec"], self._spec, names))
        hint = "what is stored is the same: did a map, a filter or a decoder change?"
        return [*found, hint] if found and is_sure else found

    def _read_behind(self, saved: Sequence[Mark], marks: list[Mark], every: int, step: int) -> dict[int, Mark]:
        """Of what lay here and lies in a store now the bytes are compared: the store's word says nothing of them."""
        if self._known is None or len(saved) != len(marks):
            return {}
        pairs = enumerate(zip(saved, marks, strict=True))
        moved = {n: a for n, (a, b) in pairs if b.is_version and not a.is_version and a.size == b.size}
        names = list_some([marks[number].name for number in moved], 2, ", ", " ")
        why = f"reading {names} from the store, here when step {step} was saved"
        return self._known.read_behind(moved, every, why)

    def _compare_whole(self, saved: Sequence[Mark], every: int, step: int) -> list[str]:
        """What was written or replaced since the step was saved is read once more; all else is taken to be the same."""
        known = self._known
        assert known is not None and known.marks is not None
        if every != known.every or known.has_whole:
            return []
        pairs = list(enumerate(zip(saved, known.marks, strict=True)))
        asked = [n for n, (a, b) in pairs if a.whole and not b.whole and (a.stamp is None or a.stamp != b.stamp)]
        names = list_some([known.marks[number].name for number in asked], 2, ", ", " ")
        read = known.read_whole(asked, f"reading all of {names}, written or replaced since step {step} was saved")
        for number, (then, there) in pairs:
            if number in read:
                known.marks[number] = read[number]
            elif then.whole and number not in asked:
                known.marks[number] = replace(there, whole=then.whole)
        alike = [(a, b) for a, b in zip(saved, known.marks, strict=True) if a.is_version == b.is_version]
        found = [compare_mark(a, b, every) for a, b in alike]
        return [said for said in found if said is not None]


def count_batches(position: Mapping[str, Any]) -> int:
    """How many batches the state of a saved step has seen."""
    batches = split_state(position["loader_state"])[0]
    return batches if isinstance(batches, int) else 0


Differences: TypeAlias = tuple[dict[str, Any], dict[str, Any]]


def _differences(
    saved: Mapping[str, Any], now: Mapping[str, Any], names: Sequence[str], is_other: bool = False
) -> Differences | None:
    """Then and now, of the keys with these names or, if `is_other`, of all others; None where they are the same."""
    keys = [key for key in {**now, **saved} if _is_named(key, names) != is_other]
    # A version that was before fingerprints of bytes saved none.
    keys = [key for key in keys if not _is_named(key, (BYTES,)) or (key in saved and key in now)]
    then, there = ({key: each[key] for key in keys if key in each} for each in (saved, now))
    return (then, there) if then != there else None


def _is_named(key: str, names: Sequence[str]) -> bool:
    return key in names or key.startswith(tuple(f"{name} of " for name in names))


def _tell(differences: Differences | None) -> list[str]:
    """`records: 60,000 then, 59,000 now`, for each key."""
    if differences is None:
        return []
    then, now = differences
    keys = [key for key in {**now, **then} if then.get(key) != now.get(key)]
    return [f"{key}: {_show(then.get(key))} then, {_show(now.get(key))} now" for key in keys]


def _show(value: Any) -> str:
    return "none" if value is None else f"{value:,}" if isinstance(value, int) else str(value)
