"""What the page on costs says of seven papers on whose runs no constant and no interval rests (`papers/README.md`)."""

from __future__ import annotations

import pathlib
import re
from functools import cache

from meshwright import validation
from meshwright.core import interval
from meshwright.validation import Point, Report
from meshwright.validation._points import fitted

HERE = pathlib.Path(__file__).resolve().parent
PAGE = HERE.parents[1] / "docs" / "explanation" / "costs.md"
PAPERS = {
    "MegaScale": "MegaScale", "MT-NLG": "MT-NLG", "Llama 3 405B": "Llama 3", "Nemotron-4 340B": "Nemotron-4",
    "DeepSeek-V3": "DeepSeek-V3", "GPT-NeoX-20B": "GPT-NeoX", "GLM-130B": "GLM",
}  # fmt: skip


@cache
def found() -> Report:
    return validation.validate(HERE / "papers" / "runs.csv")


def errors(points: list[Point]) -> tuple[str, str]:
    """Return the mean error and the mean deviation of predicted steps, as the page writes them."""
    off = [point.planned_seconds / point.measured_seconds - 1.0 for point in points]
    return f"{100 * sum(map(abs, off)) / len(off):.1f} %", f"{100 * sum(off) / len(off):+.1f} %"


def test_the_page_states_the_error_of_each_paper() -> None:
    text = PAGE.read_text().partition("## On seven papers that nothing is fitted to\n")[2].partition("\n## ")[0]
    rows = {
        cells[0].strip(): [cell.strip() for cell in cells[1:]]
        for cells in (line.strip("|").split("|") for line in text.splitlines())
    }
    points = found().points
    assert len(points) == 19 and not found().skipped
    for name, begin in PAPERS.items():
        own = [point for point in points if point.group.startswith(begin)]
        assert own, name
        assert [rows[name][0], *rows[name][-2:]] == [str(len(own)), *errors(own)], name
    new = [point for point in points if point.group.startswith(("Llama 3", "Nemotron-4", "DeepSeek-V3", "GLM"))]
    assert [rows["the four not looked at before"][0], *rows["the four not looked at before"][-2:]] == [
        str(len(new)),
        *errors(new),
    ]
    assert rows["all"][0] == str(len(points)) and tuple(rows["all"][-2:]) == errors(points)
    inside = re.search(r"(\d+) of the 19 lie in their interval", " ".join(text.split()))
    known = interval.factors()
    ends = [(point, interval.around(point.planned_seconds, point.kind, known)) for point in points if point.kind]
    assert len(ends) == 19
    assert inside and int(inside[1]) == sum(
        own.low_seconds <= point.measured_seconds <= own.high_seconds for point, own in ends
    )
    ratios = sorted(point.measured_seconds / point.planned_seconds - 1.0 for point in points)
    readme = " ".join((PAGE.parents[2] / "README.md").read_text().split())
    assert (
        f"all 19 runs took longer than predicted, {ratios[0]:.0%} to {ratios[-1]:.0%}".replace("%", " %").replace(
            "0 % to", "0 to"
        )
        in readme
    )
    refused = re.search(r"(\w+) of the 19 runs are refused", " ".join(text.split()))
    assert refused and ["none", "one", "two", "three"].index(refused[1].lower()) == sum(not point.fits for point in points)


def test_no_constant_is_fitted_to_them() -> None:
    assert not any(fitted("own_runs", point.row, {}) for point in found().points)
