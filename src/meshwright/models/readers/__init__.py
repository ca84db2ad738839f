"""Models by name, by configuration, or captured."""
