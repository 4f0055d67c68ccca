"""Find the workers' Python on this host, and the folder they start in."""

from __future__ import annotations

import os

from hostmesh.launcher.agent.files import find_program
from hostmesh.launcher.protocol import wire


class Missing(Exception):
    """Something that the cluster file names is not on this host; the text is complete."""


def find_python(settings: wire.PrepareWorkers) -> str:
    """The path of the workers' Python; raises Missing if it or the workdir is not there."""
    found = find_program(os.path.expanduser(settings.python), {**os.environ, **settings.env}.get("PATH", ""))
    if found is None:
        raise Missing(f"python: found no executable {settings.python}")
    if settings.workdir is not None and not os.path.isdir(os.path.expanduser(settings.workdir)):
        raise Missing(f"workdir: found no folder {settings.workdir}")
    return os.path.abspath(found)
