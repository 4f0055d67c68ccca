"""Faults that a process does to itself, because `launch --chaos` asks for them."""
