"""What stands behind a Checkpoint: its folder, its owner, orbax."""
