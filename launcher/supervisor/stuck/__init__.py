"""Processes that live and do not move: who holds the others up, when that is told, and when it ends a run."""
