"""Generated topologies: one file each, `build(params, name) -> Cluster`."""
