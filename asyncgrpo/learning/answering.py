"""Completions by transformers, sampled as a run samples them: to try a result, not to train on."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from transformers import GenerationConfig, PreTrainedModel

from asyncgrpo.config import RunConfig
from asyncgrpo.errors import DataError


def place(model: PreTrainedModel) -> None:
    """On a GPU if one is there."""
    if torch.cuda.is_available():
        model.to("cuda")


@torch.inference_mode()
def complete(
    model: PreTrainedModel,
    tokenizer: Any,
    prompt: Sequence[int],
    config: RunConfig,
    count: int = 1,
    streamer: Any = None,
) -> list[list[int]]:
    """Token ids of `count` completions, each up to its end token, as `config.generation` says.

    streamer: is told of tokens as they come; then `count` is 1. Raises DataError for a prompt that is too long.
    """
    _check_room(model, len(prompt), config)
    ends = end_tokens(model, tokenizer, config)
    # The model's own settings would fill in whatever is not said here.
    model.generation_config = GenerationConfig(
        do_sample=True,
        temperature=config.generation.temperature,
        top_k=0,
        top_p=1.0,
        max_new_tokens=config.generation.max_completion_length,
        eos_token_id=ends or None,
        pad_token_id=ends[0] if ends else 0,
    )
    ids = torch.tensor([list(prompt)], device=model.device)
    output = model.generate(
        input_ids=ids, attention_mask=torch.ones_like(ids), num_return_sequences=count, streamer=streamer
    )
    return [_up_to_end(row, ends) for row in output[:, ids.shape[1] :].tolist()]


def _check_room(model: PreTrainedModel, prompt: int, config: RunConfig) -> None:
    """Beyond the positions that a model knows it answers nonsense, or fails in an index."""
    room = getattr(model.config.get_text_config(), "max_position_embeddings", None)
    answer = config.generation.max_completion_length
    if room is not None and prompt + answer > room:
        raise DataError(
            f"the prompt has {prompt} tokens and the model room for {room}, {answer} of them for the answer "
            "(generation.max_completion_length)"
        )


def end_tokens(model: PreTrainedModel, tokenizer: Any, config: RunConfig) -> list[int]:
    """What ends a completion in vLLM: the model's, the tokenizer's and the run's."""
    own = model.generation_config.eos_token_id
    own = [own] if isinstance(own, int) else own or []
    return sorted({*own, *config.generation.stop_token_ids, tokenizer.eos_token_id} - {None})


def _up_to_end(tokens: list[int], ends: Sequence[int]) -> list[int]:
    """Shorter ones of a batch are padded."""
    last = next((place for place, token in enumerate(tokens) if token in ends), len(tokens) - 1)
    return tokens[: last + 1]
