"""A policy that is nothing but probabilities: H independent bits, right where they are 1, and a reward for enough of
them. What objectives make of stale data shows undisturbed: no network, no optimiser state shared, an exact score.

Every seed is a policy of its own; all of them are one array, and what one draws never depends on another.

Shapes: S seeds, N samples of each in a step, B = S x N, H bits.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor
from torch.nn import Parameter
from torch.nn.functional import logsigmoid

from asyncgrpo.ablation.kinds.settings import BitsSection
from asyncgrpo.ablation.randomness import Purpose, random_of
from asyncgrpo.config import RunConfig
from asyncgrpo.errors import ConfigError
from asyncgrpo.learning.advantages import sum_then_normalize
from asyncgrpo.learning.objectives.aggregation import aggregate
from asyncgrpo.learning.objectives.build import build_objective
from asyncgrpo.learning.objectives.metrics import Counts
from asyncgrpo.learning.objectives.tokens import Tokens
from asyncgrpo.learning.optimiser import build_optimiser, build_schedule


@dataclass(frozen=True, slots=True, kw_only=True)
class BitStep:
    rewards_S: np.ndarray
    """Means of the step's samples."""
    gradient_norm_S: np.ndarray
    counts: Counts
    """In the place of staleness, its rows are seeds."""


class BitPolicies:
    """Of every seed one, all with logits 0 at first. One optimiser update per step, by the product's objective.

    Raises ConfigError for an objective that needs statistics of its batch, since that would be of all seeds.
    """

    def __init__(self, config: RunConfig, section: BitsSection, seeds: Sequence[int], stream: int) -> None:
        self._config, self._section, self._seeds, self._stream = config, section, tuple(seeds), stream
        self.version = 0
        self._logits_SH = Parameter(torch.zeros(len(seeds), section.bits))
        self._past = deque([self._logits_SH.detach().clone()], maxlen=section.staleness + 1)
        self._objective = build_objective(config.objective, len(seeds))
        if self._objective.needs_statistics:
            raise ConfigError(
                f"objective.gate={config.objective.gate} needs statistics of its optimiser batch, which here would be "
                "of all seeds together; study it with kind: injected"
            )
        self._optimiser = build_optimiser([self._logits_SH], config.training)
        self._schedule = build_schedule(self._optimiser, config.training)
        self._samples = config.samples_per_step
        seed_B = np.repeat(np.arange(len(seeds)), self._samples)
        weights_B = aggregate(
            config.objective.loss_type, np.full(len(seed_B), section.bits), seed_B, seed_B, section.bits
        )
        self._seed_B, self._weights_B = seed_B, torch.from_numpy(weights_B)
        self._index_BH = torch.from_numpy(seed_B)[:, None].expand(-1, section.bits)

    @property
    def needed(self) -> int:
        """Bits that must be right for a reward."""
        return math.ceil(self._section.fraction * self._section.bits - 1e-9)

    def step(self, *, counted: bool = True) -> BitStep:
        """Sample from version max(0, v - K), update version v. counted: otherwise its counts are zero."""
        behaviour_SH = self._past[0]  # K versions old, or the first while there are no more
        bits_SNH = self._drawn(behaviour_SH)
        rewards_SN = (bits_SNH.sum(dim=2) >= self.needed).double().numpy()
        objective = self._config.objective
        advantages_B = sum_then_normalize(
            rewards_SN.ravel(), self._seed_B, objective.advantage_baseline, objective.scale_rewards
        )
        current_BH = log_probabilities(self._logits_SH, bits_SNH)
        behaviour_BH = log_probabilities(behaviour_SH, bits_SNH)
        tokens = Tokens(
            current_BT=current_BH,
            proximal_BT=behaviour_BH if objective.proximal_anchor == "behaviour" else current_BH.detach(),
            behaviour_BT=behaviour_BH,
            reference_BT=None,
            entropy_BT=torch.zeros_like(behaviour_BH),
            mask_BT=torch.ones_like(behaviour_BH, dtype=torch.bool),
            advantages_B=torch.from_numpy(advantages_B).float(),
            token_weights_B=self._weights_B,
            staleness_BT=self._index_BH,
        )
        loss, counts = self._objective(tokens, counted=counted)
        torch.autograd.backward(loss)
        return BitStep(rewards_S=rewards_SN.mean(axis=1), gradient_norm_S=self._update(), counts=counts)

    @torch.no_grad()
    def scores_S(self) -> np.ndarray:
        """Exact chance of a reward under each current policy."""
        right_SH = self._logits_SH.double().sigmoid()
        chance_SC = torch.zeros(len(right_SH), self._section.bits + 1, dtype=torch.float64)
        chance_SC[:, 0] = 1.0  # of so many right bits among those looked at
        for right_S1 in torch.split(right_SH, 1, dim=1):
            more_SC = torch.nn.functional.pad(chance_SC[:, :-1], (1, 0))
            chance_SC = chance_SC * (1.0 - right_S1) + more_SC * right_S1
        return chance_SC[:, self.needed :].sum(dim=1).numpy()

    def _update(self) -> np.ndarray:
        gradient_SH = self._logits_SH.grad
        assert gradient_SH is not None
        norm_S1 = gradient_SH.norm(dim=1, keepdim=True)
        gradient_SH.mul_((self._config.training.max_grad_norm / (norm_S1 + 1e-6)).clamp(max=1.0))
        self._optimiser.step()
        self._schedule.step()
        self._optimiser.zero_grad()
        self._past.append(self._logits_SH.detach().clone())
        self.version += 1
        return np.asarray(norm_S1[:, 0].double())

    def _drawn(self, logits_SH: Tensor) -> Tensor:
        shape = (self._samples, self._section.bits)
        at = {"version": self.version, "stream": self._stream}
        uniform = [random_of(Purpose.SAMPLING, seed, **at).random(shape) for seed in self._seeds]
        return torch.from_numpy(np.stack(uniform)) < logits_SH.double().sigmoid()[:, None]


def log_probabilities(logits_SH: Tensor, bits_SNH: Tensor) -> Tensor:
    """Of each bit as it was drawn, [B, H]."""
    signs_SNH = bits_SNH.to(logits_SH.dtype) * 2.0 - 1.0
    return logsigmoid(logits_SH[:, None] * signs_SNH).flatten(0, 1)
