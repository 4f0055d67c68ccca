"""How a process starts, what it tells its agent, and what is recorded when it fails."""
