import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from asyncgrpo.learning.packing import fill, pack_padded, pack_trees

SAMPLES = st.lists(st.tuples(st.integers(0, 3), st.integers(0, 40)), min_size=1, max_size=30)
PROMPTS = (1, 7, 20, 33)


@given(SAMPLES, st.integers(1, 120))
def test_rows_hold_every_sample_once_and_keep_the_budget(samples: list[tuple[int, int]], budget: int) -> None:
    prompt_of_S = np.array([prompt for prompt, _ in samples])
    inputs_S = np.array([inputs for _, inputs in samples])
    prompt_S = np.array([PROMPTS[prompt] for prompt, _ in samples])
    rows = pack_trees(prompt_of_S, prompt_S, inputs_S, budget)
    assert sorted(sample for row in rows for tree in row for sample in tree) == list(range(len(samples)))
    for row in rows:
        assert all(len({samples[sample][0] for sample in tree}) == 1 for tree in row), "one prompt per tree"
        tokens = sum(prompt_S[tree[0]] + inputs_S[tree].sum() for tree in row)
        continued = [sample for tree in row for sample in tree if inputs_S[sample]]
        assert tokens <= budget or (len(row) == 1 and len(continued) <= 1), "only what cannot be cut exceeds it"


@given(st.lists(st.integers(0, 50), max_size=40), st.integers(0, 100))
def test_bins_hold_every_item_once_keep_their_capacity_and_are_few(loads: list[int], capacity: int) -> None:
    bins = fill(loads, capacity)
    assert sorted(item for items in bins for item in items) == list(range(len(loads)))
    assert all(sum(loads[item] for item in items) <= capacity or len(items) == 1 for items in bins)
    small = [items for items in bins if all(loads[item] <= capacity for item in items)]
    total = sum(loads[item] for items in small for item in items)
    assert len(small) <= 2 * total // max(1, capacity) + 1, "at worst, bins are half full"


@given(st.lists(st.integers(1, 50), min_size=1, max_size=40), st.integers(1, 200))
def test_padded_rows_keep_the_budget(lengths: list[int], budget: int) -> None:
    batches = pack_padded(np.array(lengths), budget)
    assert sorted(sample for batch in batches for sample in batch) == list(range(len(lengths)))
    for batch in batches:
        assert len(batch) * max(lengths[sample] for sample in batch) <= budget or len(batch) == 1


def test_a_prompt_is_computed_once_where_the_budget_allows() -> None:
    ones = np.array([0, 1, 0, 1])
    assert pack_trees(ones, np.array([4, 3, 4, 3]), np.array([5, 6, 7, 8]), 33) == [[[0, 2], [1, 3]]]


def test_a_prompt_is_cut_into_near_equal_trees() -> None:
    rows = pack_trees(np.zeros(4, dtype=int), np.full(4, 10), np.array([8, 2, 6, 4]), 20)
    assert rows == [[[0, 1]], [[2, 3]]], "10 tokens of 20 are left in each row beside the prompt"


def test_rows_are_near_equal() -> None:
    rows = pack_trees(np.arange(4), np.full(4, 1), np.array([8, 2, 6, 4]), 23)
    assert rows == [[[0], [1]], [[2], [3]]], "two rows of 12, not of 23 and 1"


def test_padded_rows_are_of_similar_length() -> None:
    assert pack_padded(np.array([3, 9, 2, 8]), 18) == [[1, 3], [0, 2]]
