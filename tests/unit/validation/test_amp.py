"""AMP's set: its forms of bounds and names, and runs of which it can be argued that they fit a 16 GB card or do not."""

from __future__ import annotations

import pytest

from meshwright.base.errors import InputError
from meshwright.validation import Point, Skipped, amp


def _row(
    model: str = "gpt2", experiment: str = "homogeneous", bounds: str = "", real: str = "inf", **degrees: int
) -> dict[str, str]:
    cells = {"gbs": 32, "tp": 1, "dp": 4, "pp": 4, "mbs": 1} | degrees
    return {"experiment": experiment, "model": model, "layer_bounds": bounds, "amp_pred_s": "1", "real_s": real} | {
        name: str(value) for name, value in cells.items()
    }  # fmt: skip


def _fits(**cells: object) -> bool:
    (point,) = amp.points([_row(**cells)])  # type: ignore[arg-type]
    assert isinstance(point, Point), point
    return point.fits


def test_what_cannot_fit_sixteen_gigabytes_does_not() -> None:
    # 1.56 billion weights in one device: 20 bytes each are 31 GB before any activation
    assert not _fits(model="gpt2XL", dp=16, pp=1)
    # half of them, and 24 layers' activations of a sample: 15.6 GB and 24 x 232 MB
    assert not _fits(model="gpt2-xl", dp=8, pp=2)
    # 357 million weights, and of two samples 24 layers of 120 MB each and 53.5 million logits of 14 bytes: 7.1 + 5.7 + 1.5 GB,
    # and 2 GiB
    assert not _fits(dp=16, pp=1, mbs=2)
    # four micro-batches of 8 samples in flight, 6 layers each: 23 GB of activations
    assert not _fits(dp=1, pp=4, tp=1, mbs=16)
    # one device holds a whole batch of activations of its two layers, and its logits: 32 x 52,256 x 1,024 x 14 bytes
    assert not _fits(dp=1, pp=16, mbs=32)


def test_what_fits_with_room_to_spare_fits() -> None:
    assert _fits(tp=4, dp=1, pp=4)
    assert _fits(tp=2, dp=2, pp=4, mbs=2)
    assert _fits(model="gpt2XL", tp=4, dp=1, pp=4)


def test_a_mixed_cluster_is_judged_by_its_smallest_device() -> None:
    plain, mixed = amp.points([_row(dp=4), _row(dp=4, experiment="het_cluster")])
    assert isinstance(plain, Point) and isinstance(mixed, Point)
    assert mixed.fits == plain.fits and mixed.predicted_seconds != plain.predicted_seconds


@pytest.mark.parametrize("text", ["inf", "Infinity", "OOM", "failed"])
def test_a_run_that_failed_is_no_time(text: str) -> None:
    (point,) = amp.points([_row(real=text)])
    assert isinstance(point, Point) and not point.ran and point.measured_seconds == float("inf")


@pytest.mark.parametrize(
    ("text", "layers"),
    [
        ("", ()),
        ("[0, 9, 15, 21, 31]", (6, 6, 6, 6)),
        ("0-9-15-21-31", (6, 6, 6, 6)),
        ("tensor([0., 9., 15., 21., 31.])", (6, 6, 6, 6)),
        ("9|15|21|31", (6, 6, 6, 6)),
        ("0 5 10 16 24", (5, 5, 6, 8)),
        ("5,5,6,8", (5, 5, 6, 8)),
    ],
)
def test_bounds_are_read_in_every_form(text: str, layers: tuple[int, ...]) -> None:
    assert amp._layers(text, 4, 24) == layers


@pytest.mark.parametrize("text", ["0, 9", "[0, 21, 9, 15, 31]", "1|2|3|4"])
def test_bounds_of_other_stages_are_refused(text: str) -> None:
    with pytest.raises(InputError, match="are not the bounds of 4 stages"):
        amp._layers(text, 4, 24)


def test_a_model_that_is_not_known_is_listed_with_those_that_are() -> None:
    (skipped,) = amp.points([_row(model="TransGAN")])
    assert isinstance(skipped, Skipped) and "gpt2xl" in skipped.reason
