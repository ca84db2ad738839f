"""Document masks: which keys a query sees, and what stays as it is."""

import dataclasses

import pytest

from meshwright import models
from meshwright.base.errors import InputError
from meshwright.clusters import cluster
from meshwright.core.flops import forward_flops
from meshwright.core.graph import Graph, Op, Operator
from meshwright.core.problem import MixedPrecision, ModelSpec
from meshwright.costs.analytic import layer_transfers
from meshwright.costs.analytic.roofline import OperatorSeconds, Shape, operator_seconds
from meshwright.models.documents import has_masked_attention, masked


def _attention_flops(spec):
    return sum(
        forward_flops(part) for op in spec.graph.ops for part in op.body if part.kind in ("attention", "causal_attention")
    )


@pytest.mark.parametrize("name", ["llama-3.1-8b", "bert-large"])
def test_products_of_packed_documents_are_those_of_each_alone(name: str) -> None:
    """Eight documents of 64 tokens in a sample of 512, or eight samples of 64; causal and not."""
    together, alone = models.read(name, sequence_length=512), models.read(name, sequence_length=64)
    assert has_masked_attention(together)
    assert _attention_flops(masked(together, 64 / 512)) == 8 * _attention_flops(alone) > 0


def test_scores_that_are_written_cost_the_same() -> None:
    spec = models.read("gpt2", sequence_length=512, attention="unfused")
    under_mask = masked(spec, 0.125)
    assert not has_masked_attention(spec)
    assert [op.body for op in under_mask.graph.ops] == [op.body for op in spec.graph.ops]
    assert any("not fused" in note for note in under_mask.notes)


def test_nothing_but_keys_changes() -> None:
    spec = models.read("llama-3.1-8b", sequence_length=1024)
    under_mask = masked(spec, 0.25)
    assert masked(spec, 1.0) is spec
    assert under_mask.pairs_ratio == 0.25
    assert under_mask.graph.n_parameters == spec.graph.n_parameters
    for before, after in zip(spec.graph.ops, under_mask.graph.ops, strict=True):
        for one, other in zip(before.body, after.body, strict=True):
            if one.kind == "causal_attention":
                assert (one.size("key_sequence"), other.size("key_sequence")) == (1024, 256)
                dims = tuple((axis, 1024 if axis == "key_sequence" else size) for axis, size in other.dims)
                assert dataclasses.replace(other, dims=dims) == one
            else:
                assert other == one


def test_a_window_keeps_the_fewer_keys() -> None:
    spec = models.read("gemma-2-9b", sequence_length=8192)  # every other layer has a window of 4,096 tokens
    kept = {part.size("key_sequence") for op in spec.graph.ops for part in op.body if part.kind == "attention"}
    assert len(kept) == 1 and 0 < min(kept) < 4096
    for ratio in (0.9, 0.1):
        under_mask = masked(spec, ratio)
        seen = {
            (part.kind, part.size("key_sequence"))
            for op in under_mask.graph.ops for part in op.body if part.kind.endswith("attention")
        }  # fmt: skip
        assert seen == {("attention", min(min(kept), round(ratio * 8192))), ("causal_attention", round(ratio * 8192))}
        assert any("window" in note for note in under_mask.notes)


@pytest.mark.parametrize("ratio", [0.0, -0.1, 1.1, float("nan")])
def test_a_share_out_of_range_is_refused(ratio: float) -> None:
    with pytest.raises(InputError, match="pairs_ratio"):
        masked(models.read("gpt2"), ratio)


def test_two_lengths_a_sample_are_refused() -> None:
    with pytest.raises(InputError, match="encoder and a decoder"):
        masked(models.read("t5-large"), 0.5)


def test_keys_and_values_of_all_documents_are_read_and_go_round() -> None:
    """A mask saves products: a rank of a ring passes on as many bytes, and short documents wait for what is read."""
    spec = models.read("llama-3.1-8b", sequence_length=8192)
    cores = [
        next(part for part in one.graph.ops[1].body if part.kind == "causal_attention")
        for one in (spec, masked(spec, 1 / 8), masked(spec, 1e-9))
    ]
    ring, training, kind = Shape(context=4), MixedPrecision(), cluster("dgx-h100:8").kinds[0]
    no_time = [OperatorSeconds(0.0, 0.0, 0.0)]
    sent = [layer_transfers.transfers((core,), 0, ring, training, no_time) for core in cores]
    assert sent[0] == sent[1] == sent[2] and sent[0][0]
    full, eighth, least = (operator_seconds(core, Shape(), kind, training, "").forward for core in cores)
    assert eighth == pytest.approx(full / 8)
    read = 2 * 8192 * (32 + 8) * (128 + 128)  # queries, keys, values and output in two bytes
    assert least == pytest.approx(read / (kind.memory_bytes_per_second * kind.memory_ratio))


def test_attention_is_fused_where_no_soft_maximum_of_its_own_follows() -> None:
    """In a decoder with cross attention one of the two may be fused: what tells is the soft maximum of the same prefix."""
    core = Operator("self.core", "attention", (("sequence", 8), ("key_sequence", 8), ("heads", 2), ("head", 4), ("value", 4)))
    soft, other = Operator("self.soft", "softmax", (("sequence", 8),)), Operator("cross.soft", "softmax", (("sequence", 8),))
    norm = Operator("self.norm", "norm", (("sequence", 8),))
    for body, fused in (
        ((core,), True),
        ((core, soft), False),
        ((core, other), True),
        ((core, norm, other), True),
        ((soft,), False),
    ):
        spec = ModelSpec("m", "captured_json", "m.json", Graph("m", (Op("one", "layer", body),), (), 8))
        assert has_masked_attention(spec) == fused, body
