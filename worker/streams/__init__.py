"""Records that only come in order become global arrays."""
