"""What a loader tells of the batches it has handed out, and what of that an agent passes on."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from facts_socket import FactsSocket
from test_placement import GUIDE, placements

import hostmesh
from hostmesh.launcher.agent.processes.deliveries import PASS_EVERY, Deliveries
from hostmesh.launcher.audit.told import MAX_STRETCHES
from hostmesh.worker.audit import deliveries as telling
from hostmesh.worker.audit.last_word import LastWord, read_last_word
from hostmesh.worker.audit.used import find_own_rows, place_own_rows, sum_hashes, to_runs
from hostmesh.worker.identity import FACTS_SOCKET, PROCESS_ID

RECORDS = {"x": np.arange(50, dtype=np.int32)}


@pytest.fixture
def ears(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[FactsSocket]:
    """The agent's socket; time does not make a loader tell anything."""
    ears = FactsSocket(str(tmp_path / "facts"))
    monkeypatch.setenv(FACTS_SOCKET, ears.address)
    monkeypatch.setenv(PROCESS_ID, "0")
    monkeypatch.setattr(telling.time, "monotonic", lambda: -1.0)
    monkeypatch.setattr(telling, "LEDGER", ledger := telling.Ledger())
    monkeypatch.setattr(telling.Deliveries.__init__, "__defaults__", (ledger,))
    monkeypatch.setattr("hostmesh.worker.checkpoint.LEDGER", ledger)
    yield ears
    ears.socket.close()


def make_loader(**options: Any) -> hostmesh.Loader:
    return hostmesh.Loader(RECORDS, None, 12, **{"seed": 5, "epochs": 2, "verify": False, **options})


def take(loader: hostmesh.Loader, steps: int) -> None:
    for _ in range(steps):
        next(loader)


def told(ears: FactsSocket) -> list[tuple[int, int, int, int]]:
    """Loader, stretch, first and last step of each word."""
    words = [detail for name, detail in ears.facts() if name == "delivered"]
    return [(word["loader"], word["stretch"], word["first"], word["last"]) for word in words]


def test_before_a_state_is_given_away_all_steps_are_known_outside_of_the_process(
    ears: FactsSocket, tmp_path: Path
) -> None:
    loader = make_loader()
    take(loader, 3)
    assert told(ears) == []
    loader.state()
    assert told(ears) == [(0, 0, 1, 3)]
    for last in (4, 5):
        take(loader, 1)
        loader.state()
        word = read_last_word((tmp_path / "last-word-0-0").read_bytes())
        assert (word["first"], word["last"], word["kept"]) == (1, last, True)
    assert told(ears) == []
    telling.LEDGER.tell_all()
    assert told(ears) == [(0, 0, 1, 5)]


def test_where_no_file_can_be_made_every_state_is_told(ears: FactsSocket, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(telling, "open_last_word", lambda _: None)
    loader = make_loader()
    for _ in range(3):
        take(loader, 1)
        loader.state()
    assert told(ears) == [(0, 0, 1, 1), (0, 0, 1, 2), (0, 0, 1, 3)]


def test_what_is_told_are_the_records_that_were_read(ears: FactsSocket) -> None:
    loader = make_loader(tail="pad")
    used = [np.asarray(batch["x"])[np.asarray(batch["mask"])] for batch in loader]
    facts = dict(ears.facts())
    wanted = sum_hashes(range(1, len(used) + 1), [ids.astype(np.int64) for ids in used])
    assert facts["loading"]["rows"] == [[0, 12]]
    assert facts["delivered"]["rows"] == sum(map(len, used)) == 100
    assert facts["delivered"]["sum"] == f"{wanted:016x}"


def test_sums_do_not_depend_on_how_many_are_counted_at_once(ears: FactsSocket, monkeypatch: pytest.MonkeyPatch) -> None:
    sums = []
    for at_once in (1, 30, telling.COUNT_AT_ONCE):
        monkeypatch.setattr(telling, "COUNT_AT_ONCE", at_once)
        loader = make_loader()
        take(loader, 8)
        loader.state()
        sums.append([detail["sum"] for name, detail in ears.facts() if name == "delivered"][-1])
    assert len(set(sums)) == 1


def test_a_map_that_changes_the_ids_changes_no_count(ears: FactsSocket) -> None:
    sums = []
    for change in (0, 1):

        def spoil(block: Any, ids: Any, rng: Any, change: int = change) -> Any:
            ids += change
            return block

        loader = make_loader(map=spoil)
        take(loader, 3)
        loader.state()
        sums.append([detail["sum"] for name, detail in ears.facts() if name == "delivered"][-1])
    assert sums[0] == sums[1]


def test_a_source_that_is_asked_for_other_records_shows(ears: FactsSocket, monkeypatch: pytest.MonkeyPatch) -> None:
    sums = []
    for row in (0, 1):
        loader = make_loader(prefetch=0, device_prefetch=0)
        ids = loader._rows.order.ids  # type: ignore[union-attr]

        def other_ids(start: int, stop: int, row: int = row, ids: Any = ids) -> Any:
            found = ids(start, stop)
            found[0] = found[row]
            return found

        object.__setattr__(loader._rows.order, "ids", other_ids)  # type: ignore[union-attr]
        take(loader, 1)
        loader.state()
        sums.append([detail["sum"] for name, detail in ears.facts() if name == "delivered"][-1])
    assert sums[0] != sums[1]


def test_a_loader_tells_at_its_end_and_of_each_pass(ears: FactsSocket) -> None:
    loader = make_loader(epochs=1)
    for _ in range(2):
        for _ in loader:
            pass
    words = [detail for name, detail in ears.facts() if name == "delivered"]
    assert [(word["stretch"], word["last"], word.get("again")) for word in words] == [(0, 4, None), (1, 4, True)]


def test_a_loader_for_evaluation_says_nothing(ears: FactsSocket) -> None:
    training, evaluating = make_loader(), make_loader(epochs=1)
    take(training, 2)
    for _ in range(3):
        for _ in evaluating:
            pass
    training.state()
    assert told(ears) == [(0, 0, 1, 2)]


def test_a_loader_whose_state_is_taken_later_tells_from_then_on(ears: FactsSocket) -> None:
    first, second = make_loader(), make_loader()
    take(first, 1)
    take(second, 3)
    second.state()
    assert told(ears) == [(1, 0, 1, 3)]


def test_a_restored_loader_begins_a_stretch_of_its_own(ears: FactsSocket) -> None:
    loader = make_loader()
    take(loader, 4)
    loader.restore(2)
    take(loader, 1)
    loader.state()
    assert told(ears) == [(0, 0, 1, 4), (0, 1, 3, 3)]


def test_after_a_state_was_restored_the_loader_says_from_which_step(ears: FactsSocket) -> None:
    loader = make_loader()
    other = make_loader(seed=6)
    telling.LEDGER.note_restored(7, loader.data_spec)
    loader.restore(6)
    take(other, 1)
    take(loader, 1)
    for each in (other, loader):
        each.state()
    words = [detail for name, detail in ears.facts() if name == "delivered"]
    assert [(word["first"], word.get("restored")) for word in words] == [(1, None), (7, 7)]


def test_time_makes_a_loader_tell(ears: FactsSocket, monkeypatch: pytest.MonkeyPatch) -> None:
    loader = make_loader()
    for now in (0.0, 0.5, telling.TELL_EVERY + 0.1, telling.TELL_EVERY + 0.2):
        monkeypatch.setattr(telling.time, "monotonic", lambda now=now: now)
        take(loader, 1)
    assert told(ears) == [(0, 0, 1, 1), (0, 0, 1, 3)]


def test_a_save_is_told_to_the_launcher_at_once(ears: FactsSocket) -> None:
    loader = make_loader()
    take(loader, 2)
    loader.state()
    telling.LEDGER.tell_saved()
    assert [detail.get("now") for name, detail in ears.facts() if name == "delivered"] == [None, True]


def test_a_loader_for_evaluation_may_be_set_to_its_start(ears: FactsSocket) -> None:
    training, evaluating = make_loader(), make_loader(epochs=1)
    take(training, 2)
    evaluating.restore(0)
    take(evaluating, 4)
    telling.LEDGER.tell_all()
    assert told(ears) == [(0, 0, 1, 2)]


def test_a_loader_that_is_begun_over_and_over_is_not_followed_for_ever(ears: FactsSocket) -> None:
    assert telling.MAX_STRETCHES == MAX_STRETCHES
    loader = make_loader()
    stretches = set()
    for _ in range(MAX_STRETCHES + 5):
        loader.restore(1)
        take(loader, 1)
        stretches |= {stretch for _, stretch, _, _ in told(ears)}
    assert stretches == set(range(MAX_STRETCHES))


def test_an_agent_that_takes_nothing_is_waited_for_once(ears: FactsSocket, monkeypatch: pytest.MonkeyPatch) -> None:
    offers: list[str] = []
    monkeypatch.setattr(telling, "offer_fact", lambda name, **_: bool(offers.append(name)))
    ticks = iter(np.arange(0, 1000, 0.3).tolist())
    monkeypatch.setattr(telling.time, "monotonic", lambda: next(ticks))
    loader = make_loader(epochs=None)
    take(loader, 1)
    loader.state()
    before = len(offers)
    take(loader, 1)
    loader.state()
    assert before > 3 and len(offers) - before <= 2


def test_without_a_launcher_nothing_is_counted() -> None:
    loader = make_loader()
    take(loader, 1)
    assert loader._deliveries is None and len(loader._used) == 0


# Whose rows are whose.


@pytest.mark.parametrize("name", GUIDE)
@pytest.mark.parametrize("batch_size", [64, 61])
def test_every_row_is_one_processs_own(name: str, batch_size: int) -> None:
    """Also with rows beyond the batch, which only make shares equal."""
    own = [find_own_rows(each, batch_size) for each in placements(GUIDE[name][0], (64, 128))]
    assert sorted(np.concatenate(own).tolist()) == list(range(batch_size))


@pytest.mark.parametrize(
    ("own", "row_sets", "wanted"),
    [
        ([2, 3, 4], [[2, 3, 4]], [[2, 3, 4]]),
        ([2, 3, 7], [[0, 1, 2, 3], [2, 3, 6, 7]], [[2, 3], [7]]),
        ([0, 2], [[0, 1, 2]], [[0, 2]]),
        ([], [[0, 1]], [[]]),
    ],
)
def test_a_row_in_several_row_sets_counts_once(
    own: list[int], row_sets: list[list[int]], wanted: list[list[int]]
) -> None:
    sets = [np.array(rows) for rows in row_sets]
    places = place_own_rows(np.array(own, np.int64), sets)
    assert [rows[place].tolist() for rows, place in zip(sets, places, strict=True)] == wanted


def test_runs_of_rows() -> None:
    assert to_runs(np.array([0, 1, 2, 5, 8, 9])) == [[0, 3], [5, 6], [8, 10]]
    assert to_runs(np.array([], np.int64)) == []


# The agent.


def pass_words(words: Sequence[tuple[float, dict[str, Any]]], folder: str = "/nowhere") -> list[Any]:
    now, passed = 0.0, []
    agent = Deliveries(folder, lambda fact: passed.append(fact.detail), lambda: now)
    for at, word in words:
        now = at
        agent.add(3, {"loader": 0, "stretch": 0, **word})
    agent.pass_on(3)
    return [(detail["stretch"], detail["last"]) for detail in passed]


def test_an_agent_passes_on_the_last_word_before_the_end() -> None:
    assert pass_words([(0.001 * step, {"last": step}) for step in range(1, 1000)]) == [(0, 1), (0, 999)]


def test_an_agent_passes_on_a_word_now_and_then_and_ever_more_rarely() -> None:
    steps = range(100_000)
    passed = [last for _, last in pass_words([(float(step), {"last": step}) for step in steps])]
    gaps = np.diff(passed)
    assert gaps[:20].tolist() == [PASS_EVERY] * 20 and gaps[-2] > 900 and len(passed) < 700


def test_an_agent_holds_nothing_back_of_a_stretch_that_is_over() -> None:
    words = [(0.0, {"last": 1}), (0.1, {"last": 4}), (0.2, {"stretch": 1, "last": 2}), (0.3, {"stretch": 1, "last": 3})]
    assert pass_words(words) == [(0, 1), (0, 4), (1, 3)]


def test_an_agent_passes_on_a_save_at_once() -> None:
    words: list[tuple[float, dict[str, Any]]] = [
        (0.0, {"last": 1}),
        (0.1, {"last": 2, "now": True}),
        (0.2, {"last": 3}),
    ]
    assert pass_words(words) == [(0, 1), (0, 2), (0, 3)]


@pytest.fixture
def last_word(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> LastWord:
    monkeypatch.setenv(FACTS_SOCKET, str(tmp_path / "facts"))
    monkeypatch.setenv(PROCESS_ID, "3")
    return LastWord(0)


@pytest.mark.parametrize(("heard", "written"), [(2, 7), (7, 2)])
def test_an_agent_passes_on_the_later_of_what_it_heard_and_what_was_written(
    last_word: LastWord, tmp_path: Path, heard: int, written: int
) -> None:
    last_word.write({"loader": 0, "stretch": 0, "last": written})
    words = [(0.0, {"last": 1}), (0.1, {"last": heard})]
    assert pass_words(words, str(tmp_path)) == [(0, 1), (0, 7)]
    assert list(tmp_path.glob("last-word*")) == []


def test_half_a_word_is_passed_over(last_word: LastWord, tmp_path: Path) -> None:
    path = tmp_path / "last-word-3-0"
    assert read_last_word(path.read_bytes()) == {}
    for last in (1, 2, 3):
        last_word.write({"last": last})
    whole = path.read_bytes()
    assert read_last_word(whole) == {"last": 3}
    third = whole.index(b'"last": 3')
    assert read_last_word(whole[:third] + bytes(20) + whole[third + 20 :]) == {"last": 2}


@pytest.mark.parametrize("data", [b"", b"x" * 5000, b"99 {}", b"0d4cbb29 []\n", b"\xff" * 2048])
def test_a_strange_file_does_no_harm(tmp_path: Path, data: bytes) -> None:
    (tmp_path / "last-word-3-0").write_bytes(data)
    assert pass_words([(0.0, {"last": 1}), (0.1, {"last": 2})], str(tmp_path)) == [(0, 1), (0, 2)]


def test_the_recount_does_without_jax() -> None:
    import subprocess

    code = "import sys, hostmesh.worker.audit.recount; assert 'jax' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True, cwd=Path(hostmesh.__file__).parent.parent)
