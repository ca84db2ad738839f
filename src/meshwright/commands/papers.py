"""``meshwright papers``: headline results of the five published systems, repeated."""

from __future__ import annotations

from typing import TYPE_CHECKING

import typer

from meshwright.commands import _options

if TYPE_CHECKING:
    from meshwright.papers import ClaimRepeated, Paper
    from meshwright.published.claims import Case, Claim

__all__ = ["register"]


def _shown(value: float | None) -> str:
    """Return a number in five digits; a dash for none."""
    return "-" if value is None else f"{value:.5g}"


def _table(one: ClaimRepeated) -> list[str]:
    """Return the cases of a claim as lines of columns."""
    from meshwright.published.claims import divided

    rows: list[tuple[str, ...]] = [("", "published", "ours as published", "of it", "ours improved", "best", "bound")]
    notes = list(dict.fromkeys(case.note for case in one.cases if case.note))
    for case in one.cases:
        values = (
            case.claimed_value, case.published_value, divided(case.published_value, case.claimed_value), case.improved_value,
            case.best_value, case.bound_value,
        )  # fmt: skip
        mark = f" [{notes.index(case.note) + 1}]" if case.note else ""
        rows.append((case.name + mark, *map(_shown, values)))
    used = [0, *(i for i in range(1, len(rows[0])) if any(row[i] != "-" for row in rows[1:]))]
    widths = {i: max(len(row[i]) for row in rows) for i in used}
    lines = ["    " + "  ".join(f"{row[i]:{'<' if i == 0 else '>'}{widths[i]}}" for i in used).rstrip() for row in rows]
    return lines + [f"    [{i}] {note}" for i, note in enumerate(notes, 1)]


def _told(one: ClaimRepeated, named: bool) -> list[str]:
    """Return a claim with what is computed of it, or why nothing is, as lines."""
    claim = one.claim
    lines = [f"{claim.id}: {claim.says}", f"    published: {claim.place}; known from: {claim.source}"]
    if claim.reason:
        lines += [f"    {name}: {value:g} {claim.unit}".rstrip() for name, value in claim.values.items()]
        return lines + [f"    not repeated: {claim.reason}", ""]
    if claim.ours:
        lines.append(f"    here: {claim.ours}")
    if not one.cases:
        why = f"takes long; name it: --claim {claim.id}" if claim.by_name and not named and one.complete else "stopped before"
        return lines + [f"    not computed: {why}", ""]
    better = "more is better" if claim.higher_is_better else "less is better"
    part = "" if one.complete else "; stopped before its other cases"
    return [*lines, f"    in {claim.unit}; {better}; took {one.cpu_seconds:.1f} CPU s{part}", *_table(one), ""]


def _repeated(paper: Paper, claims: tuple[Claim, ...], named: bool) -> tuple[tuple[ClaimRepeated, ...], bool]:
    """Compute claims with a line of progress for each case; also return whether Ctrl-C or a limit of time ended it."""
    import sys
    import time

    from meshwright import papers
    from meshwright.report.progress import progress

    done: list[papers.ClaimRepeated] = []
    cases: list[Case] = []
    started = time.process_time()

    def tell(case: Case) -> None:
        cases.append(case)
        print(f"{paper.name} {claim.id}: {case.name}", file=sys.stderr, flush=True)

    try:
        for claim in claims:
            if claim.by_name and not named:
                done.append(papers.ClaimRepeated(claim))
                continue
            cases.clear()
            started = time.process_time()
            with progress(f"papers {paper.name}: {claim.id}"):
                done.append(papers.repeat(paper, claim, tell))
    except KeyboardInterrupt as stopped:
        from meshwright.commands import _early

        seconds = time.process_time() - started
        left = [papers.ClaimRepeated(claims[len(done)], tuple(cases), seconds, False)]
        left += [papers.ClaimRepeated(claim, complete=False) for claim in claims[len(done) + 1 :]]
        names = [one.claim.id + " (in part)" * bool(one.cases) for one in left if not one.claim.reason]
        print(f"meshwright: {_early.ended_by(stopped)}; not computed: {', '.join(names)}", file=sys.stderr)
        return (*done, *left), True
    return tuple(done), False


def _listed(as_json: bool) -> int:
    """Print the papers and their claims, computing nothing."""
    import json

    from meshwright import papers

    known = [papers.read(name) for name in papers.names()]
    if as_json:
        entries = [
            {
                "paper": paper.name, "title": paper.title, "reference": paper.reference,
                "claims": [
                    {"id": claim.id, "says": claim.says, "by_name": claim.by_name, "reason": claim.reason or None}
                    for claim in paper.claims
                ],
            }
            for paper in known
        ]  # fmt: skip
        print(json.dumps({"format": "meshwright/papers_list/1", "papers": entries}))
        return 0
    for paper in known:
        print(f"{paper.name}: {paper.title} ({paper.reference})")
        for claim in paper.claims:
            mark = " (not repeated here)" if claim.reason else " (computed where named)" if claim.by_name else ""
            print(f"  {claim.id}: {claim.says}{mark}")
        print()
    return 0


def register(app: typer.Typer) -> None:
    """Add the command to the program."""

    @app.command()
    def papers(
        name: str = typer.Argument("", help="pase, piper, dapple, parmesan or topoopt; without one, all are listed."),
        claim: str = typer.Option("", help="One claim by its id, also one that takes long."),
        time_limit: str = typer.Option("", metavar="T", help="Stop then (5min); claims computed until then are shown."),
        json_: _options.AsJson = False,
    ) -> int:
        """Repeat the headline results of a published system: the claim, what ours gives, and what is proven."""
        import json

        from meshwright import papers as room
        from meshwright.base.errors import InputError
        from meshwright.commands import _early

        if not name:
            if claim:
                raise InputError(f"--claim {claim}: say of which paper, as in 'meshwright papers piper --claim figure-1'")
            return _listed(json_)
        paper = room.read(name)
        claims = room.chosen(paper, claim)
        with _early.limited(time_limit):
            done, interrupted = _repeated(paper, claims, bool(claim))
        if json_:
            print(json.dumps(room.as_json(paper, done) | {"complete": not interrupted}))
        else:
            lines = [f"{paper.title} ({paper.reference})", ""]
            for one in done:
                lines += _told(one, bool(claim))
            print("\n".join(lines).rstrip())
        return 0
