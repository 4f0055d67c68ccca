"""The host's end of code sync."""
