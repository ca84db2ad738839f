"""The command line: loads the commands, turns errors into one message and an exit code."""

from __future__ import annotations

import gc
import os
import sys
import warnings
from collections.abc import Callable, Sequence
from functools import partial
from io import TextIOWrapper
from itertools import pairwise
from typing import TYPE_CHECKING, Any, TextIO, cast

if TYPE_CHECKING:
    import typer

__all__ = ["main"]

_INTERRUPTED = 130  # what shells report after Ctrl-C; typer answers a keyboard interrupt with it too


def _show_version(asked: bool) -> None:
    """Print the version and end the program, where it was asked for."""
    if asked:
        import typer

        import meshwright

        print(f"meshwright {meshwright.__version__}")
        raise typer.Exit


def _one_line(standard: Callable[..., str], message: Warning | str, category: type[Warning], *place: Any, **line: Any) -> str:
    """Write a warning of ours, of a plug-in for example, as everything else is said here; others as is standard."""
    ours = category.__module__.startswith("meshwright.")
    return f"meshwright: {message}\n" if ours else standard(message, category, *place, **line)


def _add_commands(app: typer.Typer, words: Sequence[str]) -> None:
    """Register commands: of ours the one that is called, or all where none is; then those of other packages, which may be wrong
    and may not replace ours.

    `words`: of the command line.
    """
    from typer.main import get_group

    from meshwright.base import registry
    from meshwright.base.errors import PluginError

    called = words[0] if words else ""
    if called.islower() and registry.home("commands", called) is not None:
        registry.load("commands", called, "command").register(app)
        ours = [name for name in registry.names("commands") if registry.home("commands", name) is not None]
        modules = registry.each("commands", "command", but=ours)
    else:
        ours, modules = [], registry.each("commands", "command")
    for name, module in modules:
        if registry.home("commands", name) is not None:
            module.register(app)
            continue
        apart = type(app)()
        try:
            module.register(apart)
            taken = sorted(set(get_group(apart).commands) & {*get_group(app).commands, *ours})
        except Exception as error:
            title = registry.title("commands", name, "command")
            said = str(error) if isinstance(error, PluginError) else f"{title}: {registry.one_line(error)}"
            registry.warn(f"{said}; it is left out")
            continue
        if taken:
            brought_by = registry.package("commands", name)
            registry.warn(f"command {name} of package {brought_by} is left out: there is a command {taken[0]} already")
            continue
        app.registered_commands += apart.registered_commands
        app.registered_groups += apart.registered_groups


class _Output:
    """Standard output for as long as it takes what is written: the command goes on without, and its files are written.

    `refused`: why it does not, in the system's words; empty where it does, or where its reader has gone, as after ``| head``.
    """

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self.refused = ""

    def write(self, text: str) -> int:
        try:
            return self._stream.write(text)
        except OSError as error:
            self._drop(error)
            return len(text)

    def flush(self) -> None:
        try:
            self._stream.flush()
        except OSError as error:
            self._drop(error)

    def _drop(self, error: OSError) -> None:
        """Let what is still to be written, and what lies in the buffer, go nowhere."""
        if not isinstance(error, BrokenPipeError):
            self.refused = error.strerror or str(error)
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, self._stream.fileno())
        os.close(nowhere)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


def _refuse_empty(words: Sequence[str]) -> None:
    """Refuse an option given without a value (``--cluster "$UNSET"``), which would else count as left out."""
    from meshwright.base.errors import InputError

    own = words[: words.index("--")] if "--" in words else words  # what follows belongs to the user's own script
    for before, word in pairwise(("", *own)):
        option = before if word == "" else word[:-1] if word.endswith("=") else ""
        if option.startswith("--") and "=" not in option:
            raise InputError(f"{option}: its value is empty; give one, or leave the option out")


def _told(written: Sequence[str]) -> str:
    """Say which files a command has written that did not come to its end; what was for itself alone is gone again."""
    left = [path for path in written if os.path.exists(path)]
    return f"written before that: {', '.join(left)}" if left else "nothing was written"


def _said(error: Exception) -> str:
    """Return what a wrong command line is told, and of what is missing what it is."""
    message = str(error.format_message())  # type: ignore[attr-defined]
    meaning = str(getattr(getattr(error, "param", None), "help", None) or "")
    if not message.startswith("Missing ") or not meaning:
        return message
    return f"{message.rstrip('.')}: {meaning.removesuffix('[required]').strip()}"


def _too_little_memory(error: MemoryError, written: Sequence[str]) -> str:
    """Say that the memory of this machine, not of a device of the plan, did not suffice."""
    what = f" ({error})" if str(error) else ""
    return (
        f"this machine has too little memory for what was asked{what}; {_told(written)}; end other programs, raise the limit "
        "of memory (ulimit -v, a container's), or ask for fewer devices or layers"
    )


def main() -> None:
    """Run the command line and exit: 0 done, 2 wrong input or too little memory, 3 nothing fits, 1 a bug of ours.

    Raises `SystemExit`: always.
    """
    import typer

    from meshwright.base import files
    from meshwright.base.errors import MeshwrightError
    from meshwright.base.parsing import Program

    gc.set_threshold(50_000, 20, 100)  # searches make many small objects and few circles: a twentieth of their time went here
    warnings.formatwarning = partial(_one_line, warnings.formatwarning)
    if isinstance(sys.stdout, TextIOWrapper):  # what the encoding lacks is a question mark, no error
        sys.stdout.reconfigure(errors="replace")
    output = None if sys.stdout is None else _Output(sys.stdout)  # none where it was closed before the start
    sys.stdout = cast("TextIO", output)
    app = Program(
        name="meshwright",
        help="Given a model and a cluster: how to split, place and schedule the training, how fast it runs, and whether it "
        "fits.",
        no_args_is_help=True,
        add_completion=False,
        pretty_exceptions_enable=False,
        rich_markup_mode=None,
    )

    @app.callback()
    def _program(
        version: bool = typer.Option(False, "--version", help="Show the version and exit.", callback=_show_version),
    ) -> None:
        """Given a model and a cluster: how to split, place and schedule the training, how fast it runs, and whether it fits."""

    _add_commands(app, sys.argv[1:])
    # BadParameter is a UsageError is a ClickException, whichever package typer takes them from
    usage_error = cast(type[Exception], typer.BadParameter.__mro__[2])
    try:
        with files.written() as written:
            _refuse_empty(sys.argv[1:])
            status = app(standalone_mode=False)
            if output is not None:
                output.flush()
    except usage_error as error:
        message = _said(error)
        print(message if message.startswith("Usage:") or not message else f"meshwright: {message}", file=sys.stderr)
        sys.exit(2)
    except (typer.Abort, KeyboardInterrupt):
        status = _INTERRUPTED
    except MeshwrightError as error:
        print(f"meshwright: {error}", file=sys.stderr)
        sys.exit(2)
    except MemoryError as error:
        print(f"meshwright: {_too_little_memory(error, written)}", file=sys.stderr)
        sys.exit(2)
    if output is not None and output.refused:
        print(f"meshwright: standard output cannot be written: {output.refused}", file=sys.stderr)
        sys.exit(2)
    if status == _INTERRUPTED:
        print(f"meshwright: interrupted; {_told(written)}", file=sys.stderr)
    sys.exit(status if isinstance(status, int) else 0)
