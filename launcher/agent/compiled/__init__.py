"""The agent's part in carrying compiled programs between hosts."""
