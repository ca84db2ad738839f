"""Commands: one file per word of the command line, each with ``register(app)``, which adds the word to the program ``app``.

A command returns its exit code and lets errors pass: `meshwright.cli` says them in one message.
"""
