"""A run of one process here has the launcher's stdin, a debugger its terminal; several have none, and are told so."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from conftest import LAUNCH, Launch, Script, clean_env
from terminal import OnTerminal

READ_ALL = "import sys\nprint('read', sys.stdin.read().split(), flush=True)\n"


@pytest.fixture
def terminal(tmp_path: Path) -> Iterator[type[OnTerminal]]:
    opened: list[OnTerminal] = []

    class Opened(OnTerminal):
        def __init__(self, *command: str) -> None:
            super().__init__(tmp_path, *command)
            opened.append(self)

    yield Opened  # type: ignore[misc]
    for each in opened:
        each.close()


def test_a_debugger_works_on_the_launchers_terminal(terminal: type[OnTerminal], script: Script) -> None:
    name = script("x = 41\nname = input('who? ')\nprint('hello', name)\nbreakpoint()\nx += 1\nprint('x is', x)\n")
    screen = terminal(*LAUNCH, "--local", "1", name)  # type: ignore[call-arg, arg-type]
    screen.await_shown("[0 localhost] who? ")
    screen.type("ann\n")
    screen.await_shown("hello ann\r\n")
    screen.await_shown("[0 localhost] (Pdb) ")
    screen.type("p x * 10\n")
    screen.await_shown("\n410\r\n[0 localhost] (Pdb) ")
    screen.type("c\n")
    screen.await_shown("x is 42\r\n")
    assert screen.wait() == 0, screen.shown


def test_ctrl_c_ends_a_run_that_waits_at_a_prompt_and_the_terminal_is_as_before(
    terminal: type[OnTerminal], script: Script
) -> None:
    name = script("import getpass\ngetpass.getpass('secret? ')\n")
    done = "; stty -a | tr ' ' '\\n' | grep -x -e -echo -e echo; echo ended"
    command = " ".join(f"'{word}'" for word in [*LAUNCH, "--local", "1", name])
    screen = terminal("sh", "-c", f"trap : INT; {command}{done}")  # type: ignore[call-arg, arg-type]
    screen.await_shown("secret? ")
    screen.type("\x03")
    screen.await_shown("stopped by Ctrl-C")
    screen.await_shown("ended")
    assert "\necho\r\n" in screen.shown, screen.shown


def test_a_launcher_in_the_background_takes_nothing_from_the_terminal(
    terminal: type[OnTerminal], script: Script
) -> None:
    command = " ".join(f"'{word}'" for word in [*LAUNCH, "--local", "1", script(READ_ALL)])
    screen = terminal("sh", "-c", f"set -m; {command} & read answer; echo the shell got $answer; wait")  # type: ignore[call-arg, arg-type]
    screen.await_shown("read []")
    screen.type("this\n")
    screen.await_shown("the shell got this")


def test_what_is_piped_to_the_launcher_reaches_one_process_and_ends(tmp_path: Path, script: Script) -> None:
    def pipe(*args: str) -> str:
        command = [*LAUNCH, *args, script(READ_ALL)]
        done = subprocess.run(
            command, cwd=tmp_path, env=clean_env(), input="some data\n", capture_output=True, text=True
        )
        assert done.returncode == 0, done.stderr
        return done.stdout

    assert pipe("--local", "1") == "[0 localhost] read ['some', 'data']\n"
    assert pipe("--local", "2", "--show", "all").count("read []") == 2


@pytest.mark.parametrize("text", ["input('who? ')", "breakpoint()\nprint()"], ids=["input", "breakpoint"])
@pytest.mark.slow
def test_a_script_that_asks_is_told_why_nobody_answers(
    launch: Launch, script: Script, tmp_path: Path, text: str
) -> None:
    done = launch("--local", "2", script(text))
    assert done.returncode == 1
    logs = [log.read_text() for log in (tmp_path / "runs").glob("*/logs/*.log")]  # one may be killed as it says so
    for told in ("".join(logs), done.stderr):
        assert "no stdin" in told and "--local 1" in told


def test_an_end_of_something_else_is_no_missing_stdin(launch: Launch, script: Script) -> None:
    done = launch("--local", "1", script("raise EOFError('Ran out of input')"))
    assert done.returncode == 1 and "stdin" not in done.stderr + done.stdout
