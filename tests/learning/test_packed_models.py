"""Log-probabilities and all gradients of packed rows, against plain forwards of one sequence at a time."""

import copy
import dataclasses
import logging
from pathlib import Path

import numpy as np
import pytest
import torch
from learning_cases import make_config, make_group, make_sample
from packed_cases import EXPERTS, MODELS, SHAPE, make_model
from torch import Tensor
from transformers import (
    AutoModelForCausalLM,
    BloomConfig,
    Gemma2Config,
    Lfm2Config,
    PhimoeConfig,
    PreTrainedConfig,
    PreTrainedModel,
    Qwen2MoeConfig,
)

from asyncgrpo.learning.batching import make_batch
from asyncgrpo.learning.microbatch import micro_batches
from asyncgrpo.learning.model import load
from asyncgrpo.learning.packing import Packing
from asyncgrpo.learning.packing_check import choose_packing
from asyncgrpo.learning.packing_trial import Trial
from asyncgrpo.learning.policy import Policy
from asyncgrpo.types import Batch

CPU = torch.device("cpu")
LENGTHS = {(1, 2, 3, 4, 5, 6, 7): (5, 1, 12, 3), (9,): (4, 1), (11, 12, 13): (9,)}
"""Completions of each prompt. The longest sequence has 19 tokens."""


def ragged_batch() -> Batch:
    random = np.random.default_rng(0)
    groups = [
        make_group(index, [make_sample(random.integers(0, 64, length).tolist()) for length in lengths], prompt)
        for index, (prompt, lengths) in enumerate(LENGTHS.items())
    ]
    batch = make_batch(groups, 0, make_config("m"))
    mask = random.random(len(batch.loss_mask)) < 0.7
    mask[[4, 5]] = [False, True]  # the end of the first sample is not trained; the second's only token is
    return dataclasses.replace(batch, loss_mask=mask)


def plain(model: PreTrainedModel, batch: Batch, temperature: float = 1.0) -> list[Tensor]:
    """Log-probabilities of the trained tokens of each sample, through nothing but transformers."""
    prompts = np.split(batch.prompt_tokens, np.cumsum(batch.prompt_lengths)[:-1])
    ends = np.cumsum(batch.completion_lengths)[:-1]
    parts = zip(prompts, np.split(batch.completion_tokens, ends), np.split(batch.loss_mask, ends), strict=True)
    scores = []
    for prompt, completion, mask in parts:
        ids = torch.tensor(np.concatenate([prompt, completion]), dtype=torch.long)
        logits = model(input_ids=ids[None], use_cache=False).logits[0, len(prompt) - 1 : -1]
        logprobs = torch.log_softmax(logits.float() / temperature, dim=-1)
        scores.append(logprobs[torch.arange(len(completion)), ids[len(prompt) :]][torch.from_numpy(mask)])
    return scores


def packed(policy: Policy, batch: Batch, budget: int, packing: Packing) -> list[Tensor]:
    scores: dict[int, Tensor] = {}
    for micro in micro_batches(batch, np.arange(len(batch)), budget, packing, CPU):
        logprobs, _ = policy(*micro.inputs)
        parts = logprobs.split(micro.mask_BT.sum(1).tolist())
        scores |= dict(zip(micro.members_B.tolist(), parts, strict=True))
    return [scores.get(sample, torch.empty(0)) for sample in range(len(batch))]


def gradients(scores: list[Tensor], model: PreTrainedModel) -> dict[str, Tensor]:
    torch.manual_seed(1)
    flat = torch.cat(scores)
    (flat * torch.randn(len(flat))).sum().backward()
    found = {name: parameter.grad for name, parameter in model.named_parameters() if parameter.requires_grad}
    model.zero_grad()
    return found


def check(
    policy: Policy, reference: PreTrainedModel, packing: Packing, budget: int = 1000, tolerance: float = 1e-5
) -> None:
    batch = ragged_batch()
    mine, expected = packed(policy, batch, budget, packing), plain(reference, batch, policy.temperature)
    torch.testing.assert_close(torch.cat(mine), torch.cat(expected), rtol=0, atol=tolerance)
    actual_gradients, expected_gradients = gradients(mine, policy.model), gradients(expected, reference)
    assert actual_gradients.keys() == expected_gradients.keys()
    for name, gradient in expected_gradients.items():
        scale = max(1.0, float(gradient.abs().max()))
        torch.testing.assert_close(actual_gradients[name], gradient, rtol=0, atol=tolerance * scale, msg=name)


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("budget", [1000, 24], ids=["one row", "groups are cut"])
def test_models_share_prompts_exactly(name: str, budget: int) -> None:
    model = make_model(name)
    reference = copy.deepcopy(model)
    assert choose_packing(model, CPU, Trial()) == "shared"
    check(Policy(model, 0.7, use_bf16=False), reference, "shared", budget)


@pytest.mark.parametrize("packing", ["separate", "padded"])
def test_other_packings_are_exact_as_well(packing: Packing) -> None:
    model = make_model("mistral, short window")
    reference = copy.deepcopy(model)
    if packing == "separate":
        choose_packing(model, CPU, Trial())
    check(Policy(model, 1.0, use_bf16=False), reference, packing, budget=40)


@pytest.mark.parametrize(
    "settings",
    [{"training": {"gradient_checkpointing": True}}, {"lora": {"lora_r": 2}}],
    ids=["gradient checkpointing", "lora"],
)
def test_as_the_learner_loads_it(tied_model: Path, settings: dict) -> None:
    loaded = load(make_config(str(tied_model), **settings), CPU)
    plain_way = load(make_config(str(tied_model), model={"attn_implementation": "sdpa"}, **settings), CPU)
    assert (loaded.packing, plain_way.packing) == ("shared", "padded")
    for model in (loaded.model, plain_way.model):
        torch.manual_seed(2)
        for name, parameter in model.named_parameters():
            if "lora_B" in name:  # starts as 0
                torch.nn.init.normal_(parameter, std=0.1)
    check(Policy(loaded.model, 1.0, use_bf16=False), plain_way.model, "shared")


def test_bfloat16_is_as_close_as_bfloat16_is() -> None:
    model = make_model("llama")
    reference = copy.deepcopy(model)
    choose_packing(model, CPU, Trial())
    batch = ragged_batch()
    expected = torch.cat(plain(reference, batch))
    with torch.no_grad():
        mine = torch.cat(packed(Policy(model, 1.0, use_bf16=True), batch, 1000, "shared"))
        with torch.autocast("cpu", dtype=torch.bfloat16):
            theirs = torch.cat(plain(reference, batch))
    assert (mine - expected).abs().mean() < 1.5 * (theirs - expected).abs().mean()


@pytest.mark.parametrize(
    ("config", "reason"),
    [
        (Gemma2Config(**SHAPE, head_dim=8, final_logit_softcapping=None), "Gemma2Attention uses softcap"),
        (
            Qwen2MoeConfig(**SHAPE | EXPERTS, use_sliding_window=True, sliding_window=4096),
            "0 of 1 layers with a sliding window pass it on to their attention",
        ),
        (
            PhimoeConfig(**SHAPE | EXPERTS, sliding_window=4096),
            "0 of 2 layers with a sliding window pass it on to their attention",
        ),
        (Lfm2Config(**SHAPE, layer_types=["conv", "full_attention"]), "it has layers of type conv"),
        (
            BloomConfig(vocab_size=64, hidden_size=32, n_layer=1, n_head=4),
            "transformers has no attention without masks",
        ),
    ],
    ids=["gemma2", "qwen2 with experts", "phimoe", "lfm2", "bloom"],
)
def test_models_that_cannot_be_packed_are_padded_and_say_so_once(
    config: PreTrainedConfig, reason: str, caplog: pytest.LogCaptureFixture
) -> None:
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(config).eval()
    before = model.config._attn_implementation
    reference = copy.deepcopy(model)
    with caplog.at_level(logging.WARNING):
        assert choose_packing(model, CPU, Trial()) == "padded"
    (record,) = [record for record in caplog.records if record.name.startswith("asyncgrpo")]
    assert "samples are padded to the longest" in record.message and reason in record.message
    assert model.config._attn_implementation == before
    check(Policy(model, 1.0, use_bf16=False), reference, "padded")


def test_a_model_that_only_fails_at_shared_prompts_is_packed_without_sharing(caplog: pytest.LogCaptureFixture) -> None:
    def refuse_branches(module: PreTrainedModel, arguments: tuple, keywords: dict) -> None:
        if "layout" in keywords and any(len(tree.branch_ends) > 1 for tree in keywords["layout"].trees):
            raise ValueError("no branches, please")

    model = make_model("llama")
    reference = copy.deepcopy(model)
    model.base_model.register_forward_pre_hook(refuse_branches, with_kwargs=True)
    with caplog.at_level(logging.WARNING):
        assert choose_packing(model, CPU, Trial()) == "separate"
    assert "but each computes its prompt anew (shared: ValueError: no branches, please)" in caplog.text
    check(Policy(model, 1.0, use_bf16=False), reference, "separate")
