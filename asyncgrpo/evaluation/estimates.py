"""What the scored samples of held-out prompts say of a policy. Pure.

Prompts are the independent units: samples of one prompt resemble each other, so errors come from the spread of the
prompts' own means.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import NamedTuple

__all__ = ["Estimate", "ks_up_to", "mean_of", "mean_over_prompts", "pass_at_k"]


class Estimate(NamedTuple):
    mean: float
    """NaN without any prompt."""
    standard_error: float
    """NaN with fewer than two prompts."""
    prompts: int
    """That it is made from."""


def pass_at_k(samples: int, passed: int, k: int) -> float:
    """Chance that of `k` of the `samples`, drawn without replacement, at least one is among those that `passed`.

    Unbiased for the chance that one of k new samples passes: 1 - C(n - c, k) / C(n, k), equation 1 of Chen et al. 2021
    (Evaluating Large Language Models Trained on Code). Raises ValueError unless 1 <= k <= samples and
    0 <= passed <= samples.
    """
    if not 1 <= k <= samples or not 0 <= passed <= samples:
        raise ValueError(f"pass@{k} of {samples} samples, {passed} of which passed, is not defined")
    return 1.0 - math.comb(samples - passed, k) / math.comb(samples, k)


def ks_up_to(samples: int) -> list[int]:
    """The k of pass@k that are reported: powers of two, and all samples."""
    return sorted({2**power for power in range(samples.bit_length())} | {samples})


def mean_over_prompts(values: Iterable[float | None]) -> Estimate:
    """Mean of one value per prompt; None where a prompt has none. Standard error with n - 1."""
    known = [value for value in values if value is not None]
    count = len(known)
    if not count:
        return Estimate(math.nan, math.nan, 0)
    mean = math.fsum(known) / count
    if count == 1:
        return Estimate(mean, math.nan, 1)
    variance = math.fsum((value - mean) ** 2 for value in known) / (count - 1)
    return Estimate(mean, math.sqrt(variance / count), count)


def mean_of(values: Sequence[float | None]) -> float | None:
    """Of one prompt's samples, those that have a value; None without any."""
    known = [value for value in values if value is not None and not math.isnan(value)]
    return math.fsum(known) / len(known) if known else None
