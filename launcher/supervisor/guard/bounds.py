"""Of how many loaders and names the guard remembers what was told, and what the user hears where there are more."""

from __future__ import annotations

# Of loaders, and as many of calls.
MAX_LOADERS = 300
MANY_NAMES = (
    f"more than {MAX_LOADERS} names: give hostmesh.check one name for all its calls, not one for each, as "
    'f"batch {step}" is; only the last ones are compared'
)
MANY_LOADERS = f"more than {MAX_LOADERS} loaders: rows of those that were used longest ago are no longer compared"
