"""The audit over events made by hand: what it calls exact, what it finds wrong, and what it cannot know."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest
from told_events import Events

from hostmesh.launcher.audit import asking
from hostmesh.launcher.audit.asking import Recounter
from hostmesh.launcher.audit.audit import audit_events
from hostmesh.launcher.audit.line import tell_audit
from hostmesh.worker.audit.recount import Uses, recount


def test_a_run_that_used_every_record_once_is_exact() -> None:
    events = Events()
    events.deliver(1, 12, words=[5])
    events.end()
    assert events.audit() == {
        **{"exact": True, "steps": 12, "first_step": 1, "records": 144, "epochs": 3, "left_out": 6},
        **{"repeated_steps": 0, "problems": [], "unknown": [], "attempts": 1},
    }


def test_steps_that_are_done_again_count_once() -> None:
    events = Events()
    events.deliver(1, [9, 7])
    events.begin_attempt(last_step=8)
    events.deliver(7, 8, restored=6)
    events.begin_attempt()
    events.deliver(7, 12, restored=6)
    events.end()
    found = events.audit()
    assert (found["exact"], found["steps"], found["records"], found["repeated_steps"]) == (True, 12, 144, 3 + 2)
    assert tell_audit(found) == (
        "launch: audit: 12 steps, 144 records, each used exactly once in 3 epochs, 6 left out;"
        " 5 steps were done again after 2 restarts"
    )


def test_a_run_that_continues_an_earlier_one_begins_where_that_ended() -> None:
    events = Events()
    events.deliver(5, 12, restored=4)
    events.end()
    found = events.audit()
    assert (found["exact"], found["first_step"], found["steps"], found["records"]) == (True, 5, 8, 96)
    assert "8 steps from step 5 on" in str(tell_audit(found))


@pytest.mark.parametrize("numbers", [(4, 3, 4), (1, 2, 1)])
def test_the_number_of_processes_may_change_between_attempts(numbers: tuple[int, ...]) -> None:
    events = Events()
    events.deliver(1, 5, processes=numbers[0])
    for first, number in zip((5, 9), numbers[1:], strict=True):
        events.begin_attempt()
        events.deliver(first, first + 3, processes=number)
    events.end()
    assert events.audit()["exact"] is True


@pytest.mark.parametrize(("tail", "records", "left_out"), [("pad", 100, 0), ("drop", 96, 4), ("carry", 96, 4)])
def test_every_tail(tail: str, records: int, left_out: int) -> None:
    events = Events(tail=tail, epochs=2)
    assert events.schedule.total is not None
    events.deliver(1, events.schedule.total, words=[4, 5])
    events.end()
    found = events.audit()
    assert (found["exact"], found["records"], found["epochs"], found["left_out"]) == (True, records, 2, left_out)


def test_data_that_is_gone_through_again_is_another_pass() -> None:
    events = Events(epochs=1, tail="pad")
    for nth in range(3):
        events.deliver(1, 5, stretch=nth, again=nth > 0)
    events.end()
    found = events.audit()
    assert (found["exact"], found["steps"], found["records"], found["repeated_steps"]) == (True, 15, 150, 0)


# What is wrong.


def problems_of(events: Events) -> str:
    found = events.audit()
    assert found["exact"] is False
    assert "NOT every record was used exactly once" in str(tell_audit(found))
    return "; ".join(found["problems"])


def test_a_record_that_is_used_twice_is_found() -> None:
    events = Events()
    events.ids[1, 7] = [1, 2, 3, 4, 5, 5]
    events.deliver(1, 12, words=[5, 9])
    events.end()
    assert problems_of(events) == (
        "steps 6 to 9 of attempt 1: process 1 used other records than those of the order: some twice, some not at all"
    )


def test_records_in_another_step_than_their_own_are_found() -> None:
    """The same records over all steps, and yet a resume in between would use some twice."""
    events = Events()
    ids = {step: events.order.ids(*events.schedule.positions(step - 1))[:6].tolist() for step in (3, 4)}
    events.ids[0, 3], events.ids[0, 4] = ids[4], ids[3]
    events.deliver(1, 12)
    events.end()
    assert "process 0 used other records" in problems_of(events)


def test_a_record_that_is_missing_is_found() -> None:
    events = Events()
    events.ids[0, 12] = [1, 2, 3, 4, 5]
    events.deliver(1, 12, words=[11])
    events.end()
    assert problems_of(events) == "step 12 of attempt 1: process 0 used 1 record too few"


def test_a_step_that_a_process_skipped_is_found() -> None:
    events = Events()
    events.deliver(1, 12)
    last = json.loads(events.lines.pop())
    last["detail"]["steps"] = 11
    events.lines.append(json.dumps(last).encode())
    events.end()
    assert "of steps 1 to 12 of attempt 1 process 1 delivered 11, wanted 12" in problems_of(events)


def test_steps_that_no_attempt_delivered_are_found() -> None:
    events = Events()
    events.deliver(1, 5)
    events.begin_attempt()
    events.deliver(8, 12)
    events.end()
    assert problems_of(events) == "steps 6 to 7 are missing: attempt 2 went on with step 8"


@pytest.mark.parametrize(
    ("first", "problem"),
    [
        (6, "step 6 was used twice: attempt 2 restored what was saved after step 6 and went on with step 6"),
        (1, "steps 1 to 6 were used twice: attempt 2 restored what was saved after step 6 and went on with step 1"),
        (8, "step 7 was left out: attempt 2 restored what was saved after step 6 and went on with step 8"),
    ],
)
def test_a_loader_that_goes_on_elsewhere_than_the_state_is_found(first: int, problem: str) -> None:
    events = Events()
    events.deliver(1, 9)
    events.begin_attempt()
    events.deliver(first, 12, restored=6)
    events.end()
    assert problem in problems_of(events)


def test_processes_that_go_on_from_different_steps_are_found() -> None:
    events = Events()
    events.deliver(1, 12, processes=3)
    late = [line for line in events.lines if b'"process_id": 1' in line and b"delivered" in line]
    events.lines = [line for line in events.lines if line not in late]
    word = json.loads(late[0])
    word["detail"]["first"], word["detail"]["steps"] = 2, 11
    events.lines.append(json.dumps(word).encode())
    events.end()
    assert "in attempt 1 process 1 began with step 2, the others with step 1" in problems_of(events)


def test_processes_that_end_at_different_steps_of_a_run_that_succeeded_are_found() -> None:
    events = Events()
    events.deliver(1, [12, 11])
    events.end()
    assert problems_of(events) == "process 1 delivered 11 steps, others 12"


def test_what_went_wrong_in_steps_that_were_done_again_is_no_part_of_the_history() -> None:
    events = Events()
    events.ids[1, 9] = [1, 2, 3, 4, 5, 5]
    events.deliver(1, 9, words=[6])
    events.begin_attempt()
    events.ids.clear()
    events.deliver(7, 12, restored=6)
    events.end()
    assert events.audit()["exact"] is True


def test_a_record_twice_in_an_epoch_is_counted() -> None:
    uses = Uses(5)
    uses.add(0, np.array([3, 1, 4, 1, 0, 2, 2]))
    uses.add(7, np.array([2, 0, 1]))
    assert uses.finish() == 1 + 2


def test_an_order_that_has_a_record_twice_is_found() -> None:
    events = Events()
    events.deliver(1, 12)
    events.end()
    found = audit_events(events.lines, lambda question: {**recount(question), "twice": 2})
    assert found is not None and found["problems"] == ["the order has 2 records twice in an epoch"]


# What is not known.


def why_unknown(events: Events, **more: Any) -> str:
    found = audit_events(events.lines, **{"recount": recount, **more})
    assert found is not None and found["exact"] is None and not found["problems"]
    return "; ".join(found["unknown"])


def test_what_a_lost_process_did_not_tell_is_not_known() -> None:
    events = Events()
    events.deliver(1, [9, 4])
    events.begin_attempt()
    events.deliver(7, 12)
    events.end()
    assert why_unknown(events) == "process 1 did not tell of steps 5 to 6 of attempt 1"


def test_a_process_that_told_nothing_at_all_is_missed() -> None:
    events = Events()
    events.deliver(1, 12)
    events.lines = [line for line in events.lines if b'"process_id": 1' not in line]
    events.end()
    assert why_unknown(events) == "in attempt 1 no process told of row 6 of each batch"


def test_processes_that_went_on_without_one_are_not_vouched_for() -> None:
    events = Events()
    events.deliver(1, [12, 4])
    events.tell("process exited", process_id=0, code=0)
    events.tell("process exited", process_id=1, code=-9)
    events.end("failed")
    assert "process 1 delivered 4 steps, others 12" in why_unknown(events)


def test_of_a_run_that_failed_the_steps_of_all_processes_count() -> None:
    events = Events()
    events.deliver(1, [9, 7])
    events.end("failed")
    found = events.audit()
    assert (found["exact"], found["steps"], found["records"]) == (True, 7, 84)


def test_processes_that_ran_separately_have_no_common_history() -> None:
    events = Events()
    for process in range(2):
        other = Events()
        other.deliver(1, 12, processes=1)
        events.lines += [line.replace(b'"process_id": 0', b'"process_id": %d' % process) for line in other.lines]
    events.end()
    assert "they ran separately" in why_unknown(events)


def test_of_a_stream_only_steps_are_counted() -> None:
    events = Events()
    events.deliver(1, [6, 6])
    events.begin_attempt()
    events.deliver(6, 12)
    events.end()
    events.lines = [line.replace(b'"length": 50', b'"stream": "s"') for line in events.lines]
    assert why_unknown(events) == "the records of a stream have no numbers: only its steps are counted"
    found = events.audit()
    assert (found["steps"], found["repeated_steps"], found["records"]) == (12, 1, None)


def test_without_a_recount_the_reason_is_told() -> None:
    events = Events()
    events.deliver(5, 12)
    events.end()
    found = audit_events(events.lines, lambda _: "there is no numpy")
    assert found is not None and (found["exact"], found["steps"]) == (None, 8)
    assert str(tell_audit(found)).endswith("is not known: there is no numpy")


def test_too_many_records_are_not_recounted(monkeypatch: pytest.MonkeyPatch) -> None:
    events = Events()
    events.deliver(1, 12)
    events.end()
    monkeypatch.setattr(asking, "MAX_RECORDS", 143)
    with Recounter() as asked, Recounter(timeout=None) as asked_without_limit:
        assert why_unknown(events, recount=asked).startswith("144 records are more than the 143 recounted")
        assert audit_events(events.lines, asked_without_limit) == events.audit()


def test_the_recount_is_asked_of_one_python_for_all_loaders(monkeypatch: pytest.MonkeyPatch) -> None:
    events = Events()
    events.deliver(1, 12, loader=0, words=[3])
    events.ids[0, 2] = [1, 2, 3, 4, 5, 5]
    events.deliver(1, 4, loader=1)
    events.end()
    started: list[Any] = []
    start = asking.Recounter._start
    monkeypatch.setattr(asking.Recounter, "_start", lambda self: started.append(start(self)) or started[-1])
    assert audit_events(events.lines) == events.audit()
    (python,) = started
    assert python.poll() is not None


def test_a_recount_that_fails_is_told_and_the_next_one_is_asked_of_another_python(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    events = Events()
    events.deliver(1, 12)
    events.end()
    fails = "import sys; sys.stdin.readline(); sys.exit('no numpy here')"
    with Recounter() as recounter:
        with monkeypatch.context() as patch:
            patch.setattr(asking, "PROGRAM", fails)
            assert why_unknown(events, recount=recounter) == "the recount failed: no numpy here"
            patch.setattr(asking, "PROGRAM", "import sys; sys.exit(3)")
            assert why_unknown(events, recount=recounter) == "the recount failed: exit code 3"
        assert audit_events(events.lines, recounter) == events.audit()


def test_a_recount_that_takes_too_long_is_told_and_ended() -> None:
    events = Events()
    events.deliver(1, 12)
    events.end()
    with Recounter(timeout=0.0) as recounter:
        assert why_unknown(events, recount=recounter).startswith("the recount took longer than 0 s; `python -m")


# Which loader, and damaged events.


def test_loaders_whose_state_was_never_taken_are_not_audited() -> None:
    events = Events()
    events.deliver(1, 4, loader=0, kept=False)
    events.deliver(1, 12, loader=1)
    events.ids[0, 2] = [1, 2, 3, 4, 5, 5]
    events.deliver(1, 3, loader=2, kept=False)
    events.end()
    found = events.audit()
    assert (found["exact"], found["steps"]) == (True, 12) and "loaders" not in found


def test_where_no_state_was_taken_the_first_loader_is_audited() -> None:
    events = Events()
    events.deliver(1, 12, loader=3, kept=False)
    events.end()
    assert (events.audit()["exact"], events.audit()["steps"]) == (True, 12)


def test_several_loaders_are_audited_each() -> None:
    events = Events()
    events.deliver(1, 12, loader=0)
    events.ids[0, 2] = [1, 2, 3, 4, 5, 5]
    events.deliver(1, 4, loader=1)
    events.end()
    found = events.audit()
    assert [each["exact"] for each in found["loaders"]] == [True, False] and found["exact"] is False


def test_no_loader_no_audit() -> None:
    events = Events()
    events.end()
    assert audit_events(events.lines, recount) is None
    assert tell_audit(None) is None


def test_damaged_events_are_passed_over() -> None:
    events = Events()
    events.deliver(1, 12, words=[3, 6, 9])
    whole = list(events.lines)
    events.lines[3] = events.lines[3][:50] + b"\n"
    for strange in ({"loader": []}, {"loader": 0, "stretch": 0, "first": -1}, {"loader": 0, "sum": "x"}, {}):
        events.say("delivered", 0, **strange)
        events.say("loading", 0, **strange)
    events.lines += [b'"event": "delivered"\n', b'["event": "loading"]\n', b'"\xff"event": "delivered"']
    events.end()
    assert events.audit()["exact"] is True
    assert len(whole) < len(events.lines)


def test_a_plain_run_gets_no_line() -> None:
    events = Events()
    events.deliver(1, 12)
    events.end()
    assert tell_audit(events.audit()) is None


def test_what_a_stopped_agent_kept_to_itself_is_told_by_the_save() -> None:
    """The steps 6 to 10 of process 1 are in no word of its own; the attempt that goes on from step 10 brings them."""
    whole = Events()
    whole.deliver(1, 10)
    [word] = [json.loads(line) for line in whole.lines if b'"delivered"' in line and b'"process_id": 1' in line]
    told = Events()
    told.deliver(1, [10, 5])
    told.begin_attempt(10)
    told.deliver(11, 12, restored=10)
    told.end()
    assert told.audit()["exact"] is None
    told.say("delivered before", 0, attempt=1, process=1, word=word["detail"])
    assert told.audit()["exact"] is True
