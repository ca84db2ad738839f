"""``meshwright compile``: compile the kernels once, so that later runs start at once."""

from __future__ import annotations

import typer

__all__ = ["register"]


def register(app: typer.Typer) -> None:
    """Add the command to the program."""

    @app.command(name="compile")
    def compile_() -> int:
        """Compile every kernel for the types it is used with, showing progress, and keep the result for later runs."""
        import importlib
        import sys
        import time

        from meshwright import api
        from meshwright.base import registry

        groups = registry.beside("precompile")
        started = time.perf_counter()
        print(f"compiling {len(groups)} groups of kernels (once; kept for later runs)", file=sys.stderr, flush=True)
        for i, (name, path) in enumerate(groups.items(), 1):
            importlib.import_module(path).run(api.plan)
            elapsed = time.perf_counter() - started
            print(f"  [{i}/{len(groups)}] {name}: {elapsed:.1f} s", file=sys.stderr, flush=True)
        return 0
