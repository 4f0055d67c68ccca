"""Rehearsed faults: what `launch --chaos FILE` does to a run."""
