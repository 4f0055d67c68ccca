"""The SSH transport against real sshds on loopback: bytes, logins, host keys, jump hosts, and every way to fail."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from conftest import await_true, busyness, clean_env, is_alive, kill_all
from sshd import Sshd, fingerprint_of, free_port, make_key, needs_sshd, public_half

from hostmesh.launcher.cluster.model import Host, Ssh
from hostmesh.launcher.errors import Unreachable
from hostmesh.launcher.protocol import wire
from hostmesh.launcher.transports.ssh.stream import SshStream, open_ssh_streams, quote_for_any_shell

pytestmark = needs_sshd

StartSshd = Callable[..., Sshd]
Open = Callable[..., SshStream]
Listen = Callable[..., Host]


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The machine's own ~/.ssh and ssh-agent stay out of it."""
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.delenv("SSH_AUTH_SOCK", raising=False)
    (tmp_path / "home" / ".ssh").mkdir(parents=True)
    return tmp_path / "home"


@pytest.fixture
def start_sshd(tmp_path: Path) -> Iterator[StartSshd]:
    running: list[Sshd] = []

    def start(*lines: str) -> Sshd:
        running.append(Sshd(tmp_path / f"sshd-{len(running)}", *lines))
        return running[-1]

    yield start
    for sshd in running:
        sshd.close()


@pytest.fixture
def sshd(start_sshd: StartSshd) -> Sshd:
    return start_sshd()


@pytest.fixture
def open_stream() -> Iterator[Open]:
    opened: list[SshStream] = []

    def begin(host: Host, settings: Ssh, *command: str) -> SshStream:
        opened.extend(open_ssh_streams([host], settings, [command or ["cat"]]))
        return opened[-1]

    yield begin
    for stream in opened:
        stream.close()


@pytest.fixture
def listen() -> Iterator[Listen]:
    """A server that sends each visitor some bytes, and then keeps quiet or hangs up."""
    listeners: list[socket.socket] = []
    visitors: list[socket.socket] = []

    def serve(listener: socket.socket, greeting: bytes, hang_up: bool) -> None:
        while True:
            try:
                visitor, _ = listener.accept()
            except OSError:
                return
            visitor.sendall(greeting)
            if hang_up:
                visitor.close()
            visitors.append(visitor)

    def start(greeting: bytes = b"", hang_up: bool = False) -> Host:
        listeners.append(socket.create_server(("127.0.0.1", 0)))
        threading.Thread(target=serve, args=(listeners[-1], greeting, hang_up), daemon=True).start()
        return Host("127.0.0.1", 1, port=listeners[-1].getsockname()[1])

    yield start
    for listener in listeners:
        listener.shutdown(socket.SHUT_RDWR)
        listener.close()
    for visitor in visitors:
        visitor.close()


def read_all(stream: SshStream) -> bytes:
    return b"".join(iter(stream.read, b""))


def read_line(stream: SshStream) -> str:
    data = b""
    while not data.endswith(b"\n"):
        more = stream.read()
        assert more, f"the stream ended after {data!r}"
        data += more
    return data.decode().strip()


def refusal(stream: SshStream) -> str:
    with pytest.raises(Unreachable) as refused:
        stream.read()
    assert stream.read_errors() == b""
    with pytest.raises(OSError):
        stream.write(b"x")
    return str(refused.value)


OPEN_ONE = """
import sys
from hostmesh.launcher.cluster.model import Host, Ssh
from hostmesh.launcher.errors import Unreachable
from hostmesh.launcher.transports.ssh.stream import open_ssh_streams
[stream] = open_ssh_streams([Host("127.0.0.1", 1, port=int(sys.argv[2]))], Ssh(config=sys.argv[1]), [["cat"]])
"""


def run_python(code: str, *args: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", code, *args]
    return subprocess.run(command, env=clean_env(), capture_output=True, text=True, timeout=240)


# Bytes.


def test_bytes_go_both_ways_and_stderr_stays_apart(sshd: Sshd, open_stream: Open) -> None:
    stream = open_stream(sshd.host(), sshd.settings(), "sh", "-c", "head -c 5; echo oops >&2")
    stream.write(b"hello")
    assert read_all(stream) == b"hello"
    assert b"".join(iter(stream.read_errors, b"")) == b"oops\n"
    assert stream.is_open


ODD = [
    "a'; echo foo",
    "",
    "two words",
    "$HOME `id` $(id)",
    "new\nline\n",
    "back\\slash \\\\ \\'",
    "!! !x",
    "*",
    "ü%s",
    "-x",
]
SAY = "import json, sys; print(json.dumps(sys.argv[1:]))"


def test_arguments_arrive_intact(sshd: Sshd, open_stream: Open) -> None:
    assert json.loads(read_all(open_stream(sshd.host(), sshd.settings(), "python3", "-c", SAY, *ODD))) == ODD


@pytest.mark.parametrize("shell", ["sh", "bash", "dash", "zsh", "ksh", "csh", "tcsh", "fish"])
def test_arguments_arrive_intact_through_any_login_shell(shell: str) -> None:
    if shutil.which(shell) is None:
        pytest.skip(f"{shell} is not installed")
    line = quote_for_any_shell([sys.executable, "-c", SAY, *ODD])
    said = subprocess.run([shell, "-c", line], capture_output=True, timeout=240)
    assert json.loads(said.stdout) == ODD, said.stderr


def test_much_data_arrives_intact_in_both_directions(sshd: Sshd, open_stream: Open) -> None:
    data = os.urandom(1 << 20) * 50
    stream = open_stream(sshd.host(), sshd.settings(), "cat")
    digest = hashlib.sha256()

    def take() -> None:
        for piece in iter(stream.read, b""):
            digest.update(piece)

    reader = threading.Thread(target=take)
    reader.start()
    stream.write(data)
    stream.close()
    reader.join(60)
    assert digest.digest() == hashlib.sha256(data).digest()


def test_noise_before_the_agents_first_word_is_passed_over(start_sshd: StartSshd, open_stream: Open) -> None:
    sshd = start_sshd('ForceCommand echo Welcome; eval "$SSH_ORIGINAL_COMMAND"')
    speak = f"import os; os.write(1, {wire.MAGIC + wire.encode(wire.Beat())!r})"
    decoder = wire.Decoder(after_magic=True)
    assert decoder.feed(read_all(open_stream(sshd.host(), sshd.settings(), "python3", "-c", speak))) == [wire.Beat()]


# Closing.


def test_closing_ends_a_command_that_reads_its_input(sshd: Sshd, open_stream: Open) -> None:
    stream = open_stream(sshd.host(), sshd.settings(), "sh", "-c", "echo $$; exec cat")
    pid = int(read_line(stream))
    stream.close()
    await_true(lambda: not is_alive(pid), 5, "cat is gone")
    assert stream.read() == b""
    with pytest.raises(OSError):
        stream.write(b"x")


def test_closing_waits_for_what_a_command_does_last(sshd: Sshd, open_stream: Open, tmp_path: Path) -> None:
    """Some of the output is still on the host when the command has ended: it is more than fits the window."""
    length = (2 << 20) + 40_000
    command = f"cat; sleep 0.3; touch {tmp_path}/done; head -c {length} /dev/zero"
    stream = open_stream(sshd.host(), sshd.settings(), "sh", "-c", command)
    stream.write(b"x")
    assert stream.read() == b"x"
    closer = threading.Thread(target=stream.close)
    closer.start()
    assert stream._session is not None
    await_true(stream._session.channel.exit_status_ready, 10, "the command has ended")
    assert len(read_all(stream)) == length
    closer.join(10)
    assert (tmp_path / "done").exists()


def test_closing_does_not_wait_for_ever(sshd: Sshd, open_stream: Open) -> None:
    stream = open_stream(sshd.host(), sshd.settings(), "sh", "-c", "echo $$; exec sleep 60")
    pid = int(read_line(stream))
    began = time.monotonic()
    stream.close()
    os.kill(pid, signal.SIGKILL)
    assert time.monotonic() - began < 10 * busyness()


def test_closing_breaks_off_connecting(listen: Listen, sshd: Sshd, open_stream: Open) -> None:
    stream = open_stream(listen(), sshd.settings())
    began = time.monotonic()
    reader = threading.Timer(0.3, stream.close)
    reader.start()
    assert stream.read() == b""
    reader.join()
    assert time.monotonic() - began < 15 * busyness()


class Relay:
    """Carries bytes to a port and back until it is told to stop; then it holds whoever writes through it."""

    def __init__(self, port: int) -> None:
        self._listener = socket.socket()
        self._listener.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)  # so that little is under way
        self._listener.bind(("127.0.0.1", 0))
        self._listener.listen()
        self.port = int(self._listener.getsockname()[1])
        self.stopped, self._open = threading.Event(), [self._listener]
        threading.Thread(target=self._accept, args=(port,), daemon=True).start()

    def _accept(self, port: int) -> None:
        visitor, _ = self._listener.accept()
        target = socket.create_connection(("127.0.0.1", port))
        self._open += [visitor, target]
        for pair in ((visitor, target), (target, visitor)):
            threading.Thread(target=self._carry, args=pair, daemon=True).start()

    def _carry(self, source: socket.socket, sink: socket.socket) -> None:
        try:
            while (data := source.recv(4096)) and not self.stopped.is_set():
                sink.sendall(data)
        except OSError:
            pass

    def close(self) -> None:
        for each in self._open:
            try:
                each.shutdown(socket.SHUT_RDWR)
            except OSError:
                pass
            each.close()


@pytest.mark.parametrize("through_a_jump_host", [False, True])
@pytest.mark.slow
def test_closing_gets_past_a_link_that_is_stuck(start_sshd: StartSshd, through_a_jump_host: bool) -> None:
    target, jump = start_sshd(), start_sshd()
    relay = Relay(jump.port if through_a_jump_host else target.port)
    way = {"jump": f"127.0.0.1:{relay.port}"} if through_a_jump_host else {}
    settings = join_settings(target, jump, **way)
    with open(settings.known_hosts or "", "a") as known:
        known.writelines(each.known_line(f"[127.0.0.1]:{relay.port}") for each in (target, jump))
    host = target.host() if through_a_jump_host else Host("127.0.0.1", 1, port=relay.port)
    [stream] = open_ssh_streams([host], settings, [["cat"]])
    stream.write(b"hello\n")
    assert read_line(stream) == "hello"
    relay.stopped.set()
    written = [0]
    writer = threading.Thread(target=write_until_it_fails, args=(stream, written))
    writer.start()
    await_stop(written)
    began = time.monotonic()
    stream.close()
    assert time.monotonic() - began < 12 * busyness()
    writer.join(5)
    assert not writer.is_alive()
    relay.close()


def await_stop(written: list[int]) -> None:
    """Until nothing more could be written for half a second."""
    last = -1
    while written[0] != last:
        last = written[0]
        time.sleep(0.5)


def write_until_it_fails(stream: SshStream, written: list[int]) -> str:
    try:
        while True:
            stream.write(bytes(10_000))
            written[0] += 10_000
    except OSError as error:
        return str(error)


def test_a_killed_connection_ends_reading_and_writing(sshd: Sshd, open_stream: Open) -> None:
    stream = open_stream(sshd.host(), sshd.settings(), "sh", "-c", "echo $$; exec cat")
    assert read_line(stream)
    kill_all(sshd.session_pids())
    assert stream.read() == b""
    assert stream.read_errors() == b""
    assert write_until_it_fails(stream, [0])


# Host keys.


def test_an_unknown_host_is_refused(sshd: Sshd, open_stream: Open, tmp_path: Path) -> None:
    settings = sshd.settings(known_hosts=str(tmp_path / "none"))
    told = refusal(open_stream(sshd.host(), settings))
    assert fingerprint_of(sshd.host_key) in told
    assert f"[127.0.0.1]:{sshd.port}" in told
    assert not (tmp_path / "none").exists()


def test_an_unknown_host_is_added_where_that_is_asked_for(sshd: Sshd, open_stream: Open, tmp_path: Path) -> None:
    settings = sshd.settings(known_hosts=str(tmp_path / "new"), accept_new_host_keys=True)
    assert read_all(open_stream(sshd.host(), settings, "echo", "in")) == b"in\n"
    assert (tmp_path / "new").read_text() == sshd.known_line()


@pytest.mark.parametrize("accept_new", [False, True])
def test_a_changed_host_key_is_refused(sshd: Sshd, open_stream: Open, tmp_path: Path, accept_new: bool) -> None:
    old = make_key(tmp_path / "old")
    sshd.known_hosts.write_text(f"[127.0.0.1]:{sshd.port} {public_half(old)}\n")
    told = refusal(open_stream(sshd.host(), sshd.settings(accept_new_host_keys=accept_new)))
    assert "has changed" in told
    assert fingerprint_of(sshd.host_key) in told
    assert fingerprint_of(old) in told
    assert not any("Accepted" in line for line in sshd.log)


def test_a_host_with_several_keys_shows_the_one_that_is_known(
    start_sshd: StartSshd, open_stream: Open, tmp_path: Path
) -> None:
    other = make_key(tmp_path / "other", kind="ecdsa")
    sshd = start_sshd(f"HostKey {other}")
    sshd.known_hosts.write_text(f"[127.0.0.1]:{sshd.port} {public_half(other)}\n")
    assert read_all(open_stream(sshd.host(), sshd.settings(), "echo", "in")) == b"in\n"


# Logins.


def test_a_wrong_user_is_told_with_the_keys_that_were_tried(sshd: Sshd, open_stream: Open) -> None:
    told = refusal(open_stream(sshd.host("nobody-at-all"), sshd.settings()))
    assert "login as nobody-at-all was refused" in told
    assert str(sshd.identity) in told


def test_without_any_key_it_says_where_keys_were_looked_for(sshd: Sshd, open_stream: Open, tmp_path: Path) -> None:
    told = refusal(open_stream(sshd.host(), sshd.settings(identity_files=(str(tmp_path / "nothing"),))))
    assert f"there is no {tmp_path}/nothing" in told
    assert "no ssh-agent" in told


def test_the_usual_key_files_are_tried(sshd: Sshd, open_stream: Open, home: Path) -> None:
    shutil.copy(sshd.identity, home / ".ssh" / "id_ed25519")
    assert read_all(open_stream(sshd.host(), sshd.settings(identity_files=()), "echo", "in")) == b"in\n"


@pytest.mark.parametrize("mode", [0o644, 0o640, 0o604])
def test_a_key_that_others_may_read_is_refused_with_what_to_run(sshd: Sshd, open_stream: Open, mode: int) -> None:
    sshd.identity.chmod(mode)
    stream = open_stream(sshd.host(), sshd.settings())
    with pytest.raises(Unreachable, match=f"open to other users .mode {mode:04o}.*run chmod 600 {sshd.identity}"):
        stream.read()
    sshd.identity.chmod(0o400)
    stream = open_stream(sshd.host(), sshd.settings(), "echo", "in")
    assert stream.read() == b"in\n"


def test_an_encrypted_key_is_an_error_that_says_ssh_add(sshd: Sshd, open_stream: Open, tmp_path: Path) -> None:
    locked = make_key(tmp_path / "locked", passphrase="secret words")
    told = refusal(open_stream(sshd.host(), sshd.settings(identity_files=(str(locked),))))
    assert f"ssh-add {locked}" in told


@pytest.fixture
def agent(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A real ssh-agent, which ssh-add and the transport find by the environment."""
    if shutil.which("ssh-agent") is None:
        pytest.skip("ssh-agent is not installed")
    folder = Path(
        tempfile.mkdtemp()
    )  # a socket's path has room for 107 bytes, fewer than pytest's own folders may need
    process = subprocess.Popen(["ssh-agent", "-D", "-a", str(folder / "agent")], stdout=subprocess.DEVNULL)
    await_true((folder / "agent").exists, 10, "the ssh-agent listens")
    monkeypatch.setenv("SSH_AUTH_SOCK", str(folder / "agent"))
    yield
    process.terminate()
    process.wait(10)
    shutil.rmtree(folder)


def add_to_agent(key: Path, passphrase: str, folder: Path) -> None:
    ask = folder / "ask"
    ask.write_text(f"#!/bin/sh\necho '{passphrase}'\n")
    ask.chmod(0o700)
    env = {**os.environ, "SSH_ASKPASS": str(ask), "SSH_ASKPASS_REQUIRE": "force", "DISPLAY": ":0"}
    subprocess.run(["ssh-add", str(key)], env=env, check=True, capture_output=True, timeout=240)


@pytest.mark.usefixtures("agent")
@pytest.mark.parametrize("is_named", [True, False])
@pytest.mark.quick("True")
def test_many_hosts_log_in_with_an_encrypted_key_of_the_agents(sshd: Sshd, tmp_path: Path, is_named: bool) -> None:
    locked = make_key(tmp_path / "locked", passphrase="secret words")
    (sshd.folder / "authorized_keys").write_text(public_half(locked) + "\n")
    add_to_agent(locked, "secret words", tmp_path)
    settings = sshd.settings(identity_files=(str(locked),) if is_named else ())
    streams = open_ssh_streams([sshd.host()] * 8, settings, [["echo", "in"]] * 8)
    assert [read_all(stream) for stream in streams] == [b"in\n"] * 8
    for stream in streams:
        stream.close()


@pytest.mark.usefixtures("agent")
def test_a_named_key_comes_before_all_that_an_agent_holds(sshd: Sshd, open_stream: Open, tmp_path: Path) -> None:
    for number in range(8):  # more than an sshd lets anybody try
        add_to_agent(make_key(tmp_path / f"useless-{number}"), "", tmp_path)
    assert read_all(open_stream(sshd.host(), sshd.settings(), "echo", "in")) == b"in\n"
    told = refusal(open_stream(sshd.host(), sshd.settings(identity_files=())))
    assert "IdentitiesOnly" in told


# The ssh config.


def test_the_ssh_config_counts_and_the_cluster_file_counts_more(
    sshd: Sshd, open_stream: Open, home: Path, tmp_path: Path
) -> None:
    sshd.known_hosts.write_text(sshd.known_line("the-alias"))
    (home / ".ssh" / "config").write_text("Include more\nHost gpu-*\n  HostName 127.0.0.1\n  User nobody-at-all\n")
    (home / ".ssh" / "more").write_text(
        f"IdentityFile {sshd.identity}\nUserKnownHostsFile {sshd.known_hosts}\n"
        f"Host gpu-7\n  Port {sshd.port}\n  HostKeyAlias the-alias\n"
    )
    settings = Ssh(connect_timeout=10)
    stream = open_stream(Host("gpu-7", 1, user=sshd.user), settings, "echo", "in")
    assert read_all(stream) == b"in\n"
    told = refusal(open_stream(Host("gpu-7", 1), settings))
    assert "login as nobody-at-all" in told
    assert "connection refused" in refusal(open_stream(Host("gpu-7", 1, port=free_port()), settings))


def test_a_broken_ssh_config_is_every_hosts_answer(sshd: Sshd, tmp_path: Path) -> None:
    (tmp_path / "broken").write_text("what?\n")
    settings = sshd.settings(config=str(tmp_path / "broken"))
    streams = open_ssh_streams([sshd.host()] * 2, settings, [["cat"]] * 2)
    assert all(f"{tmp_path}/broken is broken" in refusal(stream) for stream in streams)
    missing = sshd.settings(config=str(tmp_path / "missing"))
    streams += open_ssh_streams([sshd.host()] * 2, missing, [["cat"]] * 2)
    assert all("cannot be read" in refusal(stream) for stream in streams[2:])
    for stream in streams:
        stream.close()


PROXY = """
import os, socket, sys, threading
with open(sys.argv[1], "w") as file:
    file.write(str(os.getpid()))
link = socket.create_connection((sys.argv[2], int(sys.argv[3])))
def copy(take, give):
    while data := take(65536):
        give(data)
    os._exit(0)
threading.Thread(target=copy, args=(lambda n: os.read(0, n), link.sendall)).start()
copy(link.recv, lambda data: os.write(1, data))
"""


def test_a_proxy_command_carries_the_connection_and_ends_with_it(sshd: Sshd, open_stream: Open, tmp_path: Path) -> None:
    (tmp_path / "proxy.py").write_text(PROXY)
    (tmp_path / "config").write_text(f"ProxyCommand {sys.executable} {tmp_path}/proxy.py {tmp_path}/pid %h %p\n")
    stream = open_stream(sshd.host(), sshd.settings(config=str(tmp_path / "config")), "echo", "in")
    assert read_all(stream) == b"in\n"
    stream.close()
    pid = int((tmp_path / "pid").read_text())
    await_true(lambda: not is_alive(pid), 5, "the ProxyCommand is gone")


def test_a_proxy_command_that_fails_is_quoted(sshd: Sshd, open_stream: Open, tmp_path: Path) -> None:
    (tmp_path / "config").write_text("ProxyCommand sh -c 'echo no such tunnel >&2; exit 3'\n")
    told = refusal(open_stream(sshd.host(), sshd.settings(config=str(tmp_path / "config"))))
    assert "exited with 3: no such tunnel" in told


# Jump hosts.


def join_settings(sshd: Sshd, *jumps: Sshd, **changes: object) -> Ssh:
    """Settings that know all of these hosts and have a key for each."""
    everything = [sshd, *jumps]
    known = sshd.folder / "known_hosts_of_all"
    known.write_text("".join(each.known_line() for each in everything))
    keys = tuple(str(each.identity) for each in everything)
    return sshd.settings(known_hosts=str(known), identity_files=keys, **changes)


def count_logins(sshd: Sshd) -> int:
    return sum("Accepted publickey" in line for line in sshd.log)


def test_all_hosts_behind_a_jump_host_share_one_connection_to_it(start_sshd: StartSshd) -> None:
    target, jump = start_sshd(), start_sshd()
    settings = join_settings(target, jump, jump=f"{jump.user}@127.0.0.1:{jump.port}")
    streams = open_ssh_streams([target.host()] * 5, settings, [["cat"]] * 5)
    for stream in streams:
        stream.write(b"hello\n")
        assert read_line(stream) == "hello"
    assert (count_logins(target), count_logins(jump)) == (5, 1)
    sessions = jump.session_pids()
    assert sessions
    for stream in streams:
        stream.close()
    await_true(lambda: not any(map(is_alive, sessions)), 5, "the connection to the jump host is gone")


def test_jump_hosts_can_stand_behind_each_other(start_sshd: StartSshd, open_stream: Open) -> None:
    target, first, second = start_sshd(), start_sshd(), start_sshd()
    settings = join_settings(target, first, second, jump=f"127.0.0.1:{first.port},127.0.0.1:{second.port}")
    stream = open_stream(target.host(), settings, "echo", "in")
    assert read_all(stream) == b"in\n"
    assert [count_logins(each) for each in (target, first, second)] == [1, 1, 1]


def test_a_jump_host_of_the_ssh_config_is_not_its_own_jump_host(
    start_sshd: StartSshd, open_stream: Open, tmp_path: Path
) -> None:
    target, jump = start_sshd(), start_sshd()
    config = tmp_path / "config"
    config.write_text(f"Host bastion\n  HostName 127.0.0.1\n  Port {jump.port}\nHost *\n  ProxyJump bastion\n")
    stream = open_stream(target.host(), join_settings(target, jump, config=str(config)), "echo", "in")
    assert read_all(stream) == b"in\n"
    assert count_logins(jump) == 1


def test_jump_hosts_in_a_circle_are_an_error(sshd: Sshd, open_stream: Open, tmp_path: Path) -> None:
    config = tmp_path / "config"
    config.write_text("Host a\n  ProxyJump b\nHost b\n  ProxyJump a\n")
    told = refusal(open_stream(Host("a", 1), sshd.settings(config=str(config))))
    assert "circle" in told


def test_a_jump_hosts_failure_is_named_as_its_own(start_sshd: StartSshd, listen: Listen) -> None:
    target, jump = start_sshd(), start_sshd()
    where = f"127.0.0.1:{jump.port}"
    unknown = target.settings(jump=where, identity_files=(str(target.identity), str(jump.identity)))
    no_key = join_settings(target, jump, jump=where)
    no_key = Ssh(**{**vars(no_key), "identity_files": (str(target.identity),)})
    closed = f"127.0.0.1:{free_port()}"
    for settings, name, reason in (
        (unknown, where, "host key is not known"),
        (no_key, where, "login as"),
        (target.settings(jump=closed), closed, "connection refused"),
        (target.settings(jump="a:b:c"), "a:b:c", "makes no sense"),
    ):
        streams = open_ssh_streams([target.host()] * 2, settings, [["cat"]] * 2)
        for stream in streams:
            told = refusal(stream)
            assert "jump host" in told
            assert name in told
            assert reason in told
            stream.close()


def test_what_a_jump_host_cannot_reach_is_told(start_sshd: StartSshd, open_stream: Open) -> None:
    target, jump = start_sshd(), start_sshd()
    nowhere = Host("127.0.0.1", 1, port=free_port())
    told = refusal(open_stream(nowhere, join_settings(target, jump, jump=f"127.0.0.1:{jump.port}")))
    assert "jump host 127.0.0.1 cannot reach" in told
    assert str(nowhere.port) in told


# Hosts that do not answer as they should.


def test_a_closed_port_is_told(sshd: Sshd, open_stream: Open) -> None:
    port = free_port()
    told = refusal(open_stream(Host("127.0.0.1", 1, port=port), sshd.settings()))
    assert f"connection refused by 127.0.0.1 port {port}" in told
    assert "sshd running" in told


@pytest.mark.parametrize("name", ["nowhere.invalid", "two..dots"])
def test_a_name_that_does_not_resolve_is_told(sshd: Sshd, open_stream: Open, name: str) -> None:
    told = refusal(open_stream(Host(name, 1), sshd.settings()))
    assert f"the name {name} does not resolve" in told


@pytest.mark.parametrize(
    ("greeting", "reason"),
    [
        (b"", "no SSH banner within 1 s"),
        (b"SSH-2.0-stuck\r\n", "fell silent"),
        (b"Hello\r\n", "no SSH server: it says 'Hello'"),
    ],
)
def test_a_host_that_never_answers_is_given_up_in_time(
    sshd: Sshd, open_stream: Open, listen: Listen, greeting: bytes, reason: str
) -> None:
    began = time.monotonic()
    told = refusal(open_stream(listen(greeting), sshd.settings(connect_timeout=1)))
    assert reason in told
    # With importing fabric; without a limit of its own it would be given 20.
    assert time.monotonic() - began < 15 * busyness()


def test_what_is_no_ssh_server_is_told_at_once(sshd: Sshd, open_stream: Open, listen: Listen) -> None:
    told = refusal(open_stream(listen(b"HTTP/1.1 400 Bad Request\r\n\r\n", hang_up=True), sshd.settings()))
    assert "no SSH server: it says 'HTTP/1.1 400 Bad Request'" in told


def test_nonsense_in_the_handshake_prints_no_traceback(sshd: Sshd, listen: Listen) -> None:
    code = (
        OPEN_ONE
        + """
try:
    stream.read()
except Unreachable as error:
    print(error)
"""
    )
    host = listen(b"SSH-2.0-odd\r\n" + b"\0\0\0\x0c\x05" + bytes(100))
    ended = run_python(code, sshd.settings().config or "", str(host.port))
    assert "handshake" in ended.stdout
    assert ended.stderr == ""


def test_dropped_connections_are_tried_again(start_sshd: StartSshd) -> None:
    sshd = start_sshd("MaxStartups 2:100:2")
    streams = open_ssh_streams([sshd.host()] * 12, sshd.settings(connect_timeout=60), [["echo", "in"]] * 12)
    assert [read_all(stream) for stream in streams] == [b"in\n"] * 12
    for stream in streams:
        stream.close()
    assert any("MaxStartups" in line for line in sshd.log)


@pytest.mark.parametrize("greeting", [b"", b"Exceeded MaxStartups\r\n"])
def test_a_host_that_keeps_dropping_is_given_up_with_the_count(
    sshd: Sshd, open_stream: Open, listen: Listen, greeting: bytes
) -> None:
    told = refusal(open_stream(listen(greeting, hang_up=True), sshd.settings(connect_timeout=1)))
    assert "connections before login within 1 s" in told
    assert "dropped 1 conn" not in told
    assert ("Exceeded" in told) == bool(greeting)


def test_waiting_for_a_turn_does_not_count(sshd: Sshd, listen: Listen) -> None:
    hosts = [listen(), listen(), sshd.host()]
    settings = sshd.settings(connect_timeout=1, at_once=1)
    streams = open_ssh_streams(hosts, settings, [["echo", "in"]] * 3)
    assert read_all(streams[2]) == b"in\n"
    for stream in streams[:2]:
        assert "no SSH banner" in refusal(stream)
    for stream in streams:
        stream.close()


# The launcher's process.


def test_the_transport_is_imported_without_fabric() -> None:
    code = (
        "import sys, hostmesh.launcher.transports.ssh.stream\n"
        "sys.exit(not {'fabric', 'paramiko'}.isdisjoint(sys.modules))"
    )
    assert run_python(code).returncode == 0


def test_a_connection_under_way_does_not_hold_up_the_end(sshd: Sshd, listen: Listen) -> None:
    code = (
        OPEN_ONE
        + """
import time
stream._connect_ended.wait(1.5)
print(time.time())
"""
    )
    host = listen(b"SSH-2.0-stuck\r\n")
    ended = run_python(code, sshd.settings().config or "", str(host.port))
    assert ended.stderr == ""
    assert time.time() - float(ended.stdout) < 3


@pytest.mark.slow
def test_many_streams_at_once(sshd: Sshd) -> None:
    commands = [["echo", str(number)] for number in range(32)]
    streams = open_ssh_streams([sshd.host()] * 32, sshd.settings(), commands)
    assert [read_all(stream) for stream in streams] == [f"{number}\n".encode() for number in range(32)]
    for stream in streams:
        stream.close()


def test_connections_in_many_threads_leave_each_others_settings_alone(sshd: Sshd, tmp_path: Path) -> None:
    """Had they one set of fabric's settings between them, some would find it half written."""
    (tmp_path / "config").write_text(f"Host 127.*\n  IdentityFile {sshd.identity}\n")
    settings, nobody = sshd.settings(config=str(tmp_path / "config")), Host("127.0.0.1", 1, port=free_port())
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        streams = open_ssh_streams([nobody] * 100, settings, [["cat"]] * 100)
        assert all("connection refused" in refusal(stream) for stream in streams)
    finally:
        sys.setswitchinterval(interval)
    for stream in streams:
        stream.close()
