"""What can be asked of a run that lives: a private socket in its folder, and the supervisor's answers."""
