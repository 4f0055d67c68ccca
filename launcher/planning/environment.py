"""The environment of a run: what Linux gives to no process is refused, and what lets somebody in is not shown."""

from __future__ import annotations

import re
from collections.abc import Mapping

from hostmesh.launcher.errors import UsageError
from hostmesh.launcher.output.redact import REDACTED, hide_in_urls

# Bytes of `NAME=value` and the zero byte at its end: MAX_ARG_STRLEN of Linux, whatever ulimit says.
MAX_VARIABLE = 128 << 10
# Variables of `env` whose values are kept as those of `secrets`.
CREDENTIALS = ("AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN", "HF_TOKEN", "HUGGING_FACE_HUB_TOKEN", "WANDB_API_KEY")
LIKE_CREDENTIALS = re.compile(r"(?i)(.*_)?(TOKEN|PASSWORD|API_KEY|SECRET|SECRET_.*|SECRETS)")
# These are words of a tokenizer, and its text is in the logs.
OF_TEXT = re.compile(r"(?i)(.*_)?(BOS|CLS|END|EOS|MASK|PAD|SEP|START|STOP|UNK)_TOKEN")
# Of a variable that is only named like one: `MY_TOKEN=0` must not blot every 0 out of the logs.
MIN_SECRET = 8


def check_environment(env: Mapping[str, str]) -> None:
    """The message has names and sizes only: a value may be a secret."""
    sizes = {name: len(f"{name}={value}".encode("utf-8", "surrogateescape")) + 1 for name, value in env.items()}
    too_long = [f"{name} with {size:,} bytes" for name, size in sizes.items() if size > MAX_VARIABLE]
    if too_long:
        raise UsageError(
            f"the environment is too large: found {', '.join(too_long)}, and Linux takes {MAX_VARIABLE:,} for a "
            "variable and its name; put the value into a file that the hosts can read, and its path into the variable"
        )


def find_credentials(env: Mapping[str, str]) -> dict[str, str]:
    """Those that are to be taken out of all that a run leaves and shows."""
    found = {name: value for name, value in env.items() if is_credential(name) and value}
    return {name: value for name, value in found.items() if name in CREDENTIALS or len(value) >= MIN_SECRET}


def is_credential(name: str) -> bool:
    return name in CREDENTIALS or (LIKE_CREDENTIALS.fullmatch(name) is not None and not OF_TEXT.fullmatch(name))


def show_environment(env: Mapping[str, str]) -> dict[str, str]:
    return {name: REDACTED if is_credential(name) else hide_in_urls(value) for name, value in env.items()}
