"""Why a host has no agent, in the words of who can fix it; pure."""

from __future__ import annotations

import re

from hostmesh.launcher.protocol import wire
from hostmesh.launcher.words import last_lines

LAST_LINES = 8
# The agent's source, given to a shell that took it for commands, or to a program that printed it.
TAKEN_FOR_COMMANDS = re.compile(
    r"\b(import|from)\W{1,3}(command )?not found|not found\W{1,3}(import|from)\b|nknown command\W{1,3}(import|from)\b"
    r"|syntax error.*become_agent",
    re.IGNORECASE,
)
PRINTED_BACK = re.compile(r'^def become_agent\(\) -> None:|\["Beat", {}\]', re.MULTILINE)
# The first line that Python reads is not the first that was sent; an agent that got all of it fails further down.
BEGINNING_IS_GONE = re.compile(r'File "<string>", line [01]\b')
INSIDE_THE_AGENT = "in become_agent"
LIMITS = {
    r"Too many open files|\[Errno 24\]|Error 24\b": ("open files", "ulimit -n", "nofile", "LimitNOFILE="),
    r"Resource temporarily unavailable|\[Errno 11\]|can't start new thread|fork: retry": (
        *("processes", "ulimit -u", "nproc", "TasksMax="),
    ),
}
FIX_START_UP = (
    "a shell start-up file there (~/.bashrc, ~/.profile, ~/.zshenv), or a ForceCommand, must run the command it is "
    "given and leave its input alone where there is no terminal: put `[ -t 0 ] || return` at its top"
)


def explain_no_agent(why: str, said: str, python: str | None) -> str:
    """`why` is how the stream ended, `said` what the host printed before that."""
    name, said = python or "python3", said.strip()
    shown = last_lines(said, LAST_LINES)
    if re.search(rf"{re.escape(name)}\W{{0,3}} (command )?(not found|No such file)", said):
        found = f"found no {name} for the agent; install Python 3.9 or newer there, or name one with agent_python"
        return "\n".join([found, *shown])
    if start_up := find_start_up_cause(said):
        quoted = shown if TAKEN_FOR_COMMANDS.search(said) or not PRINTED_BACK.search(said) else []
        return "\n".join([f"its agent did not start: {start_up}; {FIX_START_UP}", *quoted])
    if not said:
        ended = "its stream ended" if why == "lost its agent" else f"it {why}"
        return f"its agent did not start: {ended}, and nothing was said before; {FIX_START_UP}"
    if remedies := find_remedies(said):
        return "\n".join([f"its agent did not start: {'; '.join(remedies)}", shown[-1]])
    return "\n".join([f"its agent did not start: {shown[0]}", *shown[1:]])


def find_start_up_cause(said: str) -> str | None:
    if TAKEN_FOR_COMMANDS.search(said):
        return "another shell took the agent's source for commands"
    if PRINTED_BACK.search(said):
        return "another program got the agent's source and printed it"
    if BEGINNING_IS_GONE.search(said) and INSIDE_THE_AGENT not in said:
        return "something there read the beginning of the agent's source"
    return None


def find_remedies(said: str) -> list[str]:
    """For limits of a host that are too low for an agent and what it starts."""
    return [
        f"the host allows this user too few {things}: raise {command} there ({setting} in /etc/security/limits.conf, "
        f"or {unit} of the sshd or container)"
        for pattern, (things, command, setting, unit) in LIMITS.items()
        if re.search(pattern, said)
    ]


def explain_refusal(refused: wire.Refused) -> str:
    """With the end of what a program printed about it."""
    return "\n".join([refused.problem, *("  " + line for line in last_lines(refused.said, LAST_LINES))])
