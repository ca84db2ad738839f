"""``meshwright bench``: planners compared on one fixed set of problems."""

from __future__ import annotations

from typing import TYPE_CHECKING

import typer

from meshwright.commands import _options

if TYPE_CHECKING:
    from meshwright.suite import BenchProblem
    from meshwright.suite.bench import Planner

__all__ = ["register"]

_DEFAULT_SECONDS = 120.0


def _planners(commands: list[str]) -> list[Planner]:
    """Return the planners that the user's commands are, named by their programs.

    Raises `InputError` when a command is none.
    """
    import os
    import shlex
    from dataclasses import replace

    from meshwright.base.errors import InputError
    from meshwright.suite.bench import Planner, adapter

    found: list[Planner] = []
    for command in commands:
        adapted = adapter(command)
        if adapted is not None:
            found.append(replace(adapted, name=_own_title(adapted.name, found)))
            continue
        try:
            words = shlex.split(command)
        except ValueError as error:
            raise InputError(f"--planner {command}: is no command: {error}") from None
        if not words:
            raise InputError("--planner: is empty; give a command, as in --planner 'python my_planner.py'")
        scripts = [word for word in words if os.path.isfile(word) and not os.access(word, os.X_OK)]
        title = os.path.basename((scripts or words)[0])
        found.append(Planner(_own_title(title, found), tuple(words)))
    return found


def _own_title(title: str, found: list[Planner]) -> str:
    """Return a name that no search of ours has, nor a planner that was named before."""
    from meshwright.base import registry

    title = f"{title} (outside)" if title in registry.names("search") else title
    taken = {one.name for one in found}
    return next(name for n in range(1, len(found) + 2) if (name := f"{title} ({n})" if n > 1 else title) not in taken)


def _searches(text: str) -> list[str] | None:
    """Return the searches asked for; None for those of the suite.

    Raises `InputError` when one stands twice or there is no such search.
    """
    if not text:
        return None
    from meshwright.commands import compare

    return [] if text.strip() == "none" else compare.searches_of(text)


def _listed(asked: tuple[BenchProblem, ...], as_json: bool) -> int:
    """Print problems, running nothing."""
    import json

    from meshwright.suite import questions

    if as_json:
        entries = [{"problem": one.id, "objective": one.objective, "searches": list(one.searches)} for one in asked]
        print(json.dumps({"format": "meshwright/bench_list/1", "suite": questions.VERSION, "problems": entries}))
    else:
        print("\n".join(f"{one.id}  {one.objective}  {','.join(one.searches)}" for one in asked))
    return 0


def register(app: typer.Typer) -> None:
    """Add the command to the program."""

    @app.command()
    def bench(
        searches: str = typer.Option("", metavar="A,B,...", help="Searches of ours; default: those of each family; or none."),
        problems: str = typer.Option(
            "", metavar="SELECT", help="quick (default), full, families or patterns of ids, by commas: piper,'models/llama*'."
        ),
        planner: list[str] = typer.Option(
            [],
            metavar="CMD",
            help="A planner from outside: a command, or calculon:PATH, galvatron:FILE, pase:FOLDER; may be repeated.",
        ),
        time_limit: str = typer.Option("", metavar="T", help="Wall time of each attempt (30s); default: 120 s."),
        out: str = typer.Option("", metavar="FILE", help="Write the table as .html or .json too."),
        list_: bool = typer.Option(False, "--list", help="Show the problems chosen, and run nothing."),
        json_: _options.AsJson = False,
    ) -> int:
        """Ask planners a fixed set of problems, each in a process of its own, and judge their plans alike."""
        import json
        import sys

        import meshwright
        from meshwright.base import files
        from meshwright.base.errors import InputError
        from meshwright.commands import _early
        from meshwright.suite import bench as room
        from meshwright.suite import page, questions, results

        if out and not out.endswith((".html", ".json")):
            raise InputError(f"--out {out}: must end in .html or .json")
        asked = questions.chosen(problems)
        if list_:
            return _listed(asked, json_)
        names, others = _searches(searches), _planners(planner)
        if names == [] and not others:
            raise InputError("--searches none: nobody is left to ask; name a planner: --planner CMD")
        limit_seconds = _early.seconds_of(time_limit) or _DEFAULT_SECONDS
        if out:
            files.check_target(out, "--out")

        def tell(line: str) -> None:
            print(line, file=sys.stderr, flush=True)

        run, interrupted = room.bench(asked, names, others, limit_seconds, tell)
        if interrupted:
            tell(f"meshwright: interrupted after {len(run.questions)} of {run.n_asked} problems; these follow")
        if out.endswith(".json"):
            files.write(out, json.dumps(results.as_json(run)) + "\n")
        elif out:
            words = {"release": f"meshwright {meshwright.__version__}"}
            files.write(
                out,
                page.page(run, words | {one.name: " ".join(one.words[-2:] if one.adapted else one.words) for one in others}),
            )
        print(json.dumps(results.as_json(run)) if json_ else results.table(run))
        return 0
