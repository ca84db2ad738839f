"""`python -m meshwright` is the same program as `meshwright`: this is where both start."""

from __future__ import annotations

import sys

__all__ = ["main"]


def main() -> None:
    """Run the command line and exit, with one line where Ctrl-C comes while it still starts.

    Raises `SystemExit`: always.
    """
    try:
        from meshwright import cli

        cli.main()
    except KeyboardInterrupt:
        sys.stderr.write("meshwright: interrupted; nothing was written\n")
        sys.exit(130)  # as `cli` says after Ctrl-C
    finally:
        exec("")  # Python remembers a Ctrl-C that came in text it ran, as of a class being made, and would end by the signal


if __name__ == "__main__":
    main()
