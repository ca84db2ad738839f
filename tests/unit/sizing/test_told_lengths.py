"""Lengths of documents: read, drawn, packed; steps made of them."""

import pathlib

import numpy as np
import pytest

from meshwright.base.errors import InputError
from meshwright.sizing import batching
from meshwright.sizing.lengths import LONGEST, drawn_pieces, lengths, mean_packed_pairs, mean_piece, packed_pairs


def test_files_of_each_kind_hold_the_same(tmp_path: pathlib.Path) -> None:
    contents = {
        "lines.txt": "7\n\n  12\n3\n", "list.json": "[7, 12, 3]",
        "lines.jsonl": '{"length": 7}\n{"length": 12}\n{"length": 3}\n'
    }  # fmt: skip
    for name, content in contents.items():
        (tmp_path / name).write_text(content)
        assert lengths(str(tmp_path / name)).held.tolist() == [7, 12, 3], name


@pytest.mark.parametrize(
    ("content", "said"),
    [("5\nsix\n", "line 2: 'six'"), ("5\n0\n", "line 2: '0'"), ("-3\n", "line 1: '-3'"), ("1.5\n", "line 1: '1.5'"),
     ("[5, true]", "entry 1: 'True'"), ('{"size": 3}\n', "line 1: has no field"), ('{"length"\n', "line 1: is not valid"),
     ("\n\n", "holds no lengths"), ("[]", "holds no lengths"),
     ("99999999999999999999\n", "line 1"), ("[5, ", "not valid JSON")],
)  # fmt: skip
def test_nonsense_in_a_file_is_refused_with_its_line(content: str, said: str, tmp_path: pathlib.Path) -> None:
    (tmp_path / "held").write_text(content)
    with pytest.raises(InputError, match="held") as error:
        lengths(str(tmp_path / "held"))
    assert said in str(error.value)


@pytest.mark.parametrize(
    "told", ["", "nowhere.txt", "lognormal:2k", "lognormal:0,1", "lognormal:2k,-1", "lognormal:2k,x", "lognormal:2k,nan",
             "lognormal:,1", "lognormal:2k,1,1", "normal:2k,1"],
)  # fmt: skip
def test_nonsense_after_the_option_is_refused(told: str) -> None:
    with pytest.raises(InputError, match="--lengths"):
        lengths(told)


def test_a_distribution_has_its_median_and_its_spread() -> None:
    held = lengths("lognormal:2k,0.7").documents()
    assert np.median(held) == pytest.approx(2048, rel=1e-3)
    assert np.std(np.log(held)) == pytest.approx(0.7, rel=1e-3)
    assert set(lengths("lognormal:300,0").documents()) == {300}
    drawn = lengths("lognormal:2k,0.7").drawn(1 << 16, np.random.default_rng(3))
    assert np.mean(drawn) == pytest.approx(held.mean(), rel=0.02)


@pytest.mark.parametrize("sigma", [0.3, 1.0, 3.0, 5.0])
def test_the_mean_of_a_distribution_is_its_own_with_all_of_its_tail(sigma: float) -> None:
    """The mean of a log-normal distribution is exp(mu + sigma^2 / 2), here up to 10^9 tokens, summed on a fine grid."""
    normal = np.linspace(-12.0, 12.0 + sigma, 1_000_001)
    weight = np.exp(-(normal**2) / 2.0)
    expected = float((np.minimum(LONGEST, 2048 * np.exp(sigma * normal)) * weight).sum() / weight.sum())
    assert lengths(f"lognormal:2k,{sigma}").documents().mean() == pytest.approx(expected, rel=1e-3)


def _token_by_token(documents: list[int], size: int) -> list[float]:
    """Count pairs of tokens of one document in every full sample."""
    tokens = [name for name, length in enumerate(documents) for _ in range(length)]
    samples = [tokens[i : i + size] for i in range(0, len(tokens) - size + 1, size)]
    return [sum(a == b for a in sample for b in sample) / size**2 for sample in samples]


@pytest.mark.parametrize("seed", range(20))
def test_packing_is_what_it_is_token_by_token(seed: int) -> None:
    dice = np.random.default_rng(seed)
    documents, size = dice.integers(1, 25, dice.integers(1, 15)), int(dice.integers(2, 20))
    assert packed_pairs(documents, size).tolist() == pytest.approx(_token_by_token(documents.tolist(), size), rel=1e-12)
    endless = packed_pairs(documents[dice.integers(0, len(documents), 1 << 15)], size)
    assert mean_packed_pairs(documents, size) == pytest.approx(endless.mean(), abs=6.0 * endless.std() / len(endless) ** 0.5)
    assert mean_packed_pairs(documents, size) == pytest.approx(mean_packed_pairs(np.tile(documents[::-1], 3), size), rel=1e-12)
    cut = [min(size, length - at) for length in documents for at in range(0, length, size)]
    assert mean_piece(documents, size) == pytest.approx(np.mean(cut))
    drawn = drawn_pieces(documents, size, 4000, dice)
    assert set(drawn) <= set(cut)
    assert drawn.mean() == pytest.approx(np.mean(cut), abs=5.0 * np.std(cut) / 4000**0.5 + 1e-9)


def test_documents_as_long_as_a_sample_leave_nothing_out() -> None:
    assert packed_pairs(np.full(9, 64), 64).tolist() == [1.0] * 9
    assert mean_packed_pairs(np.full(9, 64), 64) == 1.0
    assert mean_packed_pairs(np.full(9, 10**9), 64) == pytest.approx(1.0)
    assert packed_pairs(np.full(9, 32), 64).tolist() == [0.5] * 4


@pytest.mark.parametrize("seed", range(20))
def test_documents_of_one_length_pack_as_their_whole_cycle_does(seed: int) -> None:
    dice = np.random.default_rng(seed)
    length, size = int(dice.integers(1, 40)), int(dice.integers(1, 40))
    cycle = packed_pairs(np.full(size, length), size)  # length x size tokens: cut and boundary meet again
    assert mean_packed_pairs(np.array([length]), size) == pytest.approx(cycle.mean(), rel=1e-12)


def test_lengths_with_a_common_divisor_are_cut_only_there() -> None:
    dice = np.random.default_rng(5)
    held = np.array([512, 1536, 512, 4096])
    endless = packed_pairs(held[dice.integers(0, 4, 1 << 18)], 2048)
    assert mean_packed_pairs(held, 2048) == pytest.approx(endless.mean(), rel=0.005)


def test_the_share_of_pairs_grows_with_the_spread() -> None:
    shares = [mean_packed_pairs(lengths(f"lognormal:500,{sigma}").documents(), 4096) for sigma in (0, 0.5, 1, 1.5, 2)]
    assert shares == sorted(shares)
    assert shares[0] < 500 / 4096 + 1e-9


SHAPE = batching.StepShape(4, 6, 2, 128)


def test_dealing_loses_nothing_and_levels_the_replicas() -> None:
    samples = batching.packed(lengths("lognormal:60,1"), SHAPE, 5, np.random.default_rng(1))
    assert samples.shape == (5, SHAPE.global_batch)
    as_they_come, by_squares = (batching.dealt(samples, SHAPE, sort=sort).pairs for sort in (False, True))
    for drawn in (as_they_come, by_squares):
        assert drawn.shape == (5, 4, 6)
        assert drawn.sum(axis=(1, 2)) * 2 == pytest.approx(samples.sum(axis=1))
    assert as_they_come[3, 1, 2] == pytest.approx(samples[3, [16, 17]].mean())
    worst = [drawn.sum(axis=2).max(axis=1).mean() for drawn in (as_they_come, by_squares)]
    even = by_squares.sum(axis=2).mean()
    assert worst[1] - even < 0.2 * (worst[0] - even)


def test_buckets_put_neighbours_together() -> None:
    drawn = batching.bucketed(lengths("lognormal:60,1").documents(), SHAPE, 5, np.random.default_rng(1))
    assert np.array_equal(drawn.pairs, drawn.tokens**2)
    assert drawn.tokens.max() <= 1.0
    for step in drawn.tokens:
        in_turn = step.T.reshape(-1)  # turn by turn, replica by replica
        assert np.all(np.diff(in_turn) <= 0)
    assert 0.0 < drawn.real_ratio <= drawn.tokens.mean()
    same = batching.bucketed(lengths("lognormal:64,0").documents(), SHAPE, 2, np.random.default_rng(1))
    assert set(same.tokens.flat) == {0.5}
    assert same.real_ratio == 0.5


def test_buckets_cut_long_documents() -> None:
    """Documents of 1.5 samples: pieces of one sample and of half a sample, as often as each other."""
    drawn = batching.bucketed(lengths("lognormal:192,0").documents(), SHAPE, 50, np.random.default_rng(1))
    assert drawn.real_ratio == pytest.approx(0.75, abs=0.02)


@pytest.mark.parametrize("told", ["", "  ", 3, None])
def test_lengths_that_name_nothing_are_refused_as_such(told: str) -> None:
    with pytest.raises(InputError, match=rf"--lengths {told!r}: names nothing"):
        lengths(told)
