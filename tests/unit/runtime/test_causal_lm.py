"""Hugging Face causal language models: run layer by layer they are the model, and their layers split over a tensor axis."""

from __future__ import annotations

from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="running plans needs PyTorch: pip install 'meshwright[torch]'")
transformers = pytest.importorskip("transformers", reason="needs transformers: pip install 'meshwright[huggingface]'")
pytestmark = pytest.mark.torch

from meshwright.base.errors import InputError  # noqa: E402
from meshwright.runtime.model import causal_lm, routers  # noqa: E402
from meshwright.runtime.model.arguments import arguments_of  # noqa: E402
from meshwright.runtime.model.cut import cut  # noqa: E402
from meshwright.runtime.parallel import shard_equivalence, tensor_parallel  # noqa: E402
from meshwright.runtime.step.stage import StageModule  # noqa: E402

LLAMA_LIKE: dict[str, Any] = {
    "vocab_size": 64, "hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4,
    "num_key_value_heads": 2, "max_position_embeddings": 64, "bos_token_id": 1, "eos_token_id": 2,
}  # fmt: skip
OPT = {"vocab_size": 64, "hidden_size": 32, "ffn_dim": 64, "num_hidden_layers": 2, "num_attention_heads": 4,
       "max_position_embeddings": 64, "dropout": 0.0}  # fmt: skip
GPT = {"vocab_size": 64, "n_embd": 32, "n_layer": 2, "n_head": 4, "bos_token_id": 1, "eos_token_id": 2}
LATENT = {"kv_lora_rank": 16, "qk_rope_head_dim": 4, "qk_nope_head_dim": 8, "v_head_dim": 8, "n_group": 1, "topk_group": 1,
          "n_routed_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 16, "first_k_dense_replace": 1}  # fmt: skip
DRY = {"resid_pdrop": 0.0, "embd_pdrop": 0.0, "attn_pdrop": 0.0}

MODELS: dict[str, tuple[str, dict[str, Any], bool | None]] = {  # configuration, and whether layers split; None where not tried
    "Mistral": ("MistralConfig", LLAMA_LIKE, True),
    "Mixtral": ("MixtralConfig", LLAMA_LIKE | {"num_local_experts": 4}, True),
    "GPT-OSS, sinks": ("GptOssConfig", LLAMA_LIKE | {
        "head_dim": 8, "num_local_experts": 4, "num_experts_per_tok": 2, "sliding_window": 5, "pad_token_id": 0}, True),
    "Qwen 2": ("Qwen2Config", LLAMA_LIKE, True),
    "Qwen 3, norms of heads": ("Qwen3Config", LLAMA_LIKE | {"head_dim": 8}, True),
    "Gemma 2, local layers": ("Gemma2Config", LLAMA_LIKE | {"head_dim": 8, "sliding_window": 8}, True),
    "Phi": ("PhiConfig", LLAMA_LIKE | {"resid_pdrop": 0.0}, True),
    "StableLM, heads by number": ("StableLmConfig", LLAMA_LIKE, True),
    "OPT": ("OPTConfig", OPT | {"word_embed_proj_dim": 32}, True),
    "OPT, word table of another width": ("OPTConfig", OPT | {"word_embed_proj_dim": 16, "do_layer_norm_before": False}, True),
    "DeepSeek-V3": ("DeepseekV3Config", LLAMA_LIKE | {"num_key_value_heads": 4} | LATENT | {"q_lora_rank": 12}, True),
    "DeepSeek-V2": ("DeepseekV2Config", LLAMA_LIKE | {"num_key_value_heads": 4} | LATENT | {"q_lora_rank": None}, True),
    "GPT-2": ("GPT2Config", GPT | DRY, True),
    "Phi-3": ("Phi3Config", LLAMA_LIKE | {"pad_token_id": 0, "resid_pdrop": 0.0}, True),
    "GLM": ("GlmConfig", LLAMA_LIKE | {"head_dim": 8, "pad_token_id": 0}, True),
    "GPT-J, layers return tuples": ("GPTJConfig", GPT | DRY | {"rotary_dim": 4, "n_positions": 64}, True),
    "BLOOM": ("BloomConfig", {"vocab_size": 64, "hidden_size": 32, "n_layer": 2, "n_head": 4}, True),
    "Falcon": ("FalconConfig", {key: LLAMA_LIKE[key] for key in ("vocab_size", "hidden_size", "num_attention_heads")}
               | {"num_hidden_layers": 2, "bos_token_id": 1, "eos_token_id": 2}, True),
    "GPT-NeoX": ("GPTNeoXConfig", {key: value for key, value in LLAMA_LIKE.items() if key != "num_key_value_heads"}, True),
    "RoBERTa, a head of several layers": ("RobertaConfig", {key: LLAMA_LIKE[key] for key in LLAMA_LIKE if key != "eos_token_id"}
                                          | {"is_decoder": True, "hidden_dropout_prob": 0.0, "type_vocab_size": 1,
                                             "attention_probs_dropout_prob": 0.0}, None),
    "Bamba, layers return nothing beside": ("BambaConfig", LLAMA_LIKE | {
        "mamba_n_heads": 8, "mamba_d_head": 8, "mamba_d_state": 4, "mamba_expand": 2, "mamba_chunk_size": 4,
        "attn_layer_indices": [1], "pad_token_id": 0}, None),
}  # fmt: skip


@pytest.mark.parametrize("name", MODELS)
def test_a_model_run_layer_by_layer_is_the_model_and_what_splits_adds_up(name: str) -> None:
    maker, fields, splits = MODELS[name]
    torch.manual_seed(0)
    model = transformers.AutoModelForCausalLM.from_config(getattr(transformers, maker)(**fields)).train()
    tokens = torch.randint(64, (2, 12))
    expected = model(tokens).logits
    weights = set(model.parameters())
    units = causal_lm.cut(model, causal_lm.layer_names(model))
    carried = (tokens,)
    for unit in units:
        carried = unit(*carried)
    assert torch.allclose(carried[0], expected, atol=1e-6)
    assert {weight for unit in units for weight in unit.parameters()} == weights
    assert len({weight for unit in units[1:-1] for weight in unit.parameters()}) < len(weights)
    tp_plan = tensor_parallel.wishes_of(model)
    assert splits is None or bool(tensor_parallel.styles(units[1], tp_plan)) == splits
    if splits:
        shard_equivalence.check_sum(units[1], [value.detach() for value in units[0](tokens)], 2, tp_plan, name)


@pytest.mark.parametrize("name", ["GPT-OSS, sinks", "Gemma 2, local layers"])
def test_layers_that_write_attention_out_work_on_parts_of_a_sequence(name: str) -> None:
    maker, fields, _ = MODELS[name]
    torch.manual_seed(0)
    config = getattr(transformers, maker)(**fields, attn_implementation="eager")
    model = transformers.AutoModelForCausalLM.from_config(config)
    units = causal_lm.cut(model, causal_lm.layer_names(model))
    entering = [value.detach() for value in units[0](torch.randint(64, (2, 8)))]
    for unit in units[1:3]:  # one sees a window, one all
        if name.startswith("GPT-OSS"):
            torch.nn.init.normal_(unit.layer.self_attn.sinks)
        shard_equivalence.check_context(unit, entering, 2, name)
        assert unit.layer.self_attn.config._attn_implementation == "eager", "the layer tried is a copy"


@pytest.mark.parametrize("name", ["Mistral", "Gemma 2, local layers", "OPT", "GPT-2", "GPT-NeoX", "BLOOM"])
def test_masks_and_positions_go_along_and_change_what_the_model_says(name: str) -> None:
    maker, fields, _ = MODELS[name]
    torch.manual_seed(0)
    model = transformers.AutoModelForCausalLM.from_config(getattr(transformers, maker)(**fields)).train()
    tokens, mask = torch.randint(64, (3, 12)), torch.ones(3, 12, dtype=torch.long)
    mask[0, :5] = mask[2, :3] = 0
    packed = torch.cat([torch.arange(5), torch.arange(7)]).expand(3, -1).contiguous()
    given = {"attention_mask": mask, "position_ids": (mask.cumsum(1) - 1).clamp(min=0)}
    cases = [given, {"attention_mask": mask}, {"position_ids": packed}]
    for inputs in cases if name != "BLOOM" else cases[1:2]:  # which has no positions
        model.plan_inputs = ("input_ids", *inputs)
        sample = tuple(value[:1] for value in (tokens, *inputs.values()))
        units = cut(model, causal_lm.layer_names(model), sample)
        for rows in (slice(None), slice(1, 3), slice(0, 2)):  # of one shape, too: what was known of others must not count
            chosen = {key: value[rows] for key, value in inputs.items()}
            expected = model(tokens[rows], **chosen).logits
            carried: Any = (tokens[rows], *chosen.values())
            for unit in units:
                carried = unit(*carried)
            seen = mask[rows].bool()
            assert torch.allclose(carried[0][seen], expected[seen], atol=1e-6), inputs.keys()
        assert (model(tokens).logits - model(tokens, **inputs).logits)[mask.bool()].abs().max() > 1e-3


class Wrapper(torch.nn.Module):
    """What ``peft.get_peft_model`` returns without a ``task_type``: all is handed on."""

    def __init__(self, model: Any) -> None:
        super().__init__()
        self.base_model = model

    def get_base_model(self) -> Any:
        return self.base_model

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        return self.base_model(*args, **kwargs)

    def __getattr__(self, name: str) -> Any:
        try:
            return super().__getattr__(name)
        except AttributeError:
            return getattr(super().__getattr__("base_model"), name)


class AdaptedTable(torch.nn.Module):
    """A word table with an adapter, whose weights lie in a dictionary."""

    def __init__(self, table: Any) -> None:
        super().__init__()
        self.base_layer = table.requires_grad_(False)
        self.lora_A = torch.nn.ParameterDict({"default": torch.randn(4, table.num_embeddings)})
        self.lora_B = torch.nn.ParameterDict({"default": torch.randn(table.embedding_dim, 4)})

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        return self.base_layer(ids) + torch.nn.functional.embedding(ids, self.lora_A["default"].T) @ self.lora_B["default"].T


class Saved(torch.nn.Module):
    """A head that is trained as a copy, beside the one that it replaces."""

    def __init__(self, head: Any) -> None:
        super().__init__()
        self.original_module = head.requires_grad_(False)
        self.modules_to_save = torch.nn.ModuleDict({"default": torch.nn.Linear(head.in_features, head.out_features)})
        self.weight = self.modules_to_save["default"].weight

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        return self.modules_to_save["default"](hidden)


class TaskWrapper(Wrapper):
    """Names some of what it hands on."""

    def forward(self, input_ids: Any = None, task_ids: Any = None, **named: Any) -> Any:
        return super().forward(input_ids, **named)


def test_what_peft_puts_around_a_model_its_table_and_its_head_is_run() -> None:
    torch.manual_seed(0)
    model = transformers.LlamaForCausalLM(transformers.LlamaConfig(**LLAMA_LIKE)).train()
    model.model.embed_tokens, model.lm_head = AdaptedTable(model.model.embed_tokens), Saved(model.lm_head)
    wrapped = Wrapper(model)
    tokens = torch.randint(64, (2, 12))
    expected = wrapped(tokens).logits
    assert causal_lm.recognises(wrapped) and arguments_of(wrapped)[:3] == ["input_ids", "attention_mask", "position_ids"]
    assert causal_lm.further_inputs(wrapped, 2) == ("attention_mask",)
    assert arguments_of(TaskWrapper(model))[:3] == ["input_ids", "task_ids", "attention_mask"]
    carried = (tokens,)
    units = causal_lm.cut(wrapped, causal_lm.layer_names(wrapped))
    for unit in units:
        carried = unit(*carried)
    assert torch.allclose(carried[0], expected, atol=1e-6)
    trained = {name for name, weight in wrapped.named_parameters() if weight.requires_grad}
    held = {weight for unit in units for weight in unit.parameters()}
    assert {name for name, weight in wrapped.named_parameters() if weight in held} >= trained
    assert not any("lora" in name for unit in units[1:] for name, _ in unit.named_parameters())


def test_a_model_that_learns_a_prompt_is_refused_in_one_line() -> None:
    model = transformers.LlamaForCausalLM(transformers.LlamaConfig(**LLAMA_LIKE))
    model.active_peft_config = type("PromptTuningConfig", (), {"is_prompt_learning": True})()
    with pytest.raises(InputError, match=r"^LlamaForCausalLM: learns a prompt, which lengthens sequences; adapters in layers"):
        causal_lm.layer_names(model)


def test_a_model_that_wants_more_of_its_layers_than_hidden_states_is_refused_in_one_line() -> None:
    config = transformers.RwkvConfig(vocab_size=64, hidden_size=32, num_hidden_layers=2, attention_hidden_size=32)
    model = transformers.RwkvForCausalLM(config)
    with pytest.raises(InputError, match=r"^RwkvForCausalLM cannot be cut between its layers: its forward wants more of them"):
        causal_lm.cut(model, ["embed", "layers.0", "layers.1", "head"])


def test_further_inputs_are_named_by_the_model_or_its_forward_and_are_masks_or_positions() -> None:
    model = llama()
    assert causal_lm.further_inputs(model, 2) == ("attention_mask",)
    assert causal_lm.further_inputs(model, 3) == ("attention_mask", "position_ids")
    model.plan_inputs = ("input_ids", "position_ids")
    assert causal_lm.further_inputs(model, 2) == ("position_ids",)
    assert causal_lm.further_inputs(model, 3) == ()
    model.plan_inputs = ("input_ids", "labels")
    assert causal_lm.further_inputs(model, 2) == ()


def llama(**changes: Any) -> Any:
    """Return a small model of the kind that most are."""
    torch.manual_seed(0)
    return transformers.AutoModelForCausalLM.from_config(transformers.LlamaConfig(**LLAMA_LIKE | changes))


def test_masks_are_made_anew_where_several_micro_batches_wait_to_be_recomputed_selectively() -> None:
    torch.manual_seed(0)
    model = llama(num_hidden_layers=2)
    model.plan_inputs = ("input_ids", "position_ids")
    generator = torch.Generator().manual_seed(1)
    batches = [(torch.randint(32, (2, 6), generator=generator), torch.arange(6).roll(shift).expand(2, 6)) for shift in (2, 3)]
    for tokens, positions in batches:
        model(input_ids=tokens, position_ids=positions, use_cache=False).logits.square().mean().backward()
    expected = {name: p.grad.clone() for name, p in model.named_parameters()}
    model.zero_grad()
    stage = StageModule(cut(model, ["embed", "layers.0", "layers.1", "head"], batches[0]), ["selective"] * 4, {})
    results = [stage(*batch)[0].square().mean() for batch in batches]
    for result in results:
        result.backward()
    for name, parameter in model.named_parameters():
        assert torch.allclose(parameter.grad, expected[name], atol=1e-6), name


def test_what_routers_add_is_looked_at_with_the_inputs_by_name() -> None:
    sizes = LLAMA_LIKE | {"num_local_experts": 4, "output_router_logits": True, "router_aux_loss_coef": 0.5, "use_cache": False}
    torch.manual_seed(0)
    model = transformers.MixtralForCausalLM(transformers.MixtralConfig(**sizes)).eval()
    model.plan_inputs = ("input_ids", "position_ids")
    sample = (torch.randint(64, (2, 6)), torch.tensor([0, 1, 2, 0, 1, 2]).expand(2, 6))
    routers.check(model, cut(model, ["embed", "layers.0", "layers.1", "head"], sample), sample, "p")


def test_every_layer_holds_its_own_weights_and_no_others() -> None:
    model = llama()
    units = causal_lm.cut(model, ["embed", "layers.0", "layers.1", "head"])
    names = {id(parameter): name for name, parameter in model.named_parameters()}
    held = [sorted({names[id(parameter)].split(".")[1] for parameter in unit.parameters()}) for unit in units]
    assert held == [["embed_tokens"], ["layers"], ["layers"], ["norm", "weight"]]
    assert all(f"layers.{i}." in names[id(p)] for i in (0, 1) for p in units[1 + i].parameters())
    assert model.training and model.config.use_cache is False
    assert causal_lm.recognises(model) and not causal_lm.recognises(model.model) and not causal_lm.recognises(torch.nn.ReLU())
    assert causal_lm.layer_names(model) == ["embed", "layers.0", "layers.1", "head"]


def test_a_plan_of_other_layers_and_models_that_cannot_be_cut_are_refused() -> None:
    model = llama()
    told = "LlamaForCausalLM: has 2 layers between word table and head, but the plan has 3; is this the plan of another model"
    with pytest.raises(InputError, match=told):
        causal_lm.cut(model, ["embed", "layers.0", "layers.1", "layers.2", "head"])
    model.config.num_hidden_layers = 3
    with pytest.raises(InputError, match="LlamaForCausalLM: its 3 layers are in no list, so it cannot be cut"):
        causal_lm.cut(model, ["embed", "head"])


def test_a_layer_gets_the_positions_of_its_part_of_a_sequence() -> None:
    """Two halves of a sequence, without attention between tokens: a mask of one's own would be all that differs."""
    whole = torch.arange(24.0).view(1, 8, 3)
    assert torch.equal(causal_lm._own(whole, 8, 0, 2), whole[:, [0, 1, 6, 7]])
    assert torch.equal(causal_lm._own(whole, 8, 1, 2), whole[:, [2, 3, 4, 5]])
    assert causal_lm._own(whole, 6, 0, 2) is whole and causal_lm._own("word", 8, 0, 2) == "word"
    line = torch.arange(8)
    assert causal_lm._own(line, 8, 1, 2).tolist() == [2, 3, 4, 5]
    mask = torch.zeros(1, 1, 8, 8)
    assert causal_lm._own(mask, 8, 0, 2) is mask and causal_lm._own(torch.zeros(()), 8, 0, 2).dim() == 0
    units = causal_lm.cut(llama(), ["embed", "layers.0", "layers.1", "head"])
    layer, hidden = units[1], torch.randn(2, 4, 32)
    assert (layer.n_parts, layer.positions) == (1, (0, 1))
    plain = layer.context[0].of(0, hidden, 1)[1]
    longer = layer.context[0].of(0, hidden, 2)[1]
    assert plain["position_embeddings"][0].shape[-2] == 4 and longer["position_embeddings"][0].shape[-2] == 8
    assert layer.context[0].of(0, hidden, 2)[1] is longer and len(layer.context[0].known) == 2
    layer.n_parts, layer.positions = 2, (1, 2)
    given: list[Any] = []
    layer.layer.register_forward_pre_hook(
        lambda _, args, named: given.append(named["position_embeddings"][0]), with_kwargs=True
    )
    layer(hidden)
    assert torch.equal(given[0], longer["position_embeddings"][0][..., [2, 3, 4, 5], :])
    layer.n_parts, layer.positions = 1, (0, 1)
    layer(hidden)
    assert torch.equal(given[1], plain["position_embeddings"][0])
