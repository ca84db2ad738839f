"""Commands: one file per word of the command line.

Promises of a command module, checked by ``tests/contract/test_commands.py``:

* ``register(app)`` adds one command, called like the file, to a ``typer.Typer``; the help explains it and each of its options;
* wrong words end in one line on stderr and exit code 2, with nothing on stdout; importing the module loads nothing heavy.

A command returns its exit code. Commands of other packages may have any names but ours.
"""
