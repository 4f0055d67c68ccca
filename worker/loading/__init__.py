"""Rows of a source become global arrays."""
