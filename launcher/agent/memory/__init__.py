"""Where a host keeps what it knows of processes that were killed for memory."""
