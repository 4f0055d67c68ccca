"""Data in object stores and behind HTTP: fetched with retries, kept in a cache of bounded size on this host."""
