"""Interchangeable ways to get a two-way byte stream to an agent on a host."""
