"""Programs and helpers that the agent starts: begun, spoken to, found again, ended."""
