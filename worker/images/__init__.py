"""Encoded pictures become arrays of one size."""
