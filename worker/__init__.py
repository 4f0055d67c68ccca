"""The half of hostmesh that runs inside each process. Scripts use the names of `hostmesh` itself (src/hostmesh)."""
