"""Published planners and our own, a package each; none imports another."""
