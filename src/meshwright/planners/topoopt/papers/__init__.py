"""TopoOpt's paper: its headline results."""
