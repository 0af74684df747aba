"""Proves before training that what is published is what engines compute with.

A probe must be able to fail. After an ordinary small update an engine that ignored the publish differs by less than
bfloat16 noise, so the probe publishes a model with every tensor perturbed (head included), lets each engine sample, and
scores the same tokens with the learner's own perturbed model; then does the same for the learner's version. An engine
that ignores a publish, or keeps its old head, disagrees by nats.

Only engines that are there at the start are probed, not one that failed then and is brought back later.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from asyncgrpo.concurrency import gather_all
from asyncgrpo.errors import EngineError, ProbeMismatch
from asyncgrpo.types import Completion
from asyncgrpo.weights.publisher import Publisher

logger = logging.getLogger(__name__)

PERTURBATION_SEED = 20_000_003
PERTURBED_VERSION = -1
"""A name of its own: an engine left with these weights never passes for one with version 0."""
SEPARATION_SHARE = 0.1
"""Part of the distance to the unperturbed model that a perturbed engine may be off: number formats, not weights."""


class Scorer(Protocol):
    async def score(
        self, sequences: Sequence[tuple[Sequence[int], Sequence[int]]], perturbation: int | None = None
    ) -> list[np.ndarray]: ...


Sampler = Callable[[str, Sequence[int]], Awaitable[Completion]]
"""(engine name, prompt token ids) -> completion."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Agreement:
    """How far one engine is from the learner about the same weights, nats per token."""

    engine: str
    weights: str
    mean: float
    max: float
    limit: float

    def __str__(self) -> str:
        return (
            f"{self.engine}, {self.weights}: mean |difference| of log-probabilities {self.mean:.4f} nats "
            f"(max {self.max:.3f}, allowed mean {self.limit:.4f})"
        )


def _raise(engine: str, error: EngineError) -> None:
    raise error


async def probe(
    publisher: Publisher,
    learner: Scorer,
    sample: Sampler,
    engines: Sequence[str],
    prompts: Sequence[Sequence[int]],
    tolerance: float,
    version: int = 0,
    failed: Callable[[str, EngineError], None] = _raise,
) -> list[Agreement]:
    """Publish perturbed weights, then the learner's `version`, comparing both times. Leaves every engine serving that.

    prompts: token ids to continue. tolerance: allowed mean |difference|, nats per token. failed: told of an engine that
    cannot be sampled from; if it returns, nothing is said of that one. Raises ProbeMismatch.
    """

    async def compare(engines: Iterable[str], perturbation: int | None) -> dict[str, tuple[np.ndarray, float]]:
        found = {}
        for engine in engines:
            try:
                found[engine] = await _compare(learner, sample, engine, prompts, perturbation)
            except EngineError as error:
                failed(engine, error)
        return found

    await publisher.publish(PERTURBED_VERSION, PERTURBATION_SEED)
    perturbed = await compare(engines, PERTURBATION_SEED)
    await publisher.publish(version)
    original = await compare(perturbed, None)

    agreements = []
    for engine, (gaps, separation) in perturbed.items():
        if separation < 5 * tolerance:
            raise ProbeMismatch(
                f"the probe cannot tell weights apart: perturbing them moved log-probabilities by {separation:.4f} "
                f"nats, and weights.probe_tolerance={tolerance}; lower it, or turn weights.probe off"
            )
        limit = max(tolerance, SEPARATION_SHARE * separation)
        agreements.append(_agreement(engine, "perturbed weights", gaps, limit))
    for engine, (gaps, _) in original.items():
        agreements.append(_agreement(engine, f"version {version}", gaps, tolerance))
    for agreement in agreements:
        logger.info("probe: %s", agreement)
    wrong = [str(agreement) for agreement in agreements if not agreement.mean <= agreement.limit]
    if wrong:
        raise ProbeMismatch(
            "engine and learner disagree about the same weights, so training would not be sound:\n  "
            + "\n  ".join(wrong)
            + "\nAn engine that ignores a publish or keeps an old output head does this; so does another model, "
            "dtype or temperature. weights.probe_tolerance sets the limit."
        )
    return agreements


async def _compare(
    learner: Scorer, sample: Sampler, engine: str, prompts: Sequence[Sequence[int]], perturbation: int | None
) -> tuple[np.ndarray, float]:
    """|engine - learner| per token, and the mean distance of the same tokens to the unperturbed learner."""
    completions = await gather_all(*(sample(engine, prompt) for prompt in prompts))
    sequences = [
        (prompt, completion.token_ids.tolist()) for prompt, completion in zip(prompts, completions, strict=True)
    ]
    engine_logprobs = np.concatenate([np.array(completion.behaviour_logprobs) for completion in completions])
    same = np.concatenate(await learner.score(sequences, perturbation))
    gaps = np.abs(engine_logprobs - same)
    if perturbation is None:
        return gaps, 0.0
    unperturbed = np.concatenate(await learner.score(sequences, None))
    return gaps, float(np.abs(same - unperturbed).mean())


def _agreement(engine: str, weights: str, gaps: np.ndarray, limit: float) -> Agreement:
    return Agreement(engine=engine, weights=weights, mean=float(gaps.mean()), max=float(gaps.max()), limit=limit)
