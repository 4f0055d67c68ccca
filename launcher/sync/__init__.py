"""The code that travels to the hosts."""
