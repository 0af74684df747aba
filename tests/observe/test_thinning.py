import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from asyncgrpo.observe.page.thinning import Thinned, plain


def test_rows_that_fit_are_points_of_their_own() -> None:
    thinned = Thinned(4)
    thinned.extend({"a": np.array([1.0, math.nan, 3.0])}, 3)
    assert (thinned.rows, thinned.width, thinned.points) == (3, 1, 3)
    assert thinned.of("a") == {"mean": [1.0, None, 3.0]}


def test_a_full_row_of_points_is_folded() -> None:
    thinned = Thinned(4)
    thinned.extend({"a": np.array([1.0, 2.0, 3.0, 9.0])}, 4)
    thinned.extend({"a": np.array([5.0]), "late": np.array([7.0])}, 1)
    assert thinned.width == 2
    assert thinned.of("a") == {"mean": [1.5, 6.0, 5.0], "min": [1.0, 3.0, 5.0], "max": [2.0, 9.0, 5.0]}
    assert thinned.of("late")["mean"] == [None, None, 7.0]


def test_what_is_absent_may_count_as_nothing() -> None:
    thinned = Thinned(2)
    thinned.extend({"tokens": np.array([100.0, math.nan, math.nan])}, 3)
    assert thinned.of("tokens", absent_is_zero=True) == {"mean": [50.0, 0.0], "min": [0.0, 0.0], "max": [100.0, 0.0]}


def test_an_odd_number_of_points_cannot_be_folded() -> None:
    with pytest.raises(ValueError, match="most=3"):
        Thinned(3)


@given(
    chunks=st.lists(st.lists(st.one_of(st.none(), st.floats(-1e6, 1e6)), min_size=1, max_size=30), max_size=12),
    most=st.sampled_from([2, 4, 8]),
)
def test_extremes_and_means_are_those_of_all_rows(chunks: list[list[float | None]], most: int) -> None:
    thinned = Thinned(most)
    rows: list[float | None] = []
    for chunk in chunks:
        thinned.extend({"a": np.array(chunk, dtype=np.float64)}, len(chunk))
        rows += chunk
    values = [value for value in rows if value is not None]
    assert thinned.rows == len(rows)
    assert thinned.points <= most
    if rows:
        assert thinned.extremes("a") == ((min(values), max(values)) if values else (None, None))
    for point, mean in enumerate(thinned.of("a", digits=15)["mean"] if rows else []):
        part = [value for value in rows[point * thinned.width : (point + 1) * thinned.width] if value is not None]
        assert mean is None if not part else mean == pytest.approx(math.fsum(part) / len(part), abs=1e-6)


def test_numbers_are_written_with_as_many_digits_as_a_chart_can_show() -> None:
    values = [1 / 3, -2e7 / 3, 1.5, 0.0, 6.02214076e23, 1.23456789e-17, 1796000020.1234, np.nan, np.inf, -np.inf]
    written = [0.333333, -6666670.0, 1.5, 0.0, 6.02214e23, 1.23457e-17, 1796000000.0, None, None, None]
    assert plain(np.array(values)) == written
    assert plain(np.array([1796000020.1234]), 13) == [1796000020.123]
    assert plain(np.array([])) == []
