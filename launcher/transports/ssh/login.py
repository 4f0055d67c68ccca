"""Login with keys: which are tried and in which order. Key files are read once a run; no password is asked for."""

from __future__ import annotations

import base64
import binascii
import functools
import os
import socket
import stat
import threading
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any

from cryptography.exceptions import UnsupportedAlgorithm
from paramiko import AuthenticationException, BadAuthenticationType, PKey, SSHException  # type: ignore[import-untyped]
from paramiko.agent import AgentSSH  # type: ignore[import-untyped]
from paramiko.pkey import UnknownKeyType  # type: ignore[import-untyped]

from hostmesh.launcher.errors import Unreachable

DEFAULT_FILES = ("~/.ssh/id_ed25519", "~/.ssh/id_ecdsa", "~/.ssh/id_rsa")
AGENT_SOCKET = "SSH_AUTH_SOCK"
AGENT_TIMEOUT = 20.0
OPEN_TO_OTHERS = 0o077


@dataclass(frozen=True)
class Candidate:
    """A key, where it came from, or why it cannot be used."""

    source: str
    key: Any = None
    problem: str = ""


class SharedAgent(AgentSSH):  # type: ignore[misc]
    """One connection to the ssh-agent, used by all hosts in turn."""

    def __init__(self, path: str) -> None:
        super().__init__()
        self._turn = threading.Lock()
        connection = socket.socket(socket.AF_UNIX)
        try:
            connection.settimeout(AGENT_TIMEOUT)
            connection.connect(path)
            self._connect(connection)
        except (OSError, SSHException):
            connection.close()

    def _send_message(self, message: Any) -> Any:
        with self._turn:
            return super()._send_message(message)

    def close(self) -> None:
        self._close()


class Keyring:
    """Every key file and agent that any host asks for, read at most once a run."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._files: dict[str, Candidate] = {}
        self._agents: dict[str, SharedAgent] = {}

    def read_file(self, file: str) -> Candidate:
        with self._lock:
            if file not in self._files:
                self._files[file] = read_key_file(file)
            return self._files[file]

    def read_agent(self, path: str) -> Sequence[Any]:
        with self._lock:
            if path not in self._agents:
                self._agents[path] = SharedAgent(path)
            return tuple(self._agents[path].get_keys())

    def close(self) -> None:
        with self._lock:
            for agent in self._agents.values():
                agent.close()

    def list_candidates(self, named: Sequence[str], agent: str | None, only_named: bool) -> Iterator[Candidate]:
        """Named keys first, since servers end the connection after a few wrong ones; else the agent's, then the usual
        files. A key the agent holds is used through it: its file may be encrypted."""
        held = {key.blob: key for key in self.read_agent(agent)} if agent else {}
        usual = filter(os.path.exists, map(os.path.expanduser, DEFAULT_FILES))
        from_files = (self._take(file, held) for file in named or usual)
        from_agent = (Candidate(f"{key.comment or key.get_name()} of the ssh-agent", key) for key in held.values())
        if only_named:
            return from_files
        return drop_repeated(chain(from_files, from_agent) if named else chain(from_agent, from_files))

    def _take(self, file: str, held: dict[bytes, Any]) -> Candidate:
        candidate = self.read_file(file)
        own = candidate.key.asbytes() if candidate.key else read_public_half(file)
        return Candidate(f"{file} through the ssh-agent", held[own]) if own in held else candidate


def drop_repeated(candidates: Iterable[Candidate]) -> Iterator[Candidate]:
    seen = set()
    for candidate in candidates:
        if candidate.key is None or id(candidate.key) not in seen:
            yield candidate
        seen.add(id(candidate.key))


def read_key_file(file: str) -> Candidate:
    try:
        key, status = PKey.from_path(file), os.stat(file)
        if status.st_uid == os.getuid() and status.st_mode & OPEN_TO_OTHERS:  # OpenSSH's own rule
            mode = stat.S_IMODE(status.st_mode)
            problem = f"{file} is open to other users (mode {mode:04o}), so it is not used: run chmod 600 {file}"
            return Candidate(file, problem=problem)
        return Candidate(file, key)
    except FileNotFoundError:
        return Candidate(file, problem=f"there is no {file}")
    except OSError as error:
        return Candidate(file, problem=f"{file} cannot be read: {error.strerror}")
    except TypeError:  # what cryptography raises when it is given no passphrase for a key that has one
        return Candidate(file, problem=f"{file} is encrypted and not in the ssh-agent: run ssh-add {file}")
    except (ValueError, SSHException, UnsupportedAlgorithm, UnknownKeyType):
        return Candidate(file, problem=f"{file} is no private key that can be used here")


def read_public_half(file: str) -> bytes:
    """The public key beside a private one, or in the file itself, which is how a key of the ssh-agent is named."""
    for path in (Path(f"{file}.pub"), Path(file)):
        try:
            return base64.b64decode(path.read_text(errors="replace").split()[1], validate=True)
        except (OSError, IndexError, binascii.Error):
            continue
    return b""


def make_strategy(keyring: Keyring) -> Any:
    """What fabric calls for each connection as its authentication.strategy_class."""
    return functools.partial(Login, keyring)


class Login:
    def __init__(self, keyring: Keyring, ssh_config: Any, fabric_config: Any, username: str) -> None:
        named = [*fabric_config.authentication.identities, *ssh_config.get("identityfile", ())]
        self._named = [os.path.expanduser(file) for file in dict.fromkeys(named) if file.lower() != "none"]
        self._agent = find_agent(ssh_config.get("identityagent"))
        only_named = ssh_config.get("identitiesonly", "no").lower() == "yes"
        self._candidates = keyring.list_candidates(self._named, self._agent, only_named)
        self._user = username

    def authenticate(self, transport: Any) -> None:
        """`transport` has a `deadline` for everything up to the session."""
        tried, problems = [], []
        for candidate in self._candidates:
            if candidate.problem:
                problems.append(candidate.problem)
            elif (why := try_key(transport, self._user, candidate)) is None:
                return
            else:
                tried.append(candidate.source)
                problems += [why] if why else []
            if not transport.is_active():
                problems.append("the server ended the connection" + too_many_text(tried))
                break
        raise Unreachable(self._refusal_text(tried, problems))

    def _refusal_text(self, tried: Sequence[str], problems: Sequence[str]) -> str:
        if tried:
            problem = f"login as {self._user} was refused; tried {', '.join(tried)}"
            fix = "Put the public half of one into ~/.ssh/authorized_keys there, or name another user or key"
        else:
            looked = ", ".join(self._named or DEFAULT_FILES)
            agent = f"the ssh-agent at {self._agent} holds none" if self._agent else "there is no ssh-agent"
            problem = f"no key to log in with as {self._user}: looked for {looked}, and {agent}"
            fix = "Name a key with ssh: {identity_files: […]} in the cluster file, or run ssh-add"
        return ". ".join(["; ".join([problem, *problems]), fix])


def try_key(transport: Any, user: str, candidate: Candidate) -> str | None:
    """None when the login succeeded; else why not, as far as the server tells."""
    transport.auth_timeout = transport.deadline.left()
    try:
        further = transport.auth_publickey(user, candidate.key)
    except BadAuthenticationType as error:
        return f"the server takes no keys, only {', '.join(error.allowed_types)}"
    except AuthenticationException:
        return "" if transport.deadline.left() > 0 else f"no answer within {transport.deadline.seconds:g} s"
    except (SSHException, EOFError, OSError) as error:
        return str(error)
    return f"the server wants {', '.join(further)} as well, which cannot be asked for here" if further else None


def too_many_text(tried: Sequence[str]) -> str:
    if len(tried) < 2:
        return ""
    return f" after {len(tried)} keys: name the right one with ssh: {{identity_files: […]}}, or IdentitiesOnly yes"


def find_agent(setting: str | None) -> str | None:
    """IdentityAgent of the ssh config: a path, a variable, or none; by default what ssh-add talks to as well."""
    if setting and setting.lower() == "none":
        return None
    if setting and setting != AGENT_SOCKET:
        path = os.path.expanduser(os.path.expandvars(setting))
        return path if os.path.exists(path) else None
    return os.environ.get(AGENT_SOCKET) or None
