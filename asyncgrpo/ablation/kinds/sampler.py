"""Completions from a second instance of the model, in this process: weights of any version in, samples out.

Invariant: what is sampled depends on weights, prompts and the uniform numbers given, each token on the one at its own
place, so that two policies which agree in a distribution draw the same token from it.

Shapes: P prompts of one length, B = P x count rows, T tokens of a completion, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor
from transformers import DynamicCache

from asyncgrpo.config import RunConfig
from asyncgrpo.errors import ConfigError
from asyncgrpo.learning.answering import end_tokens
from asyncgrpo.learning.model import from_pretrained
from asyncgrpo.types import Completion, FinishReason


@dataclass(frozen=True, slots=True, kw_only=True)
class Drawn:
    """One completion before it belongs to a policy version."""

    token_ids: np.ndarray  # [T] int64
    logprobs: np.ndarray  # [T] float32: natural log, temperature applied
    finish_reason: FinishReason

    def of_version(self, version: int) -> Completion:
        return Completion(
            token_ids=self.token_ids,
            behaviour_logprobs=self.logprobs,
            versions=np.full(len(self.token_ids), version),
            finish_reason=self.finish_reason,
            engine="injected",
        )


class Sampler:
    """Samples in float32 with a KV cache. Raises ConfigError for a model that cannot be loaded.

    Completions end as on engines: with an end token, which belongs to them, or after as many tokens as are allowed.
    """

    def __init__(self, config: RunConfig, tokenizer: Any) -> None:
        self._model = from_pretrained(config).float().eval().requires_grad_(False)
        self._own = dict(self._model.state_dict(keep_vars=True))
        ends = end_tokens(self._model, tokenizer, config)
        self._ends = torch.tensor(ends, dtype=torch.long)

    @torch.no_grad()
    def load(self, weights: Mapping[str, Tensor]) -> None:
        """Take over the weights that a learner exports (`Learner.exported`). Raises ConfigError for other names."""
        for name, tensor in weights.items():
            if name not in self._own:
                raise ConfigError(
                    f"the kind `injected` cannot sample from this model: its checkpoint has {name}, which the model "
                    "itself calls otherwise; study it with kind: asynchronous"
                )
            self._own[name].copy_(tensor)

    def complete(
        self, prompts: Sequence[Sequence[int]], uniform_PCT: np.ndarray | None, temperature: float, longest: int
    ) -> list[list[Drawn]]:
        """Completions of each prompt.

        Args:
            uniform_PCT: numbers in [0, 1), for C completions of each prompt. None: one, greedily; its log-probabilities
                are those at temperature 1.
        """
        drawn: list[list[Drawn]] = [[] for _ in prompts]
        for length in sorted({len(prompt) for prompt in prompts}):
            places = [place for place, prompt in enumerate(prompts) if len(prompt) == length]
            tokens = torch.tensor([list(prompts[place]) for place in places])
            uniform = None if uniform_PCT is None else torch.from_numpy(uniform_PCT[places])
            for place, found in zip(places, self._same_length(tokens, uniform, temperature, longest), strict=True):
                drawn[place] = found
        return drawn

    @torch.inference_mode()
    def _same_length(
        self, prompts: Tensor, uniform_PCT: Tensor | None, temperature: float, longest: int
    ) -> list[list[Drawn]]:
        count = 1 if uniform_PCT is None else uniform_PCT.shape[1]
        uniform_BT = None if uniform_PCT is None else uniform_PCT.flatten(0, 1)
        cache = DynamicCache()
        logits_BV = self._last_logits(prompts, cache).repeat_interleave(count, dim=0)
        if count > 1:
            cache.batch_repeat_interleave(count)
        chosen, logprobs = [], []
        over_B = torch.zeros(len(logits_BV), dtype=torch.bool)
        for place in range(longest):
            log_p_BV = torch.log_softmax(logits_BV.float() / (1.0 if uniform_BT is None else temperature), dim=-1)
            token_B = log_p_BV.argmax(dim=-1) if uniform_BT is None else _drawn(log_p_BV, uniform_BT[:, place])
            chosen.append(token_B)
            logprobs.append(log_p_BV.gather(1, token_B[:, None])[:, 0])
            over_B |= torch.isin(token_B, self._ends)
            if place + 1 == longest or bool(over_B.all()):
                break
            logits_BV = self._last_logits(token_B[:, None], cache)
        return self._cut(torch.stack(chosen, dim=1).numpy(), torch.stack(logprobs, dim=1).numpy(), count)

    def _last_logits(self, tokens: Tensor, cache: DynamicCache) -> Tensor:
        logits: Tensor = self._model(input_ids=tokens, past_key_values=cache, use_cache=True, logits_to_keep=1).logits
        return logits[:, -1]

    def _cut(self, token_BT: np.ndarray, logprob_BT: np.ndarray, count: int) -> list[list[Drawn]]:
        """Each row up to its end token, `count` rows for each prompt."""
        is_end_BT = np.isin(token_BT, self._ends.numpy())
        ended_B = np.asarray(is_end_BT.any(axis=1))
        length_B = np.where(ended_B, is_end_BT.argmax(axis=1) + 1, token_BT.shape[1])
        rows = [
            Drawn(token_ids=tokens[:length], logprobs=values[:length], finish_reason="stop" if ended else "length")
            for tokens, values, length, ended in zip(token_BT, logprob_BT, length_B, ended_B, strict=True)
        ]
        return [rows[start : start + count] for start in range(0, len(rows), count)]


def _drawn(log_p_BV: Tensor, uniform_B: Tensor) -> Tensor:
    """The token in whose share of [0, 1) the number lies. Double precision: shares of unlikely tokens are small."""
    upper_BV = log_p_BV.double().exp().cumsum(dim=-1)
    return (upper_BV <= uniform_B[:, None] * upper_BV[:, -1:]).sum(dim=-1)
