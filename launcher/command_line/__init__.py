"""The options of `launch`, and their completion in a shell."""
