"""Compiled programs are kept on each host, so that the next start compiles nothing."""
