"""`python -m hostmesh.worker`: the built-in job."""

from __future__ import annotations

import sys

from hostmesh.worker.errors import WorkerError
from hostmesh.worker.identity import Identity
from hostmesh.worker.job.settings import read_settings


def run() -> None:
    try:
        settings = read_settings()
        from hostmesh.worker.job.train import main  # after the settings: a mistake is told before jax is imported

        main(settings)
    except WorkerError as error:
        if Identity.from_env() is not None:
            raise  # under `launch` the verdict tells it
        print(f"error: {error}", file=sys.stderr)
        sys.exit(error.exit_code)


if __name__ == "__main__":
    run()
