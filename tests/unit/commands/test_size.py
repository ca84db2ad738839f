"""``size`` and ``plan --mtbf`` on the command line: a verdict, one JSON object, a page; exit 3 with the nearest, exit 2."""

from __future__ import annotations

import html.parser
import json
import pathlib
from typing import TYPE_CHECKING

import pytest

from meshwright.api.sizes import size_search
from meshwright.sizing.points import NOT_PLANNED

if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    Run = Callable[..., Any]

TINY = pathlib.Path(__file__).resolve().parents[2] / "data" / "tiny_llama.json"

WORDS = [
    "size",
    str(TINY),
    "--tokens",
    "10B",
    "--kinds",
    "h100,l4",
    "--devices",
    "8,16",
    "--global-batch",
    "64",
    "--jobs",
    "1",
]


class _Balance(html.parser.HTMLParser):
    """Keeps open tags; those that close others are noted."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.wrong: list[str] = []

    def handle_starttag(self, tag: str, attrs: object) -> None:
        if tag not in ("meta", "line", "circle", "polyline", "i"):
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        if tag not in ("meta", "line", "circle", "polyline", "i") and (not self.open or self.open.pop() != tag):
            self.wrong.append(tag)


def test_a_verdict_the_front_and_where_the_money_goes(meshwright: Run, tmp_path: pathlib.Path) -> None:
    done = meshwright(*WORDS, "--out", "page.html")
    assert done.code == 0 and not done.err
    lines = done.out.splitlines()
    assert lines[1].startswith("Quickest: dgx-h100:16 in ") and "recomputation" in done.out and "left out: g6-l4" in done.out
    assert max(map(len, lines)) <= 118
    page = (tmp_path / "page.html").read_text()
    balance = _Balance()
    balance.feed(page)
    assert not balance.wrong and not balance.open and "__" not in page.split("</style>")[1]
    assert "<svg" in page and "dgx-h100:16" in page and "CoreWeave" in page and "http://" not in page and "<script" not in page


def test_json_is_one_object_and_the_same_for_any_number_of_workers(meshwright: Run) -> None:
    one, two = (meshwright(*WORDS[:-1], jobs, "--json").json for jobs in ("1", "2"))
    assert one.pop("planning_seconds") > 0 < two.pop("planning_seconds")
    assert json.dumps(one) == json.dumps(two)
    assert one["format"] == "meshwright/size/1" and one["feasible"] is True
    point = one["front"][0]
    assert point["cluster"] == "dgx-h100:16" and point["plan"]["format"] == "meshwright/plan/1" and point["currency"] == "USD"
    assert {"days", "days_interval", "money", "kwh", "goodput_ratio"} <= set(point)


def test_a_time_limit_stops_each_size_and_the_answer_says_so(meshwright: Run) -> None:
    done = meshwright(*WORDS, "--time-limit", "1ms", "--json")
    assert done.code == 0
    (said,) = [note for note in done.json["notes"] if "time was up" in note]
    assert said == "time was up for 4 sizes, whose best plan so far counts: dgx-h100:16, dgx-h100:8, g6-l4:16, g6-l4:8"
    assert not [note for note in meshwright(*WORDS, "--json").json["notes"] if "time was up" in note]


def test_ctrl_c_keeps_the_sizes_that_were_planned(meshwright: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    planned, n_left = size_search._planned, 1

    def pressed(*question: Any) -> Any:
        nonlocal n_left
        n_left -= 1
        if n_left < 0:
            raise KeyboardInterrupt
        return planned(*question)

    monkeypatch.setattr(size_search, "_planned", pressed)
    done = meshwright(*WORDS, "--json")
    assert done.code == 0 and "stopped" in done.err and done.json["complete"] is False
    assert len(done.json["front"]) == 1 and "3 sizes were not planned" in done.json["notes"][-1]
    assert [entry["reason"] for entry in done.json["left_out"]] == [NOT_PLANNED] * 3
    n_left = 3  # in the second kind: what the first had is kept
    done = meshwright(*WORDS, "--within", "1s", "--json")
    assert done.code == 3 and done.json["complete"]
    n_left = 1
    done = meshwright(*WORDS, "--within", "35min")
    assert done.code == 3 and "Stopped before anything within the limits was planned." in done.out
    n_left = 0
    assert meshwright(*WORDS).code == 130


def test_nothing_within_the_limits_is_an_answer(meshwright: Run, tmp_path: pathlib.Path) -> None:
    done = meshwright(*WORDS, "--within", "1min", "--out", "page.html")
    assert done.code == 3 and "Nothing is within the limits. Nearest of those planned: dgx-h100:16" in done.out
    assert "dgx-h100:16" in (tmp_path / "page.html").read_text()
    entry = meshwright(*WORDS, "--within", "1min", "--json")
    assert entry.code == 3 and entry.json["feasible"] is False and entry.json["nearest"]["cluster"] == "dgx-h100:16"


@pytest.mark.parametrize(
    "words",
    [
        ["--tokens", "many"],
        ["--within", "30"],
        ["--budget", "3 €"],
        ["--kinds", "h1"],
        ["--devices", "x"],
        ["--price", "b200=3"],
        ["--power", "h100=x"],
        ["--pue", "0.1"],
        ["--mtbf", "soon"],
        ["--restart", "0s"],
        ["--storage", "3 GB"],
        ["--checkpoint", "no"],
        ["--spares", "1"],
        ["--repair", "x"],
        ["--replan", "1min"],
        ["--pricing", "spot"],
        ["--backend", "x"],
        ["--set", "foo=1"],
        ["--for", "nothing"],
        ["--out", "no/where.html"],
        ["--precision", "fp3"],
        ["--global-batch", "-1"],
        ["--sequence-length", "-1"],
    ],
    ids=lambda words: words[0],
)
def test_nonsense_is_refused_in_one_line(meshwright: Run, words: list[str]) -> None:
    rest = {WORDS[i]: WORDS[i + 1] for i in range(2, len(WORDS), 2)} | {words[0]: words[1]}
    done = meshwright("size", str(TINY), *(word for pair in rest.items() for word in pair))
    assert (done.code, done.out) == (2, "") and done.err.startswith("meshwright: ") and len(done.err.splitlines()) == 1
    assert words[0] in done.err or words[1].partition("=")[0] in done.err


def test_a_plan_under_failures(meshwright: Run) -> None:
    words = ["plan", str(TINY), "--cluster", "dgx-h100:16", "--global-batch", "16", "--no-what-if", "--top", "0"]
    done = meshwright(*words, "--mtbf", "480h", "--out", "plan.json")
    assert done.code == 0 and "effective step" in done.out and "interrupted every 30 h" in done.out
    entry = json.loads(pathlib.Path("plan.json").read_text())
    assert entry["effective_step_seconds"] == pytest.approx(entry["step_seconds"] / entry["goodput"]["effective_ratio"])
    assert entry["goodput"]["mtbf_seconds"] == pytest.approx(480 * 3600 / 16)
    again = meshwright("simulate", "plan.json")
    assert again.code == 0 and not again.err
    assert "goodput" not in meshwright(*words, "--json").json
    assert "nothing fails" in meshwright(*words, "--mtbf", "none").out
    wrong = meshwright(*words, "--mtbf", "500")
    assert wrong.code == 2 and wrong.err.startswith("meshwright: --mtbf 500: is no time") and len(wrong.err.splitlines()) == 1
