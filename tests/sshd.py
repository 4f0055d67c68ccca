"""A real sshd on loopback for tests: its own host key, authorized keys and settings, all in the test's folder."""

from __future__ import annotations

import getpass
import os
import shutil
import socket
import subprocess
import threading
from pathlib import Path

import pytest

from hostmesh.launcher.cluster.model import Host, Ssh

SSHD = shutil.which("sshd", path=f"{os.environ.get('PATH', '')}:/usr/sbin:/usr/local/sbin")
needs_sshd = pytest.mark.skipif(SSHD is None, reason="sshd is not installed")
START_TIMEOUT = 10.0


def make_key(path: Path, kind: str = "ed25519", passphrase: str = "") -> Path:
    """A new private key; its public half is beside it, with .pub."""
    command = ["ssh-keygen", "-q", "-t", kind, "-N", passphrase, "-C", path.name, "-f", str(path)]
    subprocess.run(command, check=True, timeout=30, stdin=subprocess.DEVNULL)
    return path


def public_half(key: Path) -> str:
    """`ssh-ed25519 AAAA…`, without the comment."""
    return " ".join(Path(f"{key}.pub").read_text().split()[:2])


def fingerprint_of(key: Path) -> str:
    """`SHA256:…`, as OpenSSH spells it."""
    shown = subprocess.run(["ssh-keygen", "-l", "-f", f"{key}.pub"], check=True, capture_output=True, text=True)
    return shown.stdout.split()[1]


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def read_proc(pid: int, name: str) -> str:
    try:
        return Path(f"/proc/{pid}/{name}").read_text()
    except OSError:  # it has just ended
        return ""


class Sshd:
    """Lets the user who runs the tests in with `identity`; `lines` are added to its configuration."""

    def __init__(self, folder: Path, *lines: str) -> None:
        folder.mkdir(parents=True)
        self.folder, self.lines = folder, lines
        self.user = getpass.getuser()
        self.host_key = make_key(folder / "host_key")
        self.identity = make_key(folder / "identity")
        self.known_hosts = folder / "known_hosts"
        self.cache = folder / "cache"  # not the user's own
        self.log: list[str] = []
        (folder / "authorized_keys").write_text(public_half(self.identity) + "\n")
        self.start()
        self.known_hosts.write_text(self.known_line())

    def start(self) -> None:
        """Somebody else may take a free port before sshd does; then another one is tried."""
        if os.geteuid() == 0:
            os.makedirs("/run/sshd", mode=0o755, exist_ok=True)  # a root sshd refuses to start without it
        for _ in range(5):
            self.port = free_port()
            if self._listens():
                return
        raise AssertionError("sshd does not start: " + "".join(self.log))

    def _listens(self) -> bool:
        assert SSHD is not None
        (self.folder / "sshd_config").write_text("\n".join(self._configuration()) + "\n")
        command = [SSHD, "-D", "-e", "-f", str(self.folder / "sshd_config")]
        self._process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
        listens = threading.Event()
        self._reader = threading.Thread(target=self._read, args=(listens,), daemon=True)
        self._reader.start()
        listens.wait(START_TIMEOUT)
        return self._process.poll() is None

    @property
    def pid(self) -> int:
        return self._process.pid

    def _configuration(self) -> list[str]:
        """The first value of a setting counts, but of MaxStartups the last."""
        return [
            "MaxStartups 200:100:200",
            *self.lines,
            f"SetEnv XDG_CACHE_HOME={self.cache}",
            "ListenAddress 127.0.0.1",
            f"Port {self.port}",
            f"HostKey {self.host_key}",
            f"AuthorizedKeysFile {self.folder}/authorized_keys",
            f"PidFile {self.folder}/pid",
            "PermitRootLogin yes",
            "StrictModes no",
            "PasswordAuthentication no",
            "KbdInteractiveAuthentication no",
            "UsePAM no",
        ]

    def _read(self, listens: threading.Event) -> None:
        assert self._process.stderr is not None
        with self._process.stderr as stderr:
            for line in stderr:
                self.log.append(line)
                if line.startswith("Server listening"):
                    listens.set()
        listens.set()

    def known_line(self, name: str | None = None) -> str:
        return f"{name or f'[127.0.0.1]:{self.port}'} {public_half(self.host_key)}\n"

    def host(self, user: str | None = None) -> Host:
        return Host("127.0.0.1", 1, user=user, port=self.port)

    def settings(self, **changes: object) -> Ssh:
        """Nothing of the machine's own ~/.ssh or /etc/ssh has a say."""
        empty = self.folder / "empty_config"
        empty.touch()
        explicit = {"config": str(empty), "known_hosts": str(self.known_hosts), "identity_files": (str(self.identity),)}
        return Ssh(**{**explicit, **changes})  # type: ignore[arg-type]

    def session_pids(self) -> list[int]:
        """Its children: those that carry the connections, and as root those that do so for the user."""
        found, new = [], [self.pid]
        while new:
            children = " ".join(read_proc(pid, f"task/{pid}/children") for pid in new).split()
            new = [int(pid) for pid in children if "sshd" in read_proc(int(pid), "comm")]
            found += new
        return found

    def close(self) -> None:
        """The listener first; the sessions it forked end with their connections."""
        self._process.terminate()
        self._process.wait(10)
        self._reader.join(10)
