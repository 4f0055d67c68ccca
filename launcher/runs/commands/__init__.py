"""One file a command about a run: attach, exec, logs, runs, stacks, status, stop."""
