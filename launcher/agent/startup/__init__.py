"""What an agent does before processes start."""
