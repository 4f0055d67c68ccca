"""What is shipped to a host and owns its processes there; stdlib only, Python 3.9 or newer."""
