"""Processes that read rows for a loader, and the memory they share with it."""
