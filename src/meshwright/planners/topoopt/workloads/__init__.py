"""TopoOpt's workloads as operators with shapes."""
