"""What the ssh config files say about a host, after the settings of the cluster file, which count first."""

from __future__ import annotations

import functools
import glob
import os
import re
import shlex
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fabric import Config  # type: ignore[import-untyped]
from paramiko import SSHConfig  # type: ignore[import-untyped]
from paramiko.ssh_exception import ConfigParseError  # type: ignore[import-untyped]

from hostmesh.launcher.cluster.model import Ssh
from hostmesh.launcher.errors import Unreachable

USER_CONFIG, SYSTEM_CONFIG = "~/.ssh/config", "/etc/ssh/ssh_config"
USER_KNOWN_HOSTS, GLOBAL_KNOWN_HOSTS = "~/.ssh/known_hosts", "/etc/ssh/ssh_known_hosts"
ANY_HOST = "Host *"
MAX_NESTED = 16
ADDS_NEW_KEYS = ("accept-new", "no", "off")


@dataclass(frozen=True)
class Hop:
    """A machine to log in to: a host of the cluster or a jump host. The config files decide where a value is None."""

    name: str
    user: str | None = None
    port: int | None = None
    jump: str | None = None


class SshConfigs:
    """The files are read once; `strategy` is how fabric's connections log in."""

    def __init__(self, settings: Ssh, strategy: Callable[..., Any]) -> None:
        self._settings, self._strategy = settings, strategy
        self._text = read_config_files(settings.config)
        self._parse = functools.cache(self._parse_once)

    def make(self, hop: Hop) -> Config:
        """fabric's settings for one connection; fabric changes them, so connections cannot share them."""
        identities = {"identities": list(self._settings.identity_files), "strategy_class": self._strategy}
        return Config(ssh_config=self._parse(hop.user, hop.port, hop.jump), overrides={"authentication": identities})

    def _parse_once(self, user: str | None, port: int | None, jump: str | None) -> SSHConfig:
        """The hop's own values stand before the files' text: in an ssh config the first value counts."""
        own = {"User": user, "Port": port, "ProxyJump": jump}
        first = "".join(f"{key} {value}\n" for key, value in own.items() if value is not None)
        try:
            return SSHConfig.from_text(first + self._text)
        except ConfigParseError as error:
            raise Unreachable(f"the ssh config {self._settings.config or USER_CONFIG} is broken: {error}") from None

    def find_known_hosts(self, options: dict[str, Any]) -> tuple[Path, ...]:
        own, user = self._settings.known_hosts, options.get("userknownhostsfile", USER_KNOWN_HOSTS)
        files = [own] if own else split_words(user)
        files += split_words(options.get("globalknownhostsfile", GLOBAL_KNOWN_HOSTS))
        named = [Path(file).expanduser() for file in files if file.lower() != "none"]
        return tuple(named) or (Path(os.devnull),)

    def accepts_new_keys(self, options: dict[str, Any]) -> bool:
        return self._settings.accept_new_host_keys or options.get("stricthostkeychecking", "").lower() in ADDS_NEW_KEYS


def read_config_files(own: str | None) -> str:
    if own and not os.access(own, os.R_OK):
        raise Unreachable(f"the ssh config {own} cannot be read; fix ssh: {{config: …}} in the cluster file")
    ssh_folder = Path("~/.ssh").expanduser()
    lines = list(inline_includes(Path(own or USER_CONFIG).expanduser(), ssh_folder, ANY_HOST))
    if not own:
        lines += [ANY_HOST, *inline_includes(Path(SYSTEM_CONFIG), Path(SYSTEM_CONFIG).parent, ANY_HOST)]
    return "\n".join(lines) + "\n"


def inline_includes(file: Path, folder: Path, header: str, depth: int = 0) -> Iterator[str]:
    """The lines of a config file with those of included files in place, since paramiko does not know Include.

    After an included file the section that it was included in goes on, so its `header` is repeated. Relative names
    begin in `folder`.
    """
    try:
        lines = file.read_text(errors="replace").splitlines()
    except OSError:
        return
    for line in lines:
        match = re.match(r"\s*(\w+)[\s=]+(.*)", line)
        word = match[1].lower() if match else ""
        if match and word == "include" and depth < MAX_NESTED:
            for included in find_included(match[2], folder):
                yield from inline_includes(included, folder, header, depth + 1)
                yield header
            continue
        header = line if word in ("host", "match") else header
        yield line


def find_included(patterns: str, folder: Path) -> Iterator[Path]:
    for pattern in split_words(patterns):
        yield from map(Path, sorted(glob.glob(str(folder / Path(pattern).expanduser()))))


def split_words(text: str) -> list[str]:
    try:
        return shlex.split(text)
    except ValueError:  # a quote that is not closed
        return text.split()


def parse_hop(text: str, jump: str | None) -> Hop:
    """`[user@]host[:port]`, as ProxyJump has it."""
    form = r"(?:ssh://)?(?:(.+)@)?(?:\[([^]]+)\]|([^:]+))(?::([0-9]+))?/?"
    match = re.fullmatch(form, text.strip())
    if not match:
        raise Unreachable(f"the jump host {text!r} makes no sense; wanted user@host:port, the host at least")
    user, bracketed, plain, port = match.groups()
    return Hop(bracketed or plain, user, int(port) if port else None, jump)
