"""The launcher's one loop, what it knows of each host, and how it decides."""
