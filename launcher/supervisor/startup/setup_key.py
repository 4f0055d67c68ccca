"""What a host's setup depends on: when any of it has changed, setup runs again."""

from __future__ import annotations

import hashlib
import json
import posixpath
from collections.abc import Mapping
from typing import TYPE_CHECKING

from hostmesh.launcher.cluster.model import Setup
from hostmesh.launcher.errors import UsageError
from hostmesh.launcher.sync.ignore import Rule, parse_rule

if TYPE_CHECKING:
    from hostmesh.launcher.sync.tree import Entry, Tree


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
        matching = {entry for entry in tree.entries if covers(rule, entry.path)}
        if not matching:
            raise UsageError(
                f"setup: inputs: found no file {pattern!r} among those that sync sends from {tree.root}; wanted a path"
                " in that folder, or a pattern such as requirements*.txt, of files that .gitignore and exclude let pass"
            )
        found |= matching
    while more := {entry for link in found for entry in find_behind(link, tree)} - found:
        found |= more
    return sorted(found, key=lambda entry: entry.path)


def find_behind(link: Entry, tree: Tree) -> list[Entry]:
    """What a link stands for: a file, or all that is in a folder."""
    if link.target is None:
        return []
    target = posixpath.normpath(posixpath.join(posixpath.dirname(link.path), link.target))
    return [entry for entry in tree.entries if entry.path == target or entry.path.startswith(f"{target}/")]


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
