"""Streams that were sharded before they came here: each process gives the rows that its own devices hold."""
