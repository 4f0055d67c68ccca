"""orbax's checkpointer, set up so that every wait ends and a save by a program that lost its folder never shows."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable
from typing import Any

import jax

from hostmesh.worker.process.facts import send_fact


def open_orbax(token: str, require_owned: Callable[[], None]) -> Any:
    """Saves go to folders named by the token; `require_owned` is called before one gets its own name."""
    import orbax.checkpoint as ocp

    logging.getLogger("absl").addFilter(_is_not_orbax)
    # With its processes named, orbax meets through the coordination service; else through device collectives, which
    # have no timeout and mix with those of training. Its CheckpointManager is not used: after a failed save it waits
    # 20 minutes for the other processes before it says so, and asks jax about preemption from a thread.
    everyone = ocp.options.MultiprocessingOptions(active_processes=set(range(jax.process_count())))
    # Folders made by a thread that fails would leave other threads waiting for them, and the program unable to exit.
    at_once = ocp.options.AsyncOptions(create_directories_asynchronously=False)
    together = ocp.CompositeOptions(multiprocessing_options=everyone, async_options=at_once)
    handler = ocp.CompositeCheckpointHandler(composite_options=together)
    return ocp.AsyncCheckpointer(
        handler,
        async_options=at_once,
        multiprocessing_options=everyone,
        temporary_path_class=_make_path_class(token, require_owned),
    )


def restore_part(wanted: Any) -> Any:
    """What to restore, where `wanted` may lack parts of what was saved."""
    from orbax.checkpoint import args, checkpoint_utils

    return args.PyTreeRestore(
        item=wanted, restore_args=checkpoint_utils.construct_restore_args(wanted), partial_restore=True
    )


def _make_path_class(token: str, require_owned: Callable[[], None]) -> Any:
    """By itself orbax names the folder of an unfinished save by its step alone: two programs would write into one.

    A save is complete when it gets its own name, in the first process and in a thread of orbax's. That is told at once:
    whoever goes on after a crash goes on from there.
    """
    from orbax.checkpoint.path import atomicity

    class OwnersPath(atomicity.AtomicRenameTemporaryPath):  # type: ignore[misc]
        @classmethod
        def from_final(cls, final_path: Any, **options: Any) -> Any:
            name = f"{final_path.name}{atomicity.TMP_DIR_SUFFIX}-{token}"
            return cls(final_path.parent / name, final_path, **options)

        async def finalize(self) -> None:
            require_owned()
            await super().finalize()
            if (name := self.get_final().name).isdecimal():  # and no part of a step
                send_fact("saved", must_arrive=True, step=int(name))

    return OwnersPath


def _is_not_orbax(record: logging.LogRecord) -> bool:
    """What matters of orbax's log is raised; the rest is not for the user's screen."""
    return f"{os.sep}orbax{os.sep}" not in record.pathname
