"""The agent's duties before processes start."""
