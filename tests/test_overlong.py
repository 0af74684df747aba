"""The rule by which long completions are punished, at its bounds."""

import numpy as np
import pytest

from asyncgrpo.overlong import overlong_punishment


@pytest.mark.parametrize(
    ("cache", "expected"),
    [(20, [0.0, 0.0, -0.05, -0.5, -1.0, -1.0]), (0, [0.0, 0.0, 0.0, 0.0, 0.0, -1.0])],
)
def test_it_falls_linearly_over_the_cache(cache: int, expected: list[float]) -> None:
    lengths = np.array([0, 80, 81, 90, 100, 101])
    np.testing.assert_allclose(overlong_punishment(lengths, 100, cache), expected, rtol=1e-15)
