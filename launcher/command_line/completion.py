"""Completion of the command line for bash, zsh and fish, written from the parsers themselves."""

from __future__ import annotations

import argparse
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

# Names of values in the help that are files or folders; any other value cannot be completed.
FILES, FOLDERS = ("FILE", "PATH"), ("DIR",)
VALUE_KINDS = ("choices", "files", "folders", "text")


@dataclass(frozen=True)
class Option:
    names: tuple[str, ...]
    meaning: str
    value: str | None  # what it is called, None for a flag
    choices: tuple[str, ...]

    @property
    def kind(self) -> str:
        """One of VALUE_KINDS; none for a flag."""
        if self.value is None:
            return ""
        if self.choices:
            return "choices"
        return "files" if self.value in FILES else "folders" if self.value in FOLDERS else "text"


def complete(shell: str, parser: argparse.ArgumentParser, commands: Mapping[str, argparse.ArgumentParser]) -> str:
    """`commands` are words that come first and have options of their own."""
    write = {"bash": write_bash, "zsh": write_zsh, "fish": write_fish}[shell]
    return write(read_options(parser), {name: read_options(each) for name, each in commands.items()})


def read_options(parser: argparse.ArgumentParser) -> list[Option]:
    return [
        Option(
            tuple(action.option_strings),
            (action.help or "").replace("%%", "%"),
            None if action.nargs == 0 else str(action.metavar or action.dest.upper()),
            tuple(map(str, action.choices or ())),
        )
        for action in parser._actions
        if action.option_strings
    ]


# bash: a function that reads the words so far. Where it replies nothing, bash offers the names of files.

BASH = """\
_launch() {
    local word="${COMP_WORDS[COMP_CWORD]}" before="${COMP_WORDS[COMP_CWORD-1]}" command="" position
    local plain="compopt +o bashdefault +o default"
    for ((position = 1; position < COMP_CWORD; position++)); do
        case "${COMP_WORDS[position]}" in
            %(names)s) [[ "$position" -eq 1 ]] && command="${COMP_WORDS[position]}" || return ;;
            %(valued)s) ((position++)) ;;
            --|-m) return ;;
            -*) ;;
            *) return ;;
        esac
    done
    case "$before" in
%(values)s
    esac
    case "$command" in
%(options)s
    esac
    [[ "$COMP_CWORD" -eq 1 ]] && %(first)s
}
complete -o bashdefault -o default -F _launch launch
"""


def write_bash(own: list[Option], commands: Mapping[str, list[Option]]) -> str:
    every = [*own, *(option for options in commands.values() for option in options)]
    valued = {name: option for option in every if option.value is not None for name in option.names}
    of_kind = {kind: "|".join(name for name in valued if valued[name].kind == kind) for kind in VALUE_KINDS}
    values = [
        *(f"{name}) {bash_words(option.choices)}; return ;;" for name, option in valued.items() if option.choices),
        f"{of_kind['files']}) return ;;",
        f"{of_kind['folders']}) $plain -o dirnames; return ;;",
        f"{of_kind['text']}) $plain; return ;;",
    ]
    options = [f"{name}) {bash_words(list_names(each))} ;;" for name, each in commands.items()]
    options.append(f'*) [[ "$word" == -* ]] && {bash_words(list_names(own))} ;;')
    return BASH % {
        "names": "|".join(commands),
        "valued": "|".join(valued),
        "values": "\n".join(" " * 8 + each for each in values),
        "options": "\n".join(" " * 8 + each for each in options),
        "first": bash_words(commands, "+="),
    }


def bash_words(words: Iterable[str], put: str = "=") -> str:
    return f'COMPREPLY{put}($(compgen -W "{" ".join(words)}" -- "$word"))'


def list_names(options: list[Option]) -> list[str]:
    return [name for option in options for name in option.names]


# zsh: what _arguments takes.

ZSH = """\
#compdef launch
_launch() {
    local -a own
    if (( CURRENT > 2 )); then
        case "$words[2]" in
%(commands)s
        esac
    fi
    own=(
%(own)s
    )
    (( CURRENT == 2 )) && [[ "$PREFIX" != -* ]] && compadd -- %(names)s
    _arguments -S -A "-*" $own "*:script or argument:_files"
}
(( $+functions[compdef] )) && compdef _launch launch
"""


def write_zsh(own: list[Option], commands: Mapping[str, list[Option]]) -> str:
    def list_specs(options: list[Option], indent: str) -> str:
        return "\n".join(indent + spec for option in options for spec in write_zsh_specs(option))

    cases = [
        f"            {name}) own=(\n{list_specs(options, ' ' * 16)}\n                )\n"
        "                shift words; (( CURRENT-- )); _arguments $own; return ;;"
        for name, options in commands.items()
    ]
    return ZSH % {"commands": "\n".join(cases), "own": list_specs(own, " " * 8), "names": " ".join(commands)}


def write_zsh_specs(option: Option) -> list[str]:
    meaning = "".join(f"\\{each}" if each in "[]:\\" else each for each in option.meaning)
    action = {
        "files": "_files",
        "folders": "_files -/",
        "choices": f"({' '.join(option.choices)})",
        "text": " ",
    }.get(option.kind)
    value = f":{option.value}:{action}" if action is not None else ""
    return [quote(f"{name}[{meaning}]{value}", "'\\''") for name in option.names]


# fish: a line for each option.

FISH = """\
function __launch_has_script
    set -l words (commandline -opc)[2..-1]
    while set -q words[1]
        switch $words[1]
            case %(names)s
                return 0
            case %(valued)s
                set -e words[1]
            case -- -m
                return 0
            case '-*'
            case '*'
                return 0
        end
        set -e words[1]
    end
    return 1
end
%(options)s
"""


def write_fish(own: list[Option], commands: Mapping[str, list[Option]]) -> str:
    lines = [f"complete -c launch -n __fish_is_first_token -a {name}" for name in commands]
    lines += [write_fish_option(option, "not __launch_has_script") for option in own]
    for name, options in commands.items():
        lines += [write_fish_option(option, f"__fish_seen_subcommand_from {name}") for option in options]
    valued = [name for option in own if option.value is not None for name in option.names]
    return FISH % {"names": " ".join(commands), "valued": " ".join(valued), "options": "\n".join(lines)}


def write_fish_option(option: Option, when: str) -> str:
    words = [f"complete -c launch -n {fish_quote(when)}"]
    words += [f"-l {name[2:]}" if name.startswith("--") else f"-s {name[1:]}" for name in option.names]
    words += [f"-d {fish_quote(option.meaning)}"]
    takes = {
        "files": "-r -F",
        "folders": "-x -a '(__fish_complete_directories)'",
        "choices": f"-x -a {fish_quote(' '.join(option.choices))}",
        "text": "-x",
    }
    return " ".join([*words, takes.get(option.kind, "")]).rstrip()


def fish_quote(text: str) -> str:
    return quote(text.replace("\\", "\\\\"), "\\'")


def quote(text: str, inner: str) -> str:
    """The text in single quotes; `inner` is how the shell writes a single quote inside of them."""
    return "'" + text.replace("'", inner) + "'"
