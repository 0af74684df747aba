"""Settings that kinds have beside a run's. Imports no torch: a study is checked before any kind is loaded."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field, NonNegativeInt, PositiveInt

from asyncgrpo.config.section import Fraction, PathText, Section


class Histogram(Section):
    histogram: Annotated[PathText, Field(min_length=1)]
    """A run folder, or its metrics.jsonl: tokens by staleness as that run recorded them."""


class InjectedSection(Section):
    staleness: NonNegativeInt | Histogram = 0
    """Every token is trained exactly so many versions late; or as late as drawn from a recorded histogram."""
    threads: PositiveInt = 1
    """Of torch. Numbers are the same to the last bit with as many only; a tiny model is fastest with one."""


class BitsSection(Section):
    staleness: NonNegativeInt = 0
    """K: every sample is trained exactly so many versions late."""
    bits: PositiveInt = 20
    """H: independent bits of a completion."""
    fraction: Fraction = 0.75
    """Share of the bits that must be right for the reward 1."""
    seeds_together: PositiveInt = 32
    """Seeds computed as one array, counted from multiples of this number. Each draws from a stream of its own."""
