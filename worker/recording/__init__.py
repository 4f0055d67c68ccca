"""What a process tells of itself while it runs: its step and phase, and the programs it compiles."""
