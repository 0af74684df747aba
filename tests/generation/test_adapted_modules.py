"""Which modules engines make ready for adapters."""

from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from asyncgrpo.generation.adapted_modules import PLAIN, adapted_modules


def test_of_a_dense_decoder_the_linear_layers_without_embeddings_and_head(any_tiny_model: Path) -> None:
    assert adapted_modules(str(any_tiny_model)) == PLAIN


@pytest.mark.parametrize("extra", ["model.layers.0.mlp.gate.weight", "model.layers.0.mlp.experts.0.w1.weight"])
def test_of_a_model_with_other_layers_vllm_decides(extra: str, tmp_path: Path) -> None:
    """A name that is left out would not be adapted, and vLLM would not say so."""
    tensors = {"lm_head.weight": (4, 2), "model.layers.0.self_attn.q_proj.weight": (2, 2), "norm.weight": (2,)}
    for names, expected in ((tensors, ("q_proj",)), ({**tensors, extra: (2, 2)}, ())):
        save_file({name: torch.zeros(shape) for name, shape in names.items()}, tmp_path / "model.safetensors")
        assert adapted_modules(str(tmp_path)) == expected


def test_of_a_model_that_is_not_here_vllm_decides() -> None:
    assert adapted_modules("org/model") == ()
