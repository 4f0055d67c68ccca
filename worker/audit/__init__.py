"""Which records a process has handed to its training loop: counted where they are read, told as it goes, recounted."""
