"""The report page: whole, offline, and the same numbers as the answer."""

from __future__ import annotations

import json
from dataclasses import replace
from html.parser import HTMLParser
from typing import Any

import pytest

from meshwright.base.errors import ExportError
from meshwright.base.units import format_bytes
from meshwright.core.result import Alternative, Answer, Objective, Result
from meshwright.writers import report_html


class _Page(HTMLParser):
    """Collects scripts, attributes that would load something, and whether every element that must be closed is."""

    def __init__(self) -> None:
        super().__init__()
        self.scripts: list[str] = []
        self.loads: list[str] = []
        self._inside = False

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self._inside = tag == "script"
        if self._inside:
            self.scripts.append("")
        self.loads += [f"{tag} {name}={value}" for name, value in attrs if name in ("src", "href", "action", "data")]

    def handle_endtag(self, tag: str) -> None:
        self._inside = self._inside and tag != "script"

    def handle_data(self, data: str) -> None:
        if self._inside:
            self.scripts[-1] += data


def _read(page: str) -> tuple[_Page, dict[str, Any]]:
    parser = _Page()
    parser.feed(page)
    data: dict[str, Any] = json.loads(parser.scripts[0])
    return parser, data


def test_the_page_holds_every_stage_and_the_simulated_step(planned: Result) -> None:
    _, data = _read(report_html.page(planned))
    assert planned.timeline is not None
    assert data["step"] == planned.timeline.step_seconds
    assert [row[0] for row in data["stages"]] == [str(i) for i in range(len(planned.plan.stages))]
    assert len(data["memory"]) == len(planned.plan.ranks())
    assert [entry["peak"] for entry in data["memory"]] == list(planned.timeline.peak_bytes)


def test_every_task_of_the_timeline_is_drawn(planned: Result) -> None:
    _, data = _read(report_html.page(planned))
    assert planned.timeline is not None
    drawn = data["timeline"]
    assert len(drawn["start"]) == int((planned.timeline.rank >= 0).sum())
    assert all(start <= end <= data["step"] * (1 + 1e-6) for start, end in zip(drawn["start"], drawn["end"], strict=True))
    assert {len(drawn[name]) for name in ("rank", "stage", "microbatch", "phase", "start", "end")} == {len(drawn["start"])}


def test_every_device_of_the_cluster_is_drawn_once(planned: Result) -> None:
    _, data = _read(report_html.page(planned))
    cells = [item for item in data["cluster"]["picture"]["items"] if item[6] >= 0]
    assert sorted(item[6] for item in cells) == [0, 1, 2, 3]
    runs = [run for rank in data["cluster"]["ranks"] for run in rank["devices"]]
    listed = [first + k * step for first, count, step in runs for k in range(count)]
    assert listed == [device for devices in planned.plan.ranks() for device in devices]


def test_the_busiest_links_are_listed_with_what_they_carry_those_alike_in_one_row(planned: Result) -> None:
    _, data = _read(report_html.page(planned))
    timeline, cluster = planned.timeline, planned.problem.cluster
    assert timeline is not None and cluster is not None
    (busiest, most), rows = timeline.link_busy_ratio[0], data["cluster"]["busiest"]
    assert rows[0][3] == f"{most:.2%}"
    assert rows[0][2] == format_bytes(float(timeline.link_bytes[busiest]))
    alike = [1 + int(row[0].rpartition(" and ")[2].split()[0]) if " and " in row[0] else 1 for row in rows]
    assert len(rows) <= 5
    assert sum(alike) <= int((timeline.link_bytes > 0.0).sum())
    shares = [float(row[3].rstrip("%")) for row in rows]
    assert shares == sorted(shares, reverse=True)


def test_the_stages_show_the_axes_that_are_used(planned: Result) -> None:
    _, data = _read(report_html.page(planned))
    assert data["axes"] == ["data", "tensor"]
    stages = tuple(
        replace(stage, strategy=replace(stage.strategy, data=1, context=stage.strategy.data)) for stage in planned.plan.stages
    )
    asked = replace(planned, answer=replace(planned.answer, plan=replace(planned.plan, stages=stages)))
    _, data = _read(report_html.page(asked))
    assert data["axes"] == (
        ["data", "context", "tensor"] if any(s.strategy.context > 1 for s in stages) else ["data", "tensor"]
    )
    assert all(len(row) == len(data["axes"]) + 6 for row in data["stages"])


@pytest.mark.parametrize("devices", [(0,), (3, 1, 2), (0, 1, 2, 3, 8, 9, 10), (7, 5, 3, 1, 0), (0, 4, 8, 1, 5, 9), (2, 9)])
def test_ids_come_back_from_their_runs(devices: tuple[int, ...]) -> None:
    assert [first + k * step for first, count, step in report_html._runs(devices) for k in range(count)] == list(devices)


@pytest.mark.parametrize(
    ("devices", "runs"),
    [((), []), ((5,), [[5, 1, 1]]), ((0, 1, 2), [[0, 3, 1]]), ((0, 4, 8, 12, 1), [[0, 4, 4], [1, 1, 1]]),
     ((9, 7, 5, 0, 1), [[9, 3, -2], [0, 2, 1]])],
)  # fmt: skip
def test_ids_in_even_steps_are_one_run(devices: tuple[int, ...], runs: list[list[int]]) -> None:
    assert report_html._runs(devices) == runs


def test_the_page_loads_nothing(planned: Result) -> None:
    page = report_html.page(planned)
    parser, _ = _read(page)
    assert parser.loads == [] and len(parser.scripts) == 2
    assert "http://" not in page and "https://" not in page and "import(" not in page and "fetch(" not in page


def test_a_closing_tag_in_a_name_does_not_end_the_script(planned: Result) -> None:
    name = '<!--<script>x</script><script>alert("1")</script>'
    model_spec = replace(planned.problem.model_spec, name=name)
    hostile = replace(planned, problem=replace(planned.problem, model_spec=model_spec))
    page = report_html.page(hostile)
    parser, data = _read(page)
    assert len(parser.scripts) == 2
    assert "<!--<script" not in page  # after which browsers would not see the next closing tag
    assert data["title"].startswith(name)


def test_what_would_help_and_the_runners_up_are_on_the_page(planned: Result) -> None:
    _, data = _read(report_html.page(planned, [["twice the memory", "1 s", "+3.0%", "data 4"]]))
    assert data["what_if"] == [["twice the memory", "1 s", "+3.0%", "data 4"]]
    assert len(data["alternatives"]) == len(planned.answer.alternatives)


def test_runners_up_are_compared_in_the_unit_of_the_objective(planned: Result) -> None:
    # seconds per sample: the answer at 2, a runner-up at 3, whatever the step takes
    other = Alternative(planned.plan, Objective("simulated_seconds_per_sample", 3.0), "slower")
    answer = replace(planned.answer, objective=Objective("simulated_seconds_per_sample", 2.0), alternatives=(other,))
    _, data = _read(report_html.page(replace(planned, answer=answer)))
    assert [row[1:3] for row in data["alternatives"]] == [["3", "+50.00%"]]


def test_an_answer_without_a_plan_is_refused(planned: Result) -> None:
    with pytest.raises(ExportError, match="needs a plan"):
        report_html.page(replace(planned, answer=Answer(None, missing_bytes=1.0)))
    with pytest.raises(ExportError, match="simulated"):
        report_html.page(replace(planned, timeline=None))


def test_where_there_are_too_many_tasks_every_so_many_th_rank_is_drawn(
    planned: Result, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert planned.timeline is not None
    n_tasks = int((planned.timeline.rank >= 0).sum())
    monkeypatch.setattr(report_html, "_MOST_SPANS", n_tasks // 2)
    drawn = _read(report_html.page(planned))[1]["timeline"]
    assert drawn["every"] == 2 + n_tasks % 2
    assert set(drawn["rank"]) == set(range(0, len(planned.timeline.peak_bytes), drawn["every"]))
