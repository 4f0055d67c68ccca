"""What is known of a run, of its hosts and of its processes."""
