"""The half of hostmesh that runs on your machine: from a list of hosts to a verdict."""
