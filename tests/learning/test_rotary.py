import logging

import pytest
import torch
from transformers import Gemma3TextConfig, LlamaConfig, LlamaForCausalLM, Phi3Config, PreTrainedConfig

from asyncgrpo.learning.rotary import shared_frequencies, warn_of_shared_frequencies

SHAPE = dict(vocab_size=64, hidden_size=16, intermediate_size=16, num_hidden_layers=1, num_attention_heads=2)
FACTORS = {"short_factor": [1.0] * 4, "long_factor": [4.0] * 4}
SHORT = dict(pad_token_id=None, max_position_embeddings=32, original_max_position_embeddings=8)


@pytest.mark.parametrize(
    ("config", "limit"),
    [
        (LlamaConfig(**SHAPE), None),
        (LlamaConfig(**SHAPE, rope_parameters={"rope_type": "linear", "rope_theta": 1e4, "factor": 2.0}), None),
        (
            LlamaConfig(
                **SHAPE,
                max_position_embeddings=8,
                rope_parameters={"rope_type": "dynamic", "rope_theta": 1e4, "factor": 2.0},
            ),
            8,
        ),
        (Phi3Config(**SHAPE, **SHORT, rope_parameters={"rope_type": "longrope", "rope_theta": 1e4, **FACTORS}), 8),
        (Gemma3TextConfig(), None),
    ],
    ids=["default", "linear", "dynamic", "longrope", "by layer type"],
)
def test_which_models_share_frequencies(config: PreTrainedConfig, limit: int | None) -> None:
    assert shared_frequencies(config) == limit


@pytest.mark.parametrize(("longest", "warns"), [(8, False), (9, True), (None, True)])
def test_a_warning_where_sequences_can_be_long_enough(
    longest: int | None, warns: bool, caplog: pytest.LogCaptureFixture
) -> None:
    rope = {"rope_type": "dynamic", "rope_theta": 1e4, "factor": 2.0}
    config = LlamaConfig(**SHAPE, max_position_embeddings=8, rope_parameters=rope)
    with caplog.at_level(logging.WARNING):
        warn_of_shared_frequencies(config, longest)
    assert ("once that has over 8 tokens" in caplog.text) == warns


@pytest.mark.parametrize(("longest", "same"), [(8, True), (9, False)])
def test_transformers_does_share_them(longest: int, same: bool) -> None:
    rope = {"rope_type": "dynamic", "rope_theta": 1e4, "factor": 4.0}
    torch.manual_seed(0)
    config = LlamaConfig(**SHAPE, initializer_range=1.0, max_position_embeddings=8, rope_parameters=rope)
    model = LlamaForCausalLM(config).eval()
    ids_BL = torch.randint(0, 64, (2, longest))
    with torch.no_grad():
        alone = model(input_ids=ids_BL[:1, :5]).logits[0]
        beside = model(input_ids=ids_BL).logits[0, :5]
    assert torch.allclose(alone, beside, atol=1e-4) == same
