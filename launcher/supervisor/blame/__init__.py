"""Who ended an attempt, and why: from failures to a verdict."""
