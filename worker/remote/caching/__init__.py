"""The cache of fetched data that all processes of a host share."""
