"""What a host's setup depends on: when any of it has changed, setup runs again."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from typing import TYPE_CHECKING

from launcher.cluster import Setup
from launcher.errors import UsageError
from launcher.ignore import Rule, parse_rule

if TYPE_CHECKING:
    from launcher.tree import Entry, Tree


def make_key(setup: Setup, env: Mapping[str, str], tree: Tree | None) -> str:
    """Of commands, environment and the inputs' content; without inputs that of the whole tree."""
    code: object = tree.digest if tree is not None else None
    if setup.inputs and tree is not None:
        code = [(entry.path, entry.mode, entry.digest) for entry in find_inputs(setup, tree)]
    return hashlib.sha256(json.dumps([setup.run, code, dict(env)]).encode()).hexdigest()


def find_inputs(setup: Setup, tree: Tree) -> list[Entry]:
    """Raises UsageError for an input that names no file: a setup that never runs again would be the price."""
    found: set[Entry] = set()
    for pattern in setup.inputs:
        rule = parse_pattern(pattern)
        matching = [entry for entry in tree.entries if covers(rule, entry.path)]
        if not matching:
            raise UsageError(
                f"setup: inputs: found no file {pattern!r} among those that sync sends from {tree.root}; wanted a path"
                " in that folder, or a pattern such as requirements*.txt, of files that .gitignore and exclude let pass"
            )
        found.update(matching)
    return sorted(found)


def parse_pattern(pattern: str) -> Rule:
    """As in .gitignore, but from the top: `requirements.txt` is that one and not those of folders below."""
    rule = parse_rule("/" + pattern.removeprefix("./").lstrip("/"))
    if rule is None:
        raise UsageError(f"setup: inputs: found {pattern!r}, wanted a path or a pattern as in .gitignore")
    return rule


def covers(rule: Rule, path: str) -> bool:
    """The file itself, or a folder that it lies in."""
    parts = path.split("/")
    above = ("/".join(parts[:count]) for count in range(1, len(parts)))
    return rule.matches(path, False) or any(rule.matches(folder, True) for folder in above)
