"""Commands: one file per word of the command line, each with `register(app)`."""
