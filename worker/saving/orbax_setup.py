"""orbax's checkpointer, set up so that every wait ends and a save by a program that lost its folder never shows."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable
from typing import Any

import jax

from hostmesh.worker.saving.stores.base import Place


def open_orbax(place: Place, token: str, require_owned: Callable[[], None]) -> Any:
    """What is unfinished is named by the token; `require_owned` is called before a step shows."""
    import orbax.checkpoint as ocp

    logging.getLogger("absl").addFilter(_is_not_orbax)
    # With its processes named, orbax meets through the coordination service; else through device collectives, which
    # have no timeout and mix with those of training. Its CheckpointManager is not used: after a failed save it waits
    # 20 minutes for the other processes before it says so, and asks jax about preemption from a thread.
    everyone = ocp.options.MultiprocessingOptions(active_processes=set(range(jax.process_count())))
    # Folders made by a thread that fails would leave other threads waiting for them, and the program unable to exit.
    at_once = ocp.options.AsyncOptions(create_directories_asynchronously=False)
    together = ocp.CompositeOptions(
        multiprocessing_options=everyone, async_options=at_once, temporary_path_class=place.find_part_class()
    )
    handler = ocp.CompositeCheckpointHandler(composite_options=together)
    return ocp.AsyncCheckpointer(
        handler,
        async_options=at_once,
        multiprocessing_options=everyone,
        temporary_path_class=place.make_path_class(token, require_owned),
    )


def restore_part(wanted: Any) -> Any:
    """What to restore, where `wanted` may lack parts of what was saved."""
    from orbax.checkpoint import args, checkpoint_utils

    return args.PyTreeRestore(
        item=wanted, restore_args=checkpoint_utils.construct_restore_args(wanted), partial_restore=True
    )


def _is_not_orbax(record: logging.LogRecord) -> bool:
    """What matters of orbax's log is raised; the rest is not for the user's screen."""
    return f"{os.sep}orbax{os.sep}" not in record.pathname
