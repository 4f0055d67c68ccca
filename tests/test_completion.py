"""What a shell completes after `launch`, typed into real shells."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest
from conftest import Launch
from terminal import OnTerminal

# Says what it was called with, in place of the command.
SHOW = """launch() { printf "called"; printf " <%%s>" "$@"; echo " ."; }
source %s
echo ready
"""
SHELLS = {
    "bash": (["bash", "--norc", "--noprofile", "-i"], ""),
    "zsh": (["zsh", "-f", "-i"], "autoload -U compinit; compinit -u -D\n"),
}
TYPED = [
    ("--hos\t x.yaml", "<--hosts> <x.yaml>"),
    ("--local 2 --dry\t", "<--local> <2> <--dry-run>"),
    ("--completion z\t", "<--completion> <zsh>"),
    ("che\t --time\t 3", "<check> <--timeout> <3>"),
    ("--hosts my\t", "<--hosts> <my cluster.yaml>"),
    ("--cha\t my\t", "<--chaos> <my cluster.yaml>"),
    ("--runs fol\t", "<--runs> <folder"),
    ("--local 2 tra\t", "<--local> <2> <train.py>"),
    ("train.py --hos\t", "<train.py> <--hos>"),
    ("-- --hos\t", "<--> <--hos>"),
]


def needs(shell: str) -> None:
    if shutil.which(shell) is None:
        pytest.skip(f"no {shell} here")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for name in ("my cluster.yaml", "train.py"):
        (tmp_path / name).touch()
    (tmp_path / "folder").mkdir()
    return tmp_path


@pytest.mark.parametrize("shell", SHELLS)
def test_a_tab_completes_options_values_and_files(launch: Launch, folder: Path, shell: str) -> None:
    needs(shell)
    printed = launch("--completion", shell)
    assert printed.returncode == 0 and not printed.stderr
    (folder / "complete").write_text(printed.stdout)
    assert subprocess.run([shell, "-n", "complete"], cwd=folder).returncode == 0
    argv, before = SHELLS[shell]
    (folder / "begin").write_text(before + SHOW % "./complete")
    plain = {"TERM": "dumb", "PS1": "$ ", "HOME": str(folder), "ZDOTDIR": str(folder)}
    terminal = OnTerminal(folder, *argv, env=plain)
    try:
        terminal.type(". ./begin\r")
        terminal.await_shown("ready\r\n")
        for typed, wanted in TYPED:
            terminal.type(f"launch {typed}\r")
            shown = terminal.await_shown("> .\r\n")
            assert wanted in shown, (typed, shown)
    finally:
        terminal.close()


@pytest.mark.parametrize(
    ("typed", "wanted"),
    [
        ("--hos", {"--hosts"}),
        ("--local 2 --dry", {"--dry-run"}),
        ("--completion ", {"bash", "zsh", "fish"}),
        ("che", {"check"}),
        ("check --time", {"--timeout"}),
        ("--local 2 tra", {"train.py"}),
        ("--hosts my", {"my cluster.yaml"}),
        ("train.py --hos", set()),
    ],
)
def test_fish_completes_them_too(launch: Launch, folder: Path, typed: str, wanted: set[str]) -> None:
    needs("fish")
    (folder / "complete").write_text(launch("--completion", "fish").stdout)
    command = f"source complete; complete -C 'launch {typed}'"
    done = subprocess.run(["fish", "-N", "-c", command], cwd=folder, capture_output=True, text=True, timeout=240)
    assert not done.stderr
    assert {line.partition("\t")[0] for line in done.stdout.splitlines()} == wanted


def test_another_shell_is_refused_by_name(launch: Launch) -> None:
    done = launch("--completion", "tcsh")
    assert done.returncode == 2 and "tcsh" in done.stderr and "fish" in done.stderr
