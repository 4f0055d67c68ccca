"""Which processes are shown on the terminal; their logs have everything all the same."""

from __future__ import annotations

from pathlib import Path

import pytest
from conftest import Launch, Script

from hostmesh.launcher.errors import UsageError
from hostmesh.launcher.output.view import View, choose_view


@pytest.mark.parametrize(
    ("show", "wanted"),
    [("0", {0}), ("0,2", {0, 2}), ("1-3", {1, 2, 3}), ("0, 2-3", {0, 2, 3}), ("all", None)],
)
def test_processes_are_named_by_their_ids(show: str, wanted: set[int] | None) -> None:
    assert choose_view(show, quiet=False, num_processes=4).wanted == wanted


@pytest.mark.parametrize("show", ["", "x", "-1", "2-1", "4", "0-4", "0,,1", "ALL", "1-"])
def test_what_names_no_process_of_the_run_is_refused(show: str) -> None:
    with pytest.raises(UsageError, match="--show: found .*wanted"):
        choose_view(show, quiet=False, num_processes=4)


def test_all_means_every_line_and_quiet_none() -> None:
    assert choose_view(None, False, 4) == View(None, merge=True)
    assert choose_view("all", False, 4) == View(None, merge=False)
    assert choose_view(None, True, 4).wanted == frozenset()


TICKS = 20
SAYING = f"""
import os, sys, time
number = os.environ["HOSTMESH_PROCESS_ID"]
open("up-" + number, "w").close()
while not all(os.path.exists(f"up-{{k}}") for k in range(3)): time.sleep(0.01)
print("my number:", number)
for k in range({TICKS}):
    time.sleep(0.1 - time.time() % 0.1)
    print("tick", k)
open("done-" + number, "w").close()
while not all(os.path.exists(f"done-{{k}}") for k in range(3)): time.sleep(0.01)
if number == "1":
    time.sleep(0.5)
    print("a last word")
    sys.exit(3)
time.sleep(1000)
"""


@pytest.mark.parametrize(
    ("options", "shown", "merged"),
    [
        ([], (0, 1, 2), True),
        (["--show", "all"], (0, 1, 2), False),
        (["--show", "0,2"], (0, 2), True),
        (["--quiet"], (), False),
    ],
    ids=["default", "all", "0,2", "quiet"],
)
@pytest.mark.quick("default")
def test_a_run_shows_what_was_asked_for_and_its_verdict(
    launch: Launch, script: Script, tmp_path: Path, options: list[str], shown: tuple[int, ...], merged: bool
) -> None:
    done = launch("--local", "3", "--cold", *options, script(SAYING), all_lines=False)
    assert done.returncode == 3
    said: dict[int, list[str]] = {}
    labels = set()
    for line in done.stdout.splitlines():
        label, _, text = line[1:].partition("] ")
        labels.add(label.split()[0])
        for process_id in {"0-2": (0, 1, 2), "0,2": (0, 2)}.get(label.split()[0]) or map(
            int, label.split()[0].split("-")
        ):
            said.setdefault(process_id, []).append(text)
    ticks = [f"tick {k}" for k in range(TICKS)]
    assert {k: lines[: TICKS + 1] for k, lines in said.items()} == {k: [f"my number: {k}", *ticks] for k in shown}
    assert (",".join(map(str, shown)) if len(shown) == 2 else "0-2") in labels if merged else labels <= set("012")
    assert "process 1 on localhost exited with 3" in done.stderr and "a last word" in done.stderr
    logs = sorted(tmp_path.glob("runs/*/logs/*"))
    assert [log.read_text().splitlines()[: TICKS + 1] for log in logs] == [
        [f"my number: {k}", *ticks] for k in range(3)
    ]


def test_quiet_and_show_do_not_go_together(launch: Launch, script: Script) -> None:
    done = launch("--local", "2", "--quiet", "--show", "0", "--dry-run", script("pass"))
    assert done.returncode == 2 and "--quiet" in done.stderr and "--show" in done.stderr
