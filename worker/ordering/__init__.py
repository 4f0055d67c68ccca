"""Which record stands where: pure functions of seed, step and position."""
