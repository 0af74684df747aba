"""No two purposes draw the same numbers."""

import itertools

import numpy as np

from asyncgrpo.ablation.kinds.past import Delays
from asyncgrpo.ablation.kinds.settings import InjectedSection
from asyncgrpo.ablation.randomness import Purpose, random_of


def numbers(purpose: Purpose, seed: int, version: int, stream: int) -> tuple[float, ...]:
    return tuple(random_of(purpose, seed, version=version, stream=stream).random(4))


def test_every_purpose_seed_version_and_stream_has_numbers_of_its_own() -> None:
    cases = list(itertools.product(Purpose, range(4), range(4), range(2)))
    assert len({numbers(*case) for case in cases}) == len(cases)
    assert numbers(Purpose.SAMPLING, 3, 2, 1) == numbers(Purpose.SAMPLING, 3, 2, 1)


def test_how_late_groups_are_is_not_what_the_aa_arm_samples_by() -> None:
    delays = Delays(InjectedSection(staleness=0), seed=5)
    delays._values, delays._shares = np.arange(1000), np.full(1000, 1e-3)  # fine enough to show the numbers drawn by
    drawn = (2000 - np.array(delays.of_groups(8, 2000))) / 1000
    for stream in (0, 1):
        sampled = random_of(Purpose.SAMPLING, 5, version=2000, stream=stream).random(8)
        assert not np.allclose(drawn, sampled, atol=2e-3)
    own = random_of(Purpose.DELAYS, 5, version=2000).random(8)
    assert np.allclose(drawn, own, atol=2e-3)  # they do show
