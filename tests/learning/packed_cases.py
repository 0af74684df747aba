"""Small models for packed rows."""

from collections.abc import Callable

import torch
from transformers import (
    AutoModelForCausalLM,
    Gemma3TextConfig,
    GemmaConfig,
    LlamaConfig,
    MistralConfig,
    PreTrainedConfig,
    PreTrainedModel,
    Qwen2Config,
    Qwen2MoeConfig,
    Qwen3Config,
)

SHAPE = dict(
    vocab_size=64,
    hidden_size=32,
    intermediate_size=48,
    num_hidden_layers=2,
    num_attention_heads=4,
    num_key_value_heads=2,
    initializer_range=0.2,
    bos_token_id=None,
    eos_token_id=None,
    pad_token_id=None,
)
EXPERTS = dict(
    num_experts=4,
    num_local_experts=4,
    num_experts_per_tok=2,
    moe_intermediate_size=16,
    shared_expert_intermediate_size=16,
)
MODELS: dict[str, Callable[[], PreTrainedConfig]] = {
    "llama": lambda: LlamaConfig(**SHAPE, tie_word_embeddings=False),
    "llama, tied": lambda: LlamaConfig(**SHAPE, tie_word_embeddings=True),
    "one kv head": lambda: LlamaConfig(**SHAPE | {"num_key_value_heads": 1}),
    "qwen2": lambda: Qwen2Config(**SHAPE),
    "qwen2, half with a window": lambda: Qwen2Config(
        **SHAPE, use_sliding_window=True, sliding_window=6, max_window_layers=1
    ),
    "qwen2 with experts, no window": lambda: Qwen2MoeConfig(**SHAPE | EXPERTS),
    "qwen3": lambda: Qwen3Config(**SHAPE, head_dim=8),
    "gemma": lambda: GemmaConfig(**SHAPE, head_dim=8),
    "gemma3": lambda: Gemma3TextConfig(
        **SHAPE, head_dim=8, sliding_window=6, layer_types=["sliding_attention", "full_attention"]
    ),
    "mistral, long window": lambda: MistralConfig(**SHAPE, sliding_window=19),
    "mistral, short window": lambda: MistralConfig(**SHAPE, sliding_window=6),
}


def make_model(name: str) -> PreTrainedModel:
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(MODELS[name]()).eval()
    for parameter_name, parameter in model.named_parameters():  # biases and norms start as constants
        if parameter.ndim == 1:
            torch.nn.init.normal_(parameter, mean=float("norm" in parameter_name), std=0.2)
    return model
