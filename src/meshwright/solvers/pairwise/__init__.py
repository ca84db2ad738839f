"""One label per node, costs on nodes and edges: the problem behind operator sharding."""
