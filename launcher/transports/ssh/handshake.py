"""The SSH handshake with paramiko: only safe ciphers, host keys checked, one deadline."""

from __future__ import annotations

from typing import Any

from paramiko import MissingHostKeyPolicy, Transport  # type: ignore[import-untyped]
from paramiko.packet import Packetizer  # type: ignore[import-untyped]

from hostmesh.launcher.transports.ssh.host_keys import KnownHosts
from hostmesh.launcher.transports.ssh.socket import Deadline

# Only fast and safe ones; by default paramiko also accepts 3DES and MD5.
CIPHERS = ("aes128-gcm@openssh.com", "aes256-gcm@openssh.com", "aes128-ctr", "aes192-ctr", "aes256-ctr")
DIGESTS = ("hmac-sha2-256-etm@openssh.com", "hmac-sha2-512-etm@openssh.com", "hmac-sha2-256", "hmac-sha2-512")
RSA_SIGNATURES = ("rsa-sha2-512", "rsa-sha2-256")


class HostKeyCheck(MissingHostKeyPolicy):  # type: ignore[misc]
    """Checks every host key against known_hosts. paramiko's own list is empty, so it asks this policy for each key."""

    def __init__(self, known: KnownHosts, names: tuple[str, ...], accept_new: bool) -> None:
        self._known, self._names, self._accept_new = known, names, accept_new

    def missing_host_key(self, client: Any, hostname: str, key: Any) -> None:
        self._known.check(self._names, key.get_name(), key.asbytes(), self._accept_new)


class HostPacketizer(Packetizer):  # type: ignore[misc]
    """Remembers what a server says instead of its banner. It starts no timer thread for the handshake: the deadline of
    the connection limits that already."""

    said = ""

    def readline(self, timeout: float) -> str:
        line: str = super().readline(timeout)
        if not line.startswith("SSH-"):
            self.said = self.said or line[:100]
        return line

    def start_handshake(self, timeout: float) -> None:
        pass


class HostTransport(Transport):  # type: ignore[misc]
    def __init__(self, deadline: Deadline, known_kinds: list[str], sock: Any, **options: Any) -> None:
        super().__init__(sock, packetizer_class=HostPacketizer, **options)
        self.deadline = deadline
        choices = self.get_security_options()
        choices.ciphers, choices.digests = CIPHERS, DIGESTS
        choices.key_types = order_key_types(choices.key_types, known_kinds)


def order_key_types(offered: tuple[str, ...], known: list[str]) -> tuple[str, ...]:
    """Known kinds of key come first, so that a server with several keys shows one that can be checked."""
    wanted = [name for kind in known for name in (RSA_SIGNATURES if kind == "ssh-rsa" else (kind,))]
    return (*(name for name in wanted if name in offered), *(name for name in offered if name not in wanted))
