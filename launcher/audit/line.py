"""What is said of an audit on the screen; pure."""

from __future__ import annotations

from typing import Any

from hostmesh.launcher.words import agree

# Of what is wrong; result.json has all.
MAX_TOLD = 5


def tell_audit(audit: dict[str, Any] | None) -> str | None:
    """A run of one attempt, from its first step on, of which nothing is wrong needs no line."""
    if audit is None:
        return None
    steps = tell_steps(audit)
    if audit["exact"] is False:
        told = [f"  {problem}" for problem in audit["problems"][:MAX_TOLD]]
        more = len(audit["problems"]) - MAX_TOLD
        rest = [f"  and {more} more in result.json"] if more > 0 else []
        return "\n".join([f"launch: audit: {steps}: NOT every record was used exactly once:", *told, *rest])
    if audit["attempts"] == 1 and audit["first_step"] == 1:
        return None
    if audit["exact"] is None:
        return f"launch: audit: {steps}; whether each record was used exactly once is not known: {audit['unknown'][0]}"
    return f"launch: audit: {steps}, {tell_records(audit)}{tell_left_out(audit['left_out'])}{tell_repeated(audit)}"


def tell_records(audit: dict[str, Any]) -> str:
    """A mixture may end in the middle of an epoch of its parts."""
    records = count_many(audit["records"], "record")
    if "parts" in audit:
        return f"{records} of {count_many(audit['parts'], 'part')}, none used twice in an epoch of its part"
    return f"{records}, each used exactly once in {count_many(audit['epochs'], 'epoch')}"


def tell_steps(audit: dict[str, Any]) -> str:
    """`800 steps from step 401 on`."""
    first = audit["first_step"]
    return count_many(audit["steps"], "step") + (f" from step {first:,} on" if first > 1 else "")


def tell_left_out(count: int) -> str:
    return f", {count:,} left out" if count else ""


def tell_repeated(audit: dict[str, Any]) -> str:
    restarts, steps = audit["attempts"] - 1, audit["repeated_steps"]
    if not restarts:
        return ""
    repeated = f"{count_many(steps, 'step')} {agree('was', steps)}" if steps else "no step was"
    return f"; {repeated} done again after {count_many(restarts, 'restart')}"


def count_many(count: int, thing: str) -> str:
    """`1,200 steps`."""
    return f"{count:,} {thing}{'' if count == 1 else 's'}"
