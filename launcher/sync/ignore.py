"""Which files are not sent: the rules of `.gitignore` files and of a cluster's `exclude:`."""

from __future__ import annotations

import re
import warnings
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from hostmesh.launcher.errors import UsageError

# Stands for a line break in a name, which would end the text for the library's patterns; no name can hold it.
LINE_BREAK = "\ud800"


class Rule(NamedTuple):
    regex: re.Pattern[str]
    ignores: bool
    folders_only: bool

    def matches(self, path: str, is_folder: bool) -> bool:
        if self.folders_only and not is_folder:
            return False
        match = self.regex.search(path)
        # The pattern's one group matches when a folder above the path does; git asks about the path itself.
        return match is not None and match.lastindex is None


class Rules(NamedTuple):
    """The rules of one file, the last of them first; `base` is its folder, "" or with a slash at its end."""

    base: str
    rules: tuple[Rule, ...]

    def judge(self, path: str, is_folder: bool) -> bool | None:
        """Whether the path is ignored; None when no rule speaks of it."""
        below = path[len(self.base) :].replace("\n", LINE_BREAK)
        return next((rule.ignores for rule in self.rules if rule.matches(below, is_folder)), None)


def is_ignored(path: str, is_folder: bool, layers: Iterable[Rules]) -> bool:
    """The first layer that speaks decides."""
    judgements = (layer.judge(path, is_folder) for layer in layers)
    return next((judgement for judgement in judgements if judgement is not None), False)


def parse_gitignore(text: str, base: str) -> Rules:
    """Lines that are no pattern are skipped, as git does."""
    lines = text.removeprefix("\ufeff").split("\n")
    rules = [parse_rule(line.removesuffix("\r")) for line in lines]
    return Rules(base, tuple(rule for rule in reversed(rules) if rule is not None))


def parse_exclude(patterns: Sequence[str]) -> Rules:
    rules = []
    for pattern in patterns:
        if (rule := parse_rule(pattern.replace("\n", LINE_BREAK))) is None:
            raise UsageError(f"sync: exclude: found {pattern!r}; wanted a pattern as in .gitignore")
        rules.append(rule)
    return Rules("", tuple(reversed(rules)))


def parse_rule(line: str) -> Rule | None:
    """None for a comment, an empty line, and what is no pattern."""
    line = trim(line)
    folders_only = line.endswith("/")
    body = line.removesuffix("/")
    if body in ("", "!") or line.startswith("#"):
        return None
    from pathspec.patterns.gitignore.spec import GitIgnoreSpecPattern

    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", FutureWarning)  # of odd brackets
            pattern = GitIgnoreSpecPattern(body)
    except (ValueError, re.error):
        return None
    if pattern.regex is None or pattern.include is None:
        return None
    return Rule(pattern.regex, pattern.include, folders_only)


def trim(line: str) -> str:
    """Git drops spaces at the end unless a backslash keeps one; the library would drop other blanks too."""
    kept = line.rstrip(" ")
    if kept.endswith("\\") and kept != line and not kept.endswith("\\\\"):
        return kept[:-1] + "[ ]"
    return kept[:-1] + f"[{kept[-1]}]" if kept[-1:].isspace() else kept
