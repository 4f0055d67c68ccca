"""A script runs as under plain Python, although jax is there already and a launcher is above it."""
