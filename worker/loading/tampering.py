"""Where the faults of a rehearsal (worker/chaos/) reach into loading; in any other run nothing is set here."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from numpy.typing import NDArray

# Gets the step, counted from 0, and the arrays of each row set that were read for it.
change_rows: Callable[[int, list[list[NDArray[Any]]]], None] | None = None
# A loader throws its next batch away and gives the one after it.
skip_batch = False
