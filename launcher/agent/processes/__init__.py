"""The processes that an agent owns, from their order to the last line of their output."""
