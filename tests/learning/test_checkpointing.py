"""Checkpointing saves memory and changes nothing else, whatever dropout a model comes with."""

import pytest
import torch
from torch import Tensor
from transformers import (
    AutoModelForCausalLM,
    LlamaConfig,
    OPTConfig,
    PreTrainedConfig,
    PreTrainedModel,
    XGLMConfig,
)

from asyncgrpo.errors import ConfigError
from asyncgrpo.learning.checkpointing import checkpoint_layers

IDS = torch.arange(1, 9)[None]
CONFIGS = {
    "llama": LlamaConfig(
        vocab_size=64,
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=2,
        num_attention_heads=4,
        attention_dropout=0.5,
    ),
    "opt": OPTConfig(
        vocab_size=64, hidden_size=32, ffn_dim=48, num_hidden_layers=2, num_attention_heads=4, word_embed_proj_dim=32
    ),
    "xglm": XGLMConfig(vocab_size=64, d_model=32, ffn_dim=48, num_layers=2, attention_heads=4),
}
"""OPT and XGLM drop a tenth out by default, in their layers' own code."""


def make_model(config: PreTrainedConfig) -> PreTrainedModel:
    torch.manual_seed(0)
    return AutoModelForCausalLM.from_config(config).eval()


def logits_and_gradients(model: PreTrainedModel) -> list[Tensor]:
    logits = model(input_ids=IDS, use_cache=False).logits
    logits.logsumexp(-1).sum().backward()
    return [logits, *(parameter.grad for parameter in model.parameters())]


@pytest.mark.parametrize("name", CONFIGS)
def test_no_value_and_no_gradient_changes(name: str) -> None:
    expected = logits_and_gradients(make_model(CONFIGS[name]))
    model = make_model(CONFIGS[name])
    checkpoint_layers(model)
    for actual, wanted in zip(logits_and_gradients(model), expected, strict=True):
        assert torch.equal(actual, wanted)


def test_layers_are_computed_again_only_for_a_gradient() -> None:
    model = make_model(CONFIGS["llama"])
    checkpoint_layers(model)
    calls: list[int] = []
    model.model.layers[0].mlp.register_forward_pre_hook(lambda *_: calls.append(1))
    with torch.no_grad():
        model(input_ids=IDS, use_cache=False)
    assert len(calls) == 1
    logits_and_gradients(model)
    assert len(calls) == 3


def test_activations_are_not_kept() -> None:
    def kept(model: PreTrainedModel) -> int:
        sizes: list[int] = []
        with torch.autograd.graph.saved_tensors_hooks(lambda saved: sizes.append(saved.numel()) or saved, lambda x: x):
            model(input_ids=IDS, use_cache=False)
        return sum(sizes)

    plain, checkpointed = make_model(CONFIGS["llama"]), make_model(CONFIGS["llama"])
    checkpoint_layers(checkpointed)
    assert kept(checkpointed) < kept(plain) / 2


def test_an_architecture_without_such_layers_is_refused() -> None:
    model = make_model(CONFIGS["llama"])
    model.supports_gradient_checkpointing = False
    with pytest.raises(ConfigError, match="LlamaForCausalLM does not support it; turn it off"):
        checkpoint_layers(model)
