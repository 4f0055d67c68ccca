"""From record ids to rows in the memory of a batch: by one thread, several threads, or data processes."""
