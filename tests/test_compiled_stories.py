"""Stories of compiled programs that are carried to the hosts that lack them, with scripted agents."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from fake_agent import End, FakeAgent, Script
from stories import Story, names_of

from hostmesh.launcher.protocol import wire
from hostmesh.launcher.supervisor.compiled import ANSWER_TIMEOUT, ASK_AFTER, PIECES

FOLDER = "jax-0.10.2-0.10.2-0123456789ab"
A, B = "a" * 40, "b" * 40
OURS = (wire.ShareCompiled, wire.FindCompiled, wire.ReadCompiled, wire.StoreCompiled)
SIZE = 300 << 10

Tell = Callable[..., Story]


@pytest.fixture
def tell(tmp_path: Path) -> Tell:
    def make(*agents: FakeAgent, **settings: Any) -> Story:
        return Story(tmp_path, agents, **settings)

    return make


def host_of_process_0(used: dict[str, int] | None = None, **script: Any) -> FakeAgent:
    answers: Script = {
        wire.ShareCompiled: lambda *_: [wire.CompiledUsed(FOLDER, {A: SIZE} if used is None else used)],
        wire.ReadCompiled: lambda _, order: [
            wire.CompiledPiece(order.folder, order.name, order.start, b"x" * order.size)
        ],
    }
    return FakeAgent({**answers, **script})


def lacking(*names: str, ok: bool = True) -> FakeAgent:
    answers: Script = {
        wire.FindCompiled: lambda _, order: [
            wire.CompiledLacking(order.folder, [name for name in order.names if name in names])
        ],
        wire.StoreCompiled: lambda _, order: [wire.CompiledStored(order.folder, order.name, order.start, ok)],
    }
    return FakeAgent(answers)


def end_at(story: Story, seconds: float) -> None:
    for process in story.plan.processes:
        story.exit_at(seconds, process.process_id, 0)


def stored(story: Story, host: int) -> dict[str, int]:
    """How many bytes a host was sent of each program."""
    sizes: dict[str, int] = {}
    for order in story.commands(host, wire.StoreCompiled):
        assert order.start == sizes.get(order.name, 0) and order.size == SIZE
        sizes[order.name] = order.start + len(order.data)
    return sizes


def test_a_host_is_sent_what_it_lacks_and_no_other(tell: Tell) -> None:
    story = tell(host_of_process_0({A: SIZE, B: SIZE}), lacking(B), lacking(), lacking(A, B))
    end_at(story, 60)
    assert story.run().exit_code == 0
    assert [stored(story, host) for host in range(4)] == [{}, {B: SIZE}, {}, {A: SIZE, B: SIZE}]
    read = story.commands(0, wire.ReadCompiled)
    assert sum(order.size for order in read) == 2 * SIZE  # each once, however many lack it


def test_hosts_are_asked_when_they_have_had_time_to_compile(tell: Tell) -> None:
    story = tell(host_of_process_0(), lacking(A))
    asked_at: list[float] = []
    find = story.agents[1]._script[wire.FindCompiled]
    story.agents[1]._script[wire.FindCompiled] = lambda agent, order: (
        asked_at.append(story.inbox.now()) or find(agent, order)  # type: ignore[func-returns-value]
    )
    end_at(story, 60)
    story.run()
    assert len(asked_at) == 1 and ASK_AFTER <= asked_at[0] <= ASK_AFTER + 2


def test_one_piece_is_on_its_way_at_a_time_and_none_is_large(tell: Tell) -> None:
    silent = FakeAgent({wire.FindCompiled: lambda _, order: [wire.CompiledLacking(order.folder, order.names)]})
    story = tell(host_of_process_0({A: SIZE, B: SIZE}), silent)
    story.at(ANSWER_TIMEOUT / 2, lambda: seen.extend(story.commands(0, wire.ReadCompiled)))
    seen: list[Any] = []
    end_at(story, ANSWER_TIMEOUT - 5)
    assert story.run().exit_code == 0
    assert len(seen) == 1 and len(story.commands(1, wire.StoreCompiled)) == 1
    assert len(story.commands(1, wire.StoreCompiled)[0].data) <= PIECES.first < SIZE


def test_nothing_is_sent_when_all_have_it(tell: Tell) -> None:
    story = tell(host_of_process_0(), lacking(), lacking())
    end_at(story, 30)
    assert story.run().exit_code == 0
    assert len(story.commands(1, wire.FindCompiled)) == 1
    assert not story.commands(0, wire.ReadCompiled) and not story.commands(1, wire.StoreCompiled)


def test_a_host_that_refuses_a_program_is_sent_no_more_of_it(tell: Tell) -> None:
    story = tell(host_of_process_0({A: SIZE, B: SIZE}), lacking(A, B, ok=False), lacking(A))
    end_at(story, 60)
    assert story.run().exit_code == 0
    assert [order.start for order in story.commands(1, wire.StoreCompiled)] == [0, 0]
    assert stored(story, 2) == {A: SIZE}
    assert "refused" not in story.shown and "compiled" not in story.shown


def test_a_host_that_does_not_answer_holds_nobody_up_for_long(tell: Tell) -> None:
    story = tell(host_of_process_0(), FakeAgent(), lacking(A))
    end_at(story, ANSWER_TIMEOUT + 30)
    assert story.run().exit_code == 0
    assert stored(story, 2) == {A: SIZE}


def test_a_host_that_takes_no_piece_holds_nobody_up_for_long(tell: Tell) -> None:
    silent = FakeAgent({wire.FindCompiled: lambda _, order: [wire.CompiledLacking(order.folder, order.names)]})
    story = tell(host_of_process_0({A: SIZE, B: SIZE}), silent, lacking(A, B))
    end_at(story, ANSWER_TIMEOUT + 30)
    assert story.run().exit_code == 0
    assert stored(story, 2) == {A: SIZE, B: SIZE} and len(story.commands(1, wire.StoreCompiled)) == 1


def test_a_program_that_is_gone_is_left_out(tell: Tell) -> None:
    gone = {
        wire.ReadCompiled: lambda _, order: [
            wire.CompiledPiece(order.folder, order.name, order.start, b"" if order.name == A else b"x" * order.size)
        ]
    }
    source = host_of_process_0({A: SIZE, B: SIZE})
    source._script |= gone
    story = tell(source, lacking(A, B))
    end_at(story, 60)
    assert story.run().exit_code == 0
    assert stored(story, 1) == {B: SIZE}


def test_a_lost_host_ends_what_was_carried_to_it(tell: Tell) -> None:
    story = tell(host_of_process_0(), lacking(A), keep_going=True)
    story.agents[1]._script[wire.StoreCompiled] = lambda *_: [End()]
    end_at(story, 40)
    verdict = story.run()
    assert verdict.host == "b" and len(story.commands(0, wire.ReadCompiled)) == 1


def test_a_run_that_ends_stops_carrying(tell: Tell) -> None:
    """The answer to the first piece comes when the run is ending, and the host of process 0 could still be asked."""
    source, target = host_of_process_0(), lacking(A)
    store = target._script[wire.StoreCompiled]
    story = tell(source, target)
    target._script[wire.StoreCompiled] = lambda *_: []
    source._script[wire.Stop] = lambda *_: []
    target._script[wire.Stop] = lambda agent, _: store(agent, story.commands(1, wire.StoreCompiled)[-1])
    end_at(story, 20)
    story.say_at(22, 0, wire.Bye([]), End())
    story.say_at(22, 1, wire.Bye([]), End())
    assert story.run().exit_code == 0
    assert len(story.commands(0, wire.ReadCompiled)) == 1


def test_one_host_is_not_asked_for_anything(tell: Tell) -> None:
    story = tell(host_of_process_0())
    end_at(story, 30)
    assert story.run().exit_code == 0
    assert not [command for command in story.agents[0].heard if isinstance(command, OURS)]


def test_nothing_is_carried_where_nothing_is_kept(tell: Tell) -> None:
    story = tell(host_of_process_0(), lacking(A), compile_cache="off")
    end_at(story, 30)
    assert story.run().exit_code == 0
    heard = [command for agent in story.agents for command in agent.heard]
    assert not [command for command in heard if isinstance(command, OURS)]
    assert {order.env["HOSTMESH_COMPILED"] for order in heard if isinstance(order, wire.Spawn)} == {"off"}


def test_the_next_attempt_asks_again(tell: Tell) -> None:
    story = tell(host_of_process_0(), lacking(A), restarts=1)
    story.exit_at(30, 0, 1)
    story.at(60, lambda: [agent.say(*agent.end_all(0)) for agent in story.agents])
    assert story.run().exit_code == 0
    assert names_of(story.agents[0].heard).count("ShareCompiled") == 2
    assert len(story.commands(1, wire.FindCompiled)) >= 2


@pytest.mark.parametrize(
    "word",
    [
        wire.CompiledUsed(FOLDER, ["a"]),  # type: ignore[arg-type]
        wire.CompiledUsed(7, {A: 100}),  # type: ignore[arg-type]
        wire.CompiledUsed(FOLDER, {A: "100"}),  # type: ignore[dict-item]
        wire.CompiledLacking(FOLDER, {A: 100}),  # type: ignore[arg-type]
        wire.CompiledLacking(FOLDER, [[]]),  # type: ignore[list-item]
    ],
)
def test_words_that_make_no_sense_lose_the_host(tell: Tell, word: Any) -> None:
    story = tell(host_of_process_0(), lacking(A))
    story.say_at(3, 0, word)
    end_at(story, 10)
    verdict = story.run()
    assert verdict.host == "a" and "broke the agent protocol" in verdict.text()


def test_only_the_host_of_process_0_tells_what_is_used(tell: Tell) -> None:
    story = tell(host_of_process_0(), lacking(A))
    story.say_at(3, 1, wire.CompiledUsed(FOLDER, {A: 100}))
    end_at(story, 10)
    assert story.run().host == "b"


def test_names_that_are_none_and_sizes_without_bound_are_not_carried(tell: Tell) -> None:
    story = tell(host_of_process_0({"../x": SIZE, A: 1 << 40, B: 0}), lacking(A, B))
    end_at(story, 30)
    assert story.run().exit_code == 0
    assert not story.commands(1, wire.FindCompiled)


def test_a_folder_that_cannot_be_used_is_told_once(tell: Tell) -> None:
    story = tell(host_of_process_0(), lacking())
    for process_id in (0, 1):
        story.say_at(3, 0, wire.Fact("compile cache", process_id, {"problem": "No space left on device: /cache"}))
    end_at(story, 10)
    assert story.run().exit_code == 0
    assert story.shown.count("compiled programs are not kept on a: No space left on device: /cache") == 1
