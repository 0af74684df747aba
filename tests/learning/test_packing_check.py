"""Faults that a model's code may have with packed rows, and what is found of them."""

import logging
from collections.abc import Callable

import pytest
import torch
from packed_cases import make_model
from torch import Tensor
from transformers import PreTrainedModel

from asyncgrpo.learning.attention.layout import Layout, Tree
from asyncgrpo.learning.packing_check import choose_packing
from asyncgrpo.learning.packing_trial import LONG, Trial

CPU = torch.device("cpu")
GPU_LIKE = Trial(samples=LONG, use_bf16=True, with_gradient=True)


@pytest.mark.parametrize("name", ["llama", "gemma3", "qwen2 with experts, no window"])
def test_the_trial_of_gpus_is_passed_as_well(name: str) -> None:
    assert choose_packing(make_model(name), CPU, GPU_LIKE) == "shared"


def shift_a_position(keywords: dict) -> dict:
    """Of the last completion of the first prompt."""
    start, end = keywords["layout"].trees[0].branches[-1]
    positions = keywords["position_ids"].clone()
    positions[:, start:end] += 1
    return keywords | {"position_ids": positions}


def show_one_token_to_the_others(keywords: dict) -> dict:
    """The first token of the first completion, as if it belonged to the prompt."""
    first, *rest = keywords["layout"].trees
    return keywords | {"layout": Layout((Tree(first.start, first.prompt_end + 1, first.branch_ends), *rest))}


@pytest.mark.parametrize("fault", [shift_a_position, show_one_token_to_the_others])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("trial", [Trial(), GPU_LIKE], ids=["cpu", "gpu-like"])
def test_small_faults_are_noticed(
    fault: Callable[[dict], dict], dtype: torch.dtype, trial: Trial, caplog: pytest.LogCaptureFixture
) -> None:
    def spoil(module: PreTrainedModel, arguments: tuple, keywords: dict) -> tuple | None:
        shared = keywords.get("layout") is not None and len(keywords["layout"].trees[0].branch_ends) > 1
        return (arguments, fault(keywords)) if shared else None

    model = make_model("llama").to(dtype)
    model.base_model.register_forward_pre_hook(spoil, with_kwargs=True)
    with caplog.at_level(logging.WARNING):
        assert choose_packing(model, CPU, trial) == "separate"
    assert "shared: hidden states differ by" in caplog.text


def test_a_wrong_gradient_is_noticed(caplog: pytest.LogCaptureFixture) -> None:
    def halve(module: torch.nn.Module, arguments: tuple, keywords: dict, hidden: Tensor) -> Tensor | None:
        return (hidden + hidden.detach()) / 2 if keywords.get("layout") is not None else None

    model = make_model("llama")
    model.model.layers[0].register_forward_hook(halve, with_kwargs=True)
    with caplog.at_level(logging.WARNING):
        assert choose_packing(model, CPU, Trial(with_gradient=True)) == "padded"
    assert "shared: gradients differ by" in caplog.text
