"""Hosts whose shell start-up files or limits keep an agent from starting say so, against a real sshd."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import pytest
from conftest import HANGS, LAUNCH, await_true, clean_env
from sshd import Sshd, needs_sshd

from hostmesh.launcher.supervisor.startup.remedies import explain_no_agent

pytestmark = needs_sshd

# For start-up files after which no agent ever says hello; where one does, a busy machine needs its time.
SILENT = ("exec sh", "exec bash", "exec cat", "cat ")
SHORT_TIMEOUTS = "from hostmesh.launcher.supervisor.link import liveness; liveness.HELLO_TIMEOUT = 6.0; "

Try = Callable[..., tuple[int, str]]


@pytest.fixture(scope="module")
def sshd(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Sshd]:
    """Runs `start-up` before each command, as a shell does with its own files."""
    folder = tmp_path_factory.mktemp("sshd")
    (folder / "wrapper").write_text(f'#!/bin/bash\n. {folder}/start-up\nexec bash -c "$SSH_ORIGINAL_COMMAND"\n')
    (folder / "wrapper").chmod(0o755)
    server = Sshd(folder / "server", f"ForceCommand {folder}/wrapper")
    yield server
    server.close()


@pytest.fixture
def attempt(sshd: Sshd, tmp_path: Path) -> Try:
    """The exit code of a run, or of a check, and what it said in one line."""
    (tmp_path / "empty").touch()
    ssh = {"config": "empty", "known_hosts": str(sshd.known_hosts), "identity_files": [str(sshd.identity)]}
    hosts = [{"address": "127.0.0.1", "port": sshd.port}]
    settings = {"transport": "ssh", "hosts": hosts, "ssh": ssh, "workdir": "/tmp", "python": sys.executable}
    (tmp_path / "c.yaml").write_text(json.dumps({**settings, "env": {"JAX_PLATFORMS": "cpu"}}))

    def run(start_up: str, *command: str) -> tuple[int, str]:
        (sshd.folder.parent / "start-up").write_text(f"{start_up}\n")
        first = SHORT_TIMEOUTS if start_up.startswith(SILENT) else ""
        line = [*LAUNCH[:-1], first + LAUNCH[-1], *(command or ("--hosts", "c.yaml", "--", "true"))]
        done = subprocess.run(
            line, cwd=tmp_path, env=clean_env(), capture_output=True, text=True, errors="replace", timeout=60
        )
        return done.returncode, " ".join((done.stdout + done.stderr).split())

    return run


@pytest.mark.parametrize(
    ("start_up", "cause"),
    [
        ("read answer", "something there read the beginning of the agent's source"),
        ("head -c 5000 >/dev/null", "something there read the beginning of the agent's source"),
        ("exec sh", "another shell took the agent's source for commands"),
        ("exec bash", "another shell took the agent's source for commands"),
        ("exec cat", "another program got the agent's source and printed it"),
        ("cat >/dev/null", "it has been silent for 6"),
        ("exit 0", "its stream ended, and nothing was said before"),
    ],
)
@pytest.mark.quick("read answer", "exec sh")
def test_a_start_up_file_that_takes_the_agents_input_is_told_with_what_to_do(
    attempt: Try, start_up: str, cause: str
) -> None:
    code, said = attempt(start_up)
    assert code == 69 and cause in said and "put `[ -t 0 ] || return` at its top" in said


@pytest.mark.slow
def test_a_check_tells_it_too(attempt: Try) -> None:
    for start_up in ("exec bash", "exec cat"):
        code, said = attempt(start_up, "check", "--hosts", "c.yaml")
        assert code == 69 and "[ -t 0 ] || return" in said and said.isprintable()


@pytest.mark.parametrize("limit", [3, 8, 12])
@pytest.mark.quick("8")
def test_a_host_that_allows_few_open_files_is_told_so(attempt: Try, limit: int) -> None:
    code, said = attempt(f"ulimit -n {limit}")
    assert code in (2, 69) and "too few open files: raise ulimit -n there" in said


def test_a_host_that_allows_few_processes_is_told_so(attempt: Try) -> None:
    """Root has no such limit."""
    before = folders_of_nobody()
    user = "setpriv --reuid 65534 --regid 65534 --clear-groups prlimit --nproc=1"
    code, said = attempt(f'cd /; exec {user} bash --norc -c "${{SSH_ORIGINAL_COMMAND/python3//usr/bin/python3}}"')
    if "Operation not permitted" in said or "not found" in said:
        pytest.skip("needs root, setpriv and prlimit")
    assert code == 69 and "too few processes: raise ulimit -u there" in said and "Traceback" not in said
    await_true(lambda: folders_of_nobody() <= before, HANGS, "its folders gone")


def folders_of_nobody() -> set[Path]:
    """Those of agents on this machine."""
    found: set[Path] = set()
    for folder in ("/tmp", "/dev/shm"):
        for path in Path(folder).glob("hostmesh-[0-9]*"):
            with suppress(FileNotFoundError):
                found |= {path} if path.stat().st_uid == 65534 else set()
    return found


def test_what_a_host_says_itself_is_quoted_and_harmless_noise_is_no_cause(attempt: Try) -> None:
    code, said = attempt("echo please set up your account first; exit 3")
    assert code == 69 and "its agent did not start: please set up your account first" in said
    assert attempt("echo import: not found; echo welcome >&2")[0] == 0


def test_an_agent_that_fails_by_itself_is_not_blamed_on_a_start_up_file() -> None:
    said = 'Traceback\n  File "<string>", line 1, in <module>\n  File "<string>", line 36, in become_agent\nKeyError: 1'
    assert "start-up" not in explain_no_agent("lost its agent", said, None)
