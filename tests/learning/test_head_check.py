"""Models whose logits are more than their head's answer, however small a sample of them is, and those that are not."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import (
    AutoModelForCausalLM,
    CohereConfig,
    Gemma2Config,
    Gemma3TextConfig,
    GraniteConfig,
    Llama4TextConfig,
    LlamaConfig,
    LlamaForCausalLM,
    NanoChatConfig,
    OPTConfig,
    PreTrainedConfig,
    PreTrainedModel,
    RecurrentGemmaConfig,
)
from transformers.modeling_outputs import CausalLMOutputWithPast

from asyncgrpo.errors import LearnerError
from asyncgrpo.learning.head_check import check_head

CPU = torch.device("cpu")
SHAPE = {
    "vocab_size": 64,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "bos_token_id": None,
    "eos_token_id": None,
    "pad_token_id": None,
}
CAPPED: dict[str, tuple[PreTrainedConfig, str]] = {
    "gemma2": (Gemma2Config(**SHAPE, head_dim=8), "final_logit_softcapping=30.0"),
    "gemma3_text": (
        Gemma3TextConfig(**SHAPE, head_dim=8, final_logit_softcapping=30.0),
        "final_logit_softcapping=30.0",
    ),
    "recurrent_gemma": (RecurrentGemmaConfig(**SHAPE, lru_width=32), "logits_soft_cap=30.0"),
    "nanochat": (NanoChatConfig(**SHAPE), "final_logit_softcapping=15.0"),
    "cohere": (CohereConfig(**SHAPE, logit_scale=0.95), "logit_scale=0.95"),
    "granite": (GraniteConfig(**SHAPE, logits_scaling=1.05), "logits_scaling=1.05"),
}


def make_model(config: PreTrainedConfig) -> PreTrainedModel:
    """As initialised: its logits are small, so that a cap changes next to nothing."""
    torch.manual_seed(0)
    return AutoModelForCausalLM.from_config(config).eval()


@pytest.mark.parametrize("name", CAPPED)
def test_what_the_config_says_is_named(name: str) -> None:
    config, said = CAPPED[name]
    with pytest.raises(LearnerError, match=f"its config.json has {said}. Models that scale or cap"):
        check_head(make_model(config), CPU)


class Bent(LlamaForCausalLM):
    """Does something of its own, of which its config says nothing, before its head and after it."""

    def __init__(self, before: Callable[[Tensor], Tensor], after: Callable[[Tensor], Tensor]) -> None:
        super().__init__(LlamaConfig(**SHAPE))
        self.lm_head.register_forward_pre_hook(lambda _, inputs: (before(inputs[0]),))
        self.after = after
        self.eval()

    def forward(self, *arguments: Any, **keywords: Any) -> CausalLMOutputWithPast:
        output = super().forward(*arguments, **keywords)
        return replace(output, logits=self.after(output.logits))


def same(values: Tensor) -> Tensor:
    return values


@pytest.mark.parametrize(
    ("before", "after", "said"),
    [
        (same, lambda logits: 30.0 * torch.tanh(logits / 30.0), "what it makes of its head's logits"),
        (same, lambda logits: 1.0001 * logits, "what it makes of its head's logits"),
        (same, lambda logits: logits[:, -1:], r"it makes logits \(1, 1, 64\) of hidden states \(1, 4, 32\)"),
        (lambda hidden: 1.01 * hidden, same, r"are not its last ones, by 0\.01 of their length"),
    ],
    ids=["cap", "scale", "last only", "scale before"],
)
@pytest.mark.parametrize("size", [0.02, 1.0])
def test_what_the_config_does_not_say_is_found(
    before: Callable[[Tensor], Tensor], after: Callable[[Tensor], Tensor], said: str, size: float
) -> None:
    torch.manual_seed(0)
    model = Bent(before, after)
    with torch.no_grad():
        model.lm_head.weight.normal_(std=size)
    with pytest.raises(LearnerError, match=said):
        check_head(model, CPU)


@pytest.mark.parametrize(
    "config",
    [
        LlamaConfig(**SHAPE),
        Gemma3TextConfig(**SHAPE, head_dim=8),
        CohereConfig(**SHAPE, logit_scale=1.0),
        GraniteConfig(**SHAPE, logits_scaling=1),
        OPTConfig(vocab_size=64, hidden_size=32, ffn_dim=48, num_hidden_layers=2, num_attention_heads=4),
    ],
    ids=lambda config: config.model_type,
)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("logits", [1.0, 20.0])
def test_plain_heads_pass_whatever_the_size_of_their_logits(
    config: PreTrainedConfig, dtype: torch.dtype, logits: float
) -> None:
    model = make_model(config)
    with torch.no_grad():
        model.get_output_embeddings().weight.normal_(std=logits / 32**0.5)
    check_head(model.to(dtype), CPU)


def test_a_model_whose_base_shows_no_hidden_states_is_named() -> None:
    config = Llama4TextConfig(**SHAPE, head_dim=8, intermediate_size_mlp=48, num_local_experts=2)
    with pytest.raises(LearnerError, match=r"Llama4ForCausalLM is not supported: its base model \(Llama4ForCausalLM\)"):
        check_head(make_model(config), CPU)
