"""From a string or an object to the system that opens it."""
