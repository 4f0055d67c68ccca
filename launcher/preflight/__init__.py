"""Findings about hosts before a run, and their table; pure."""
