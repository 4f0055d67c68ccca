"""The half of hostmesh that runs inside each process. Users import what `hostmesh` itself offers; see src/hostmesh."""
