"""`python -m worker`: the built-in job."""

from __future__ import annotations

from worker.settings import read_settings

if __name__ == "__main__":
    settings = read_settings()
    from worker.train import main  # after the settings: a mistake is told before jax is imported

    main(settings)
