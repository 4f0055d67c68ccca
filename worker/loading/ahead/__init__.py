"""Batches are made ahead of their use: read, moved to devices, handed over, and waited for."""
