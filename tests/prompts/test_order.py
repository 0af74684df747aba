"""Which row comes when: every row of a pass once, shares as weighted, and all of it known from the place alone."""

from collections import Counter
from collections.abc import Sequence
from itertools import islice

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from asyncgrpo.prompts.order import MixedOrder, OneOrder, Order, Place, shares

SIZES = st.lists(st.integers(1, 12), min_size=1, max_size=4)
WEIGHTS = st.lists(st.floats(0.01, 100.0), min_size=4, max_size=4)


def mixed(sizes: Sequence[int], weights: Sequence[float], seed: int = 0, shuffles: bool = True) -> MixedOrder:
    """Rows 0, 1, … of the first dataset, 100, 101, … of the second and so on."""
    rows = [range(100 * i, 100 * i + size) for i, size in enumerate(sizes)]
    return MixedOrder(rows, weights[: len(sizes)], seed=seed, shuffles=shuffles)


def places(order: Order, epochs: int) -> list[list[Place]]:
    return [
        [place for position in range(order.length) if (place := order.at(epoch, position)) is not None]
        for epoch in range(epochs)
    ]


@given(st.integers(1, 9), st.sets(st.integers(0, 8)), st.booleans())
def test_one_dataset_has_every_row_once_in_every_epoch(count: int, without: set[int], shuffles: bool) -> None:
    kept = set(range(count)) - without
    order = OneOrder(count, without & set(range(count)), seed=3, shuffles=shuffles)
    assert order.prompts == len(kept)
    for number, epoch in enumerate(places(order, 3)):
        assert sorted(epoch) == [Place(number, row) for row in sorted(kept)]


@settings(deadline=None)
@given(SIZES, WEIGHTS, st.booleans())
def test_a_mix_has_every_row_of_a_pass_once_before_the_next(
    sizes: list[int], weights: list[float], shuffles: bool
) -> None:
    order = mixed(sizes, weights, shuffles=shuffles)
    found = [place for epoch in places(order, 4) for place in epoch]
    assert len(found) == len(set(found)) == 4 * order.prompts
    for source, size in enumerate(sizes):
        own = [place for place in found if place.row // 100 == source]
        assert [place.epoch for place in own] == [visit // size for visit in range(len(own))]
        for start in range(0, len(own) - size + 1, size):
            assert {place.row for place in own[start : start + size]} == set(range(100 * source, 100 * source + size))


@settings(deadline=None)
@given(SIZES, WEIGHTS)
def test_no_stretch_of_an_epoch_is_far_from_the_shares(sizes: list[int], weights: list[float]) -> None:
    order = mixed(sizes, weights)
    wanted = shares(sum(sizes), weights[: len(sizes)])
    for epoch in places(order, 2):
        for end in range(1, len(epoch) + 1):
            counts = Counter(place.row // 100 for place in epoch[:end])
            for source, share in enumerate(wanted):
                assert abs(counts[source] - end * share / len(epoch)) <= len(sizes)


@settings(deadline=None)
@given(SIZES, WEIGHTS, st.integers(0, 3), st.integers(0, 47))
def test_a_place_says_all(sizes: list[int], weights: list[float], epoch: int, position: int) -> None:
    order, other = mixed(sizes, weights), mixed(sizes, weights)
    places(order, 2)
    position %= order.length
    assert order.at(epoch, position) == other.at(epoch, position) == places(mixed(sizes, weights), 4)[epoch][position]


@settings(deadline=None)
@given(SIZES, WEIGHTS, WEIGHTS, st.integers(0, 5))
def test_after_a_change_of_weights_no_prompt_comes_again(
    sizes: list[int], weights: list[float], changed: list[float], epoch: int
) -> None:
    order, other = mixed(sizes, weights), mixed(sizes, changed)
    last = order.last_pass(epoch)
    assert last == max(place.epoch for place in places(order, epoch + 1)[epoch])
    start = other.first_epoch_after(last)
    assert min(other.at(start, position).epoch for position in range(other.length)) > last


def test_the_order_is_that_of_the_seed() -> None:
    sizes, weights = [20, 20], [1.0, 1.0]
    assert places(mixed(sizes, weights, 1), 2) == places(mixed(sizes, weights, 1), 2)
    assert places(mixed(sizes, weights, 1), 2) != places(mixed(sizes, weights, 2), 2)
    first, second = places(mixed(sizes, weights), 2)
    assert [place.row for place in first] != [place.row for place in second]


def test_without_shuffling_rows_come_in_order_and_in_turns() -> None:
    order = mixed([4, 2], [2.0, 1.0], shuffles=False)
    assert [place.row for epoch in places(order, 2) for place in islice(epoch, 6)] == [0, 100, 1, 2, 101, 3] * 2


@pytest.mark.parametrize(
    ("total", "weights", "expected"),
    [(10, [0.7, 0.3], [7, 3]), (10, [1, 1, 1], [4, 3, 3]), (10, [1e6, 0.01], [10, 1]), (3, [5.0], [3])],
)
def test_shares(total: int, weights: list[float], expected: list[int]) -> None:
    assert shares(total, weights) == expected
