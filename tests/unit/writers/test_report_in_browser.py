"""The report page in a real browser: no errors, nothing clipped, on screen and on paper, usable by keyboard."""

from __future__ import annotations

import json
import pathlib
import re
import shutil
import subprocess
from typing import Any

import pytest

from meshwright import api
from meshwright.core.problem import Batch
from meshwright.core.result import Result
from meshwright.writers import report_html

BROWSER = next((path for name in ("chromium", "chromium-browser", "google-chrome") if (path := shutil.which(name))), None)
pytestmark = pytest.mark.skipif(BROWSER is None, reason="no Chromium: apt-get install chromium")

HERE = pathlib.Path(__file__).parent
WATCH, PROBE = (
    (HERE / f"report_{name}.html").read_text() for name in ("watch", "probe")
)  # before and after the page's own script


def opened(result: Result, folder: pathlib.Path, width: int = 1280) -> dict[str, Any]:
    """Open the page of a result and return what is seen there."""
    path = folder / "report.html"
    changes = [["twice the memory", "1 s", "+3.0%", "data 4"], ["half of it", "2 s", "-50%", "data 1"]]
    page = report_html.page(result, changes).replace("<head>", "<head>" + WATCH).replace("</body>", PROBE + "</body>")
    if width < 500:  # Chromium's windows are no narrower: a frame is
        framed = page.replace("&", "&amp;").replace('"', "&quot;")
        after = "document.body.append(document.querySelector('iframe').contentDocument.getElementById('found').cloneNode(true))"
        frame = f"<iframe style='width:{width}px;height:3000px;border:0' srcdoc=\"{framed}\"></iframe>"
        page = f"<!doctype html><body>{frame}<script>addEventListener('load', () => {{ {after}; }})</script></body>"
    path.write_text(page, encoding="utf-8")
    assert BROWSER is not None
    words = [
        BROWSER,
        "--headless",
        "--no-sandbox",
        "--disable-gpu",
        "--disable-quic",
        "--no-first-run",
        f"--window-size={width},900",
    ]
    words += [f"--user-data-dir={folder / 'profile'}", "--virtual-time-budget=2000", "--dump-dom", path.as_uri()]
    done = subprocess.run(words, capture_output=True, text=True, timeout=120)
    written = re.search(r'<pre id="found">(.*?)</pre>', done.stdout, re.S)
    assert written, done.stderr[-2000:]
    found: dict[str, Any] = json.loads(written[1].replace("&gt;", ">").replace("&lt;", "<").replace("&amp;", "&"))
    return found


@pytest.fixture(scope="module")
def long_pipeline() -> Result:
    """A plan of many micro-batches, of which the beginning is shown first."""
    settings = {"pipeline": "4", "micro_batch": "1", "data": "2"}
    return api.plan("gpt2", "dgx-h100:16", batch=Batch(512), settings=settings)


@pytest.mark.parametrize("width", [1280, 700])
def test_nothing_fails_and_nothing_is_clipped(long_pipeline: Result, width: int, tmp_path: pathlib.Path) -> None:
    found = opened(long_pipeline, tmp_path, width)
    assert found["wrong"] == [] and found["clipped"] == [] and found["drawn"] == [True] * 3
    assert found["named"], "a picture, button or field has no name that is read out"
    assert found["cutOnPaper"] == [] and found["paperInk"] == found["ink"] != found["darkInk"]


def test_on_a_phone_nothing_is_wider_than_the_screen(long_pipeline: Result, tmp_path: pathlib.Path) -> None:
    found = opened(long_pipeline, tmp_path, 360)
    assert found["width"] == 360 and found["sideways"] == found["clipped"] == found["wrong"] == []


def test_it_opens_where_something_happens_and_keys_move_about(long_pipeline: Result, tmp_path: pathlib.Path) -> None:
    found, timeline = opened(long_pipeline, tmp_path), long_pipeline.timeline
    assert timeline is not None
    step = timeline.step_seconds
    assert found["first"][0] == 0.0 and 0.0 < found["first"][1] < 0.6 * step
    assert found["whole"] == [0.0, step] and found["again"] == found["first"]
    length = found["first"][1]
    assert found["last"] == pytest.approx([step - length, step])
    assert found["back"] == pytest.approx([step - 1.2 * length, step - 0.2 * length])
    assert found["closer"][1] - found["closer"][0] == pytest.approx(0.6 * length)


def test_it_says_how_long_so_many_tokens_take_and_what_they_cost(long_pipeline: Result, tmp_path: pathlib.Path) -> None:
    found, timeline = opened(long_pipeline, tmp_path), long_pipeline.timeline
    assert timeline is not None
    length, n_devices = long_pipeline.problem.graph.sequence_length, long_pipeline.plan.n_devices
    seconds = 2e9 / (512 * length) * timeline.step_seconds
    hours = round(seconds / 3600 * n_devices)
    assert f"{hours:,} device-hours" in found["until"] and "price" not in found["until"]
    assert float(found["until"].split()[0]) == pytest.approx(seconds / 86400, rel=1e-3)
    assert "at that price" in found["money"] and "a number" in found["nonsense"]


def test_a_short_step_is_shown_whole(planned: Result, tmp_path: pathlib.Path) -> None:
    assert planned.timeline is not None
    assert opened(planned, tmp_path)["first"] == [0.0, planned.timeline.step_seconds]
