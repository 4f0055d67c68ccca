"""No secret leaves by any way: terminal, run folder, events and `launch check`, whole or across a cut."""

from __future__ import annotations

import json
import os
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from conftest import LAUNCH, Launch, Script, Start

from hostmesh.launcher.output.redact import MIN_CUT, redact_cut_bytes, redact_cut_json
from hostmesh.launcher.output.screen import Screen
from hostmesh.launcher.protocol import wire
from hostmesh.launcher.supervisor.link.arrivals import redact_arrival
from hostmesh.launcher.supervisor.link.channel import Ended, Heard

TOKEN = "tops3cret-4711-abcdefghij"
PEM = (
    "-----BEGIN KEY-----\n"
    + "\n".join(f"MIIEvQIBADAN{number:04d}Bgkq'hkiG9w0B\"" for number in range(40))
    + "\n-----END KEY-----\n"
)
MIN_LEAK = 5


def leaks(text: str, secret: str) -> list[str]:
    """Parts of the secret, or of an escaped form of it, that can be read in the text."""
    forms = {secret, json.dumps(secret)[1:-1], repr(secret)[1:-1]}
    parts = {form[at : at + MIN_LEAK] for form in forms for at in range(len(form) - MIN_LEAK + 1)}
    return sorted(part for part in parts if part in text)


@pytest.mark.parametrize("quote", [str, json.dumps, repr, lambda text: repr(f'"{text}"')])
@pytest.mark.parametrize("secret", [TOKEN, PEM])
def test_a_secret_across_a_cut_is_taken_out_wherever_the_cut_is(quote: Any, secret: str) -> None:
    shown = quote(secret)
    filler = "x" * MIN_CUT
    for cut in range(1, len(shown), 1 if secret is TOKEN else 7):
        for text in (filler + shown[:cut], shown[cut:] + filler):
            assert leaks(redact_cut_json(text, [secret]), secret) == [], cut
            assert leaks(redact_cut_bytes(text.encode(), [secret]).decode(), secret) == [], cut


def test_a_text_from_the_middle_of_a_secret_says_nothing() -> None:
    secret = "".join(f"{number:05d}" for number in range(1000))
    inside = secret[1000:3500]
    assert redact_cut_json({"a": [inside]}, [secret]) == {"a": ["[redacted]"]}
    assert redact_cut_bytes(inside.encode(), [secret]) == b"[redacted]"


def test_a_character_that_was_cut_in_two_hides_nothing() -> None:
    secret = "pässwört-" + "ö" * 20
    for cut in range(1, len(secret.encode())):
        text = (b"x" * MIN_CUT + secret.encode()[:cut]).decode(errors="replace")
        tail = (secret.encode()[cut:] + b"x" * MIN_CUT).decode(errors="replace")
        assert "ö" not in redact_cut_json(text, [secret]) and "ö" not in redact_cut_json(tail, [secret])
        assert "ässw" not in redact_cut_json(text, [secret])


def test_short_texts_were_not_cut_and_keep_their_ends() -> None:
    assert redact_cut_json("ends with tops3cr", [TOKEN]) == "ends with tops3cr"


@pytest.mark.parametrize(
    "event",
    [
        wire.Refused("no", "x" * 5000 + TOKEN[:9]),
        wire.Refused(f"no {TOKEN}"),
        wire.Fact("crash", 0, {"message": "x" * 2000 + TOKEN[:9], "traceback": TOKEN[9:] + "x" * 16000}),
        wire.Fact("nursery_failed", None, {"problem": TOKEN, "said": TOKEN[9:] + "x" * 8000}),
        wire.Exited(0, 1, data=TOKEN[9:].encode() + b"x" * 8192),
        wire.Stacks(0, f"File {TOKEN}".encode()),
        wire.Ready(f"/{TOKEN}/python"),
        wire.Inspected({"python": {"problem": "p", "said": TOKEN[9:] + "x" * 4096}, "holders": [{"command": TOKEN}]}),
    ],
)
def test_every_text_of_a_host_is_redacted_when_it_arrives(event: Any) -> None:
    told = redact_arrival(Heard(0, event), (TOKEN,))
    assert type(told.event) is type(event) and leaks(repr(told), TOKEN) == []


def test_what_a_host_said_instead_of_the_protocol_is_redacted_part_by_part() -> None:
    end = Ended(0, ("x" * 8192 + TOKEN[:9], TOKEN[9:] + "y" * 8192), f"the ProxyCommand said {TOKEN}")
    assert leaks(repr(redact_arrival(end, (TOKEN,))), TOKEN) == []


def test_what_decides_a_run_arrives_as_it_is() -> None:
    for event in (
        wire.Hello(1, 2, "3.9", ["10.0.0.1"]),
        wire.Reserved({"10.0.0.1": 4}),
        wire.Reached({"10.0.0.1": None}),
    ):
        assert redact_arrival(Heard(0, event), ("10.0.0.1",)).event is event
    found = {"visible": {"CUDA_VISIBLE_DEVICES": "0,1"}, "platforms": "cuda", "time": 1.0}
    assert redact_arrival(Heard(0, wire.Inspected(found)), ("0,1", "cuda")).event.found == found


def test_the_screen_shows_no_secret_in_its_notes_however_it_is_hidden(tmp_path: Path) -> None:
    with (tmp_path / "out").open("w") as out:
        screen = Screen(out, colour=False, hidden=[TOKEN, PEM])
        for note in (f"a {TOKEN} b", f"key\n{PEM}", f"split {TOKEN[:9]}\x00\x1b[1m{TOKEN[9:]} again"):
            screen.note(note)
        assert screen.finish(10)
    shown = (tmp_path / "out").read_text()
    assert leaks(shown, TOKEN) == leaks(shown, PEM) == [] and "a [redacted] b" in shown and "again" in shown


# End to end.


def everything_of(run_folder: Path) -> str:
    return "\n".join(path.read_text(errors="replace") for path in run_folder.rglob("*") if path.is_file())


def write_cluster(folder: Path, **settings: Any) -> str:
    full = {"transport": "local", "hosts": ["here"], "processes_per_host": 2, "secrets": ["TOKEN", "KEY"], **settings}
    (folder / "c.yaml").write_text(json.dumps(full))
    return "c.yaml"


def env_of(folder: Path) -> dict[str, str]:
    return {"TOKEN": TOKEN, "KEY": PEM, "XDG_CACHE_HOME": str(folder / "cache")}


def run_with_secrets(launch: Launch, folder: Path, *args: str) -> tuple[int, str]:
    """The exit code, and everything that can be read afterwards."""
    done = launch(*args, env=env_of(folder))
    assert 'Traceback (most recent call last):\n  File "' + str(Path(__file__).parent.parent) not in done.stderr
    return done.returncode, "\n".join([done.stdout, done.stderr, everything_of(folder / "runs")])


def processes_in(folder: Path) -> list[str]:
    found = []
    for entry in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):  # it has just ended
            if os.readlink(entry / "cwd") == str(folder):
                found.append((entry / "cmdline").read_text())
    return found


def assert_nothing_leaks(text: str) -> None:
    assert leaks(text, TOKEN) == [] and leaks(text, PEM) == []


def echo(*names: str) -> str:
    return "; ".join(f'printf "%s\\n" "${name}"' for name in names)


def test_a_setup_that_fails_with_a_secret_on_its_lips(launch: Launch, script: Script, tmp_path: Path) -> None:
    file = write_cluster(tmp_path, setup=[f"{echo('TOKEN', 'KEY')}; exit 3"])
    code, text = run_with_secrets(launch, tmp_path, "--hosts", file, script("pass"))
    assert code == 2 and "exited with 3" in text and "[redacted]" in text
    assert_nothing_leaks(text)


@pytest.mark.parametrize("left", [10, 600, 8180])
def test_a_setup_whose_last_words_begin_in_a_secret(launch: Launch, script: Script, tmp_path: Path, left: int) -> None:
    """`left` bytes follow the secrets, so that the cut goes through one of them, or just past."""
    words = f"printf '%s' \"$TOKEN$KEY\"; head -c {left} /dev/zero | tr '\\0' z; exit 3"
    code, text = run_with_secrets(launch, tmp_path, "--hosts", write_cluster(tmp_path, setup=[words]), script("pass"))
    assert code == 2
    assert_nothing_leaks(text)


@pytest.mark.parametrize("name", ["TOKEN", "KEY"])
@pytest.mark.slow
def test_a_preload_whose_exception_holds_a_secret(launch: Launch, script: Script, tmp_path: Path, name: str) -> None:
    script(f"import os\nraise ValueError('cannot log in with ' + os.environ[{name!r}])", "mine/loud.py")
    file = write_cluster(tmp_path, preload=["loud"], env={"PYTHONPATH": str(tmp_path / "mine")})
    code, text = run_with_secrets(launch, tmp_path, "--hosts", file, script("print('ran')"))
    assert code == 0 and "no warm start" in text and "ValueError: cannot log in with [redacted]" in text
    assert_nothing_leaks(text)


@pytest.mark.parametrize("words", [echo("TOKEN"), echo("KEY")])
@pytest.mark.parametrize("command", [["--hosts"], ["check", "--json", "--hosts"]])
@pytest.mark.slow
def test_a_python_that_fails_and_prints_a_secret(
    launch: Launch, script: Script, tmp_path: Path, words: str, command: list[str]
) -> None:
    script(f"#!/bin/sh\n{{ {words}; }} >&2\nexit 4\n", "python")
    (tmp_path / "python").chmod(0o755)
    # For neither CPUs nor GPUs: only then is a host on this machine looked at before a run.
    file = write_cluster(tmp_path, python=str(tmp_path / "python"), env={"JAX_PLATFORMS": "METAL"})
    what = [] if "check" in command else [script("pass")]
    code, text = run_with_secrets(launch, tmp_path, *command, file, *what)
    assert code in (1, 2) and "it exited with 4" in text and "[redacted]" in text
    assert_nothing_leaks(text)


@pytest.mark.parametrize("how", [[], ["--cold"]])
@pytest.mark.parametrize("before", [1990, 1000])
@pytest.mark.slow
def test_an_exception_whose_message_is_cut_in_a_secret(
    start: Start, script: Script, tmp_path: Path, before: int, how: list[str]
) -> None:
    text = f"import os\nraise ValueError('x' * {before} + os.environ['TOKEN'] + os.environ['KEY'] * 8 + 'y' * 20000)"
    run = start("--hosts", write_cluster(tmp_path), *how, script(text), env=env_of(tmp_path))
    assert run.wait() == 1
    told = "\n".join([run.stderr, json.dumps(run.seen), everything_of(run.run_folder)])
    assert "ValueError" in told
    assert_nothing_leaks(told)


@pytest.mark.parametrize("left", [wire.TAIL_LENGTH - 10, wire.TAIL_LENGTH - 200, 100])
@pytest.mark.slow
def test_last_words_that_begin_in_a_secret(launch: Launch, script: Script, tmp_path: Path, left: int) -> None:
    text = f"import os; print(os.environ['TOKEN'] + os.environ['KEY'] + 'z' * {left}); os._exit(5)"
    code, told = run_with_secrets(launch, tmp_path, "--hosts", write_cluster(tmp_path), script(text))
    assert code == 5
    assert_nothing_leaks(told)


@pytest.mark.parametrize("last", ["", "exec sleep 1000"])
@pytest.mark.parametrize("command", [["--hosts"], ["check", "--hosts"]])
@pytest.mark.slow
def test_an_agent_that_does_not_start_and_prints_a_secret(
    launch: Launch, script: Script, tmp_path: Path, command: list[str], last: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    short_timeouts = "from hostmesh.launcher.supervisor.link import liveness; liveness.HELLO_TIMEOUT = 2.0; "
    monkeypatch.setattr("conftest.LAUNCH", [*LAUNCH[:-1], short_timeouts + LAUNCH[-1]])
    words = f"{echo('TOKEN', 'KEY')}; head -c 8100 /dev/zero | tr '\\0' z"
    script(f"#!/bin/sh\n{words}\n{{ {words}; }} >&2\n{last}\n", "agent")
    (tmp_path / "agent").chmod(0o755)
    file = write_cluster(tmp_path, agent_python=str(tmp_path / "agent"))
    code, text = run_with_secrets(launch, tmp_path, *command, file, *([] if "check" in command else [script("pass")]))
    assert code == 69 and "its agent did not start" in text
    assert_nothing_leaks(text)
    assert not processes_in(tmp_path)  # though it has read nothing of what it was sent


def test_an_error_of_the_command_line_shows_no_secret(launch: Launch, tmp_path: Path) -> None:
    code, text = run_with_secrets(launch, tmp_path, "--hosts", write_cluster(tmp_path), f"{TOKEN}.py")
    assert code == 2 and "found no script [redacted].py" in text
    assert_nothing_leaks(text)


def test_credentials_in_env_are_kept_like_secrets(launch: Launch, script: Script, tmp_path: Path) -> None:
    env = {"AWS_SECRET_ACCESS_KEY": TOKEN, "MY_DB_PASSWORD": TOKEN[::-1]}
    file = write_cluster(tmp_path, env=env, secrets=[])
    train = script(
        "import os\nprint('key', os.environ['AWS_SECRET_ACCESS_KEY'])\nraise ValueError(os.environ['MY_DB_PASSWORD'])"
    )
    for words in (["--dry-run", "--json"], ["--dry-run"], []):
        code, text = run_with_secrets(launch, tmp_path, "--hosts", file, *words, train)
        assert code == (0 if words else 1) and "[redacted]" in text
        assert leaks(text, TOKEN) == leaks(text, TOKEN[::-1]) == []
    assert "key [redacted]" in text and "ValueError: [redacted]" in text


def test_a_url_that_is_refused_for_what_it_holds_is_nowhere_shown(launch: Launch, tmp_path: Path) -> None:
    source = f"mix:digits:train=1,npy:https://me:{TOKEN}@127.0.0.1:1/a.npy=2"
    words = ["--steps", "1", "--checkpoint-dir", f"gs://data/x?token={TOKEN}"]
    for job in (["--source", source], words):
        code, text = run_with_secrets(launch, tmp_path, "--local", "1", *job)
        assert code != 0 and ("holds credentials" in text or "wanted plain names" in text), text
        assert_nothing_leaks(text)
