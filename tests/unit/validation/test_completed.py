"""What a set does not tell of a run's recomputation: as little as fits, said in the row."""

from __future__ import annotations

import dataclasses
import pathlib

import pytest

from meshwright.base.errors import InputError
from meshwright.core.problem import MixedPrecision
from meshwright.core.strategy import Strategy
from meshwright.validation._completed import complete, completed, least_recomputed
from meshwright.validation._runs import Predicted, Run, clusters, fits, gpt, layers_of_stages, predict


def _run(n_layers: int = 24, micro_batch: int = 1, pipeline: int = 2, virtual: int = 2) -> Run:
    graph = gpt("gpt", hidden=2048, layers=n_layers, heads=16, sequence=2048, vocabulary=51200, _attn_implementation="flash")
    return Run(
        graph, clusters()("p3-v100:8"), (Strategy(data=4),), pipeline=pipeline, virtual=virtual,
        micro_batch=micro_batch, global_batch=16 * micro_batch,
        training=MixedPrecision("fp16", gradient_bytes=2, optimizer_bytes=6),
    )  # fmt: skip


def assumed(predicted: Predicted, safe: bool) -> Predicted:
    """Return a prediction of a run that does not tell what it recomputes."""
    own = dataclasses.replace(predicted.planned or predicted, recompute_told=False, safe=safe)
    return own if predicted.planned is None else dataclasses.replace(predicted, planned=own)


def test_nothing_is_recomputed_where_everything_fits() -> None:
    run = _run(8)
    assert least_recomputed(run) == (assumed(predict(run), True), "")
    assert least_recomputed(dataclasses.replace(run, recompute="full")) == (assumed(predict(run), True), "")


@pytest.mark.parametrize(("micro_batch", "whole_layers"), [(2, False), (3, True)])
def test_a_run_that_does_not_fit_recomputes_as_little_as_fits_and_says_so(micro_batch: int, whole_layers: bool) -> None:
    run = _run(micro_batch=micro_batch)
    assert not predict(run).fits
    found, note = least_recomputed(run)
    assert found.fits
    assert "recomputed" in note
    assert predict(run).seconds < found.seconds < predict(dataclasses.replace(run, recompute="full")).seconds
    # by hand: whole layers are dealt to each rank's stages in their order (ranks 0 and 1 have stages 0, 2 and 1, 3 of six
    # layers)
    fitting = []
    for n_full in range(13):  # the quick verdict is that of the whole prediction
        counts = [min(n_full, 6), min(n_full, 6), max(0, n_full - 6), max(0, n_full - 6)]
        ways = tuple(("full",) * count + ("selective",) * (6 - count) for count in counts)
        fitting.append(predict(dataclasses.replace(run, recompute_of_stage=ways)))
        assert fits(dataclasses.replace(run, recompute_of_stage=ways)) is fitting[-1].fits
    # it is a false refusal only if recomputing everything leaves too little room as well
    everything = predict(dataclasses.replace(run, recompute="full"))
    least = next(tried for tried in fitting if tried.fits)
    assert found == assumed(least, (everything.planned or everything).safe)
    assert ("whole layers" in note) == (not fitting[0].fits) == whole_layers


def test_a_run_that_fits_in_no_way_is_predicted_with_nothing_recomputed() -> None:
    run = _run(48, micro_batch=8)
    assert least_recomputed(run) == (assumed(predict(run), False), "")
    assert not predict(run).fits


@pytest.mark.parametrize(("micro_batch", "safe"), [(3, True), (4, False)])
def test_a_run_with_little_room_as_completed_is_safe_where_another_deal_leaves_enough(micro_batch: int, safe: bool) -> None:
    run = dataclasses.replace(_run(28, micro_batch, virtual=1), strategies=(Strategy(data=4),) * 2)
    least = predict(complete(run))
    assert least.fits and not (least.planned or least).safe
    assert completed(run) == assumed(least, safe)


def test_stages_are_as_even_as_can_be_and_the_ends_have_a_layer_less() -> None:
    assert layers_of_stages(_run(24)) == [6, 6, 6, 6]
    assert layers_of_stages(_run(22)) == [5, 6, 6, 5]
    assert layers_of_stages(_run(23)) == [6, 6, 6, 5]
    with pytest.raises(InputError, match="4 stages for 1 layers"):
        layers_of_stages(_run(1))
    with pytest.raises(InputError, match=r"stages of 6\|6 layers do not make the model's 24 in 4 stages"):
        layers_of_stages(dataclasses.replace(_run(), layers_per_stage=(6, 6)))


def test_rows_share_models_and_built_in_clusters_but_files_are_read_again(tmp_path: pathlib.Path) -> None:
    assert _run(8).graph is _run(8).graph and _run(8).graph is not _run(9).graph
    assert clusters()("p3-v100:8") is clusters()("p3-v100:8")
    path = tmp_path / "mine.yaml"
    head = "format: meshwright/cluster/1\nname: mine\nsource: test\nlaunch: 25 us\nnodes:\n"
    sizes = []
    for devices in ("a100-sxm-80gb", "a100-sxm-80gb, a100-sxm-80gb"):
        switch = "switch: {bandwidth: 10 GB/s, latency: 3 us}"
        path.write_text(f"{head}  - {{name: n, count: 1, devices: [{devices}], {switch}}}\n")
        sizes.append(clusters()(str(path)).n_devices)
    assert sizes == [1, 2]
