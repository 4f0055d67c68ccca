"""Attempts after the first: whether there is another, on which hosts, and what became of those that were lost."""
