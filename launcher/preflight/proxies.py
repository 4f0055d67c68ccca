"""Whether gRPC, and so jax's coordinator, would go through a proxy: gRPC's own rule; pure.

Tried with jaxlib 0.10.2: only names in lower case count, the first that is set decides, and only http:// is taken.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Mapping

IN_ORDER = ("grpc_proxy", "https_proxy", "http_proxy")
EXCEPTIONS_IN_ORDER = ("no_grpc_proxy", "no_proxy")


def find_capturing(env: Mapping[str, str], address: str) -> str | None:
    """The variable whose proxy would get the connections to this address."""
    name = next((name for name in IN_ORDER if name in env), None)
    if name is None or not env[name].lower().startswith("http://"):
        return None
    entries = env.get(name_exceptions(env), "").split(",")
    return None if any(_matches(entry.strip(), address) for entry in entries if entry) else name


def name_exceptions(env: Mapping[str, str]) -> str:
    """The variable of exceptions that gRPC reads: where no_grpc_proxy is set, it ignores no_proxy."""
    return next((name for name in EXCEPTIONS_IN_ORDER if name in env), "no_proxy")


def except_address(env: Mapping[str, str], address: str) -> dict[str, str]:
    """The variable that lets connections to this address bypass the proxy, with the exceptions it had before.

    Other programs read NO_PROXY where there is no no_proxy, and would lose what it says once there is one.
    """
    name = name_exceptions(env)
    before = env.get(name) or (env.get("NO_PROXY", "") if name == "no_proxy" else "")
    return {name: ",".join(filter(None, (before, address)))}


def _matches(entry: str, address: str) -> bool:
    """Whether an exception covers the address: as the end of its text, or as a network that contains it."""
    return address.lower().endswith(entry.lower()) or _holds(entry, address)


def _holds(network: str, address: str) -> bool:
    try:
        return "/" in network and ipaddress.ip_address(address) in ipaddress.ip_network(network, strict=False)
    except ValueError:
        return False
