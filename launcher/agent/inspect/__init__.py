"""Facts about a host, for the launcher to judge."""
