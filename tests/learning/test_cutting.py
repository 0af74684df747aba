import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from asyncgrpo.learning.cutting import balance, is_inert, loads, minibatches, ranks


@given(st.integers(1, 12), st.integers(1, 5), st.integers(1, 4), st.integers(0, 1000))
def test_minibatches_are_whole_groups_of_even_number(groups: int, size: int, count: int, seed: int) -> None:
    ids = np.repeat(np.arange(groups)[::-1] * 10, size)
    where = minibatches(ids, count, (seed,))
    assert np.array_equal(where, minibatches(ids, count, (seed,)))
    assert all(len(set(where[ids == group])) == 1 for group in set(ids))
    per_minibatch = np.bincount(where, minlength=count) // size
    assert per_minibatch.max() - per_minibatch.min() <= 1
    assert (np.diff((per_minibatch == 0).astype(int)) >= 0).all()  # empty ones come last


def test_minibatches_are_drawn_anew_for_each_version() -> None:
    ids = np.repeat(np.arange(8), 2)
    drawn = {tuple(minibatches(ids, 4, (42, version))) for version in range(20)}
    assert len(drawn) > 10


@given(st.lists(st.integers(1, 100), min_size=1, max_size=40), st.integers(1, 6))
def test_balance_is_within_one_item(cost: list[int], parts: int) -> None:
    where = balance(np.array(cost), parts)
    totals = np.bincount(where, weights=cost, minlength=parts)
    assert totals.max() - totals.min() <= max(cost)
    assert len(set(where)) == min(parts, len(cost))


def is_whole(rank_S: np.ndarray, group_S: np.ndarray) -> bool:
    return all(len(set(rank_S[group_S == group])) == 1 for group in set(group_S))


def test_a_rank_computes_the_prompt_of_a_group_once() -> None:
    group_S, prompt_S = np.array([0, 0, 0, 1, 1]), np.array([100, 100, 100, 7, 7])
    completion_S, rank_S = np.array([1, 2, 3, 4, 5]), np.array([0, 0, 1, 1, 1])
    assert loads(rank_S, group_S, prompt_S, completion_S, 3).tolist() == [103, 100 + 3 + 7 + 9, 0]


def test_a_sample_that_is_not_computed_brings_no_prompt() -> None:
    nothing = np.zeros(2, dtype=np.int64)
    assert loads(np.array([0, 1]), np.array([0, 0]), np.array([9, 0]), np.array([2, 0]), 2).tolist() == [11, 0]
    assert ranks(np.array([3, 3]), nothing, nothing, 2).shape == (2,)
    assert ranks(nothing[:0], nothing[:0], nothing[:0], 2).shape == (0,)


def test_groups_stay_whole_where_they_can_be_dealt_evenly() -> None:
    ids = np.repeat([5, 3, 9, 1], 4)
    rank_S = ranks(ids, np.full(16, 50), np.full(16, 10), 2)
    assert is_whole(rank_S, ids)
    assert np.bincount(rank_S).tolist() == [8, 8]


def test_groups_are_cut_where_they_cannot() -> None:
    ids = np.repeat([5, 3, 9], 4)
    rank_S = ranks(ids, np.full(12, 20), np.full(12, 10), 2)
    assert loads(rank_S, ids, np.full(12, 20), np.full(12, 10), 2).tolist() == [100.0, 100.0]  # whole: 120 and 60
    cut = [group for group in (3, 5, 9) if len(set(rank_S[ids == group])) > 1]
    assert len(cut) == 1


def test_one_group_is_shared_by_all_ranks() -> None:
    assert np.bincount(ranks(np.zeros(8, dtype=np.int32), np.full(8, 256), np.full(8, 30), 4)).tolist() == [2, 2, 2, 2]


def test_no_prompt_is_computed_twice_where_whole_groups_are_as_even() -> None:
    ids, prompt_S = np.repeat([0, 1, 2, 3], 2), np.repeat([1000, 1000, 100, 100], 2)
    rank_S = ranks(ids, prompt_S, np.full(8, 4), 2)  # in a row, half of the tokens lie in the middle of group 1
    assert is_whole(rank_S, ids)
    assert loads(rank_S, ids, prompt_S, np.full(8, 4), 2).tolist() == [1116.0, 1116.0]


@given(st.lists(st.tuples(st.integers(0, 5), st.integers(1, 60)), min_size=1, max_size=24), st.integers(1, 5))
def test_the_busiest_rank_has_little_more_than_its_share(samples: list[tuple[int, int]], count: int) -> None:
    group_S, completion_S = np.array(samples).T
    prompt_S = 10 * (group_S + 1)
    rank_S = ranks(group_S, prompt_S, completion_S, count)
    assert set(rank_S) <= set(range(count))
    _, first = np.unique(group_S, return_index=True)
    share = (completion_S.sum() + prompt_S[first].sum()) / count
    # cut in a row: one sample too many, and two prompts that another rank computes, too
    bound = share + (completion_S + prompt_S).max() + 2 * prompt_S.max()
    assert loads(rank_S, group_S, prompt_S, completion_S, count).max() <= bound


def test_a_group_is_inert_when_all_its_advantages_are_zero() -> None:
    advantages = np.array([0.0, 0.0, 1.0, 0.0, 0.0, 0.0, -0.0])
    group_ids = np.array([7, 7, 3, 3, 3, 9, 9])
    assert is_inert(advantages, group_ids).tolist() == [True, True, False, False, False, True, True]
    assert is_inert(np.empty(0), np.empty(0, dtype=np.int32)).tolist() == []
