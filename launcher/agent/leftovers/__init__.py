"""What runs that were killed leave on a host: shared memory, and the folders of their agents."""
