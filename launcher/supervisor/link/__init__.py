"""The launcher's end of its agents: what goes to them, what comes from them, and whether they are still there."""
