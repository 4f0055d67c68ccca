"""What a host is like."""
