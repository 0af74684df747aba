"""think_format, repetition, soft_overlong and exact_match beyond the cases of the independent implementation."""

import pytest

from asyncgrpo.errors import ConfigError
from asyncgrpo.rewards.builtin import ExactMatch, Repetition, SoftOverlong, ThinkFormat, exact_match, think_format
from asyncgrpo.rewards.builtin.ngrams import repeated_share


def test_think_tags() -> None:
    texts = [
        "<think></think>",
        "<think>\na\n</think>\nb",
        "<think>a",
        "<think>a</think>b<think>",
        "<think>a</think></think>",
    ]
    assert think_format(completions=texts) == [1.0, 1.0, 0.0, 0.0, 1.0]
    assert ThinkFormat(opened=True)(completions=["a</think>b", "<think>a</think>b", "a"]) == [1.0, 0.0, 0.0]


def test_repeated_ngrams() -> None:
    assert repeated_share([5, 5, 5, 5, 5], 2) == 0.75
    assert repeated_share([1, 2, 3, 4], 2) == 0.0
    assert repeated_share([1, 1], 3) == repeated_share([], 1) == 0.0
    assert repeated_share([1, 1, 1], 1) == pytest.approx(2 / 3)
    assert Repetition(ngram_size=2, max_penalty=-0.5)(completion_ids=[[5] * 5, []]) == [-0.375, 0.0]


def test_soft_overlong_at_its_bounds() -> None:
    hard = SoftOverlong(soft_punish_cache=0, max_completion_length=100)
    assert hard(completion_ids=[[1] * 100, [1] * 101]) == [0.0, -1.0]
    reward = SoftOverlong(soft_punish_cache=20)
    with pytest.raises(ConfigError, match="max_completion_length is not known outside of a run"):
        reward(completion_ids=[[1]])
    bound = reward.bound(max_completion_length=100, timeout=60.0)
    assert bound(completion_ids=[[1] * n for n in (0, 80, 81, 90, 100, 101)]) == [0.0, 0.0, -0.05, -0.5, -1.0, -1.0]
    own = SoftOverlong(soft_punish_cache=20, max_completion_length=50).bound(max_completion_length=100, timeout=60.0)
    assert own(completion_ids=[[1] * 40]) == [-0.5]
    with pytest.raises(ConfigError, match="soft_punish_cache=20 is more than max_completion_length=10"):
        reward.bound(max_completion_length=10, timeout=60.0)


def test_exact_matches() -> None:
    assert exact_match(completions=[" a  b\n", "ab", "A b"], solution=["a b"] * 3) == [1.0, 0.0, 0.0]
    assert exact_match(completions=["7", "x", "y", "y"], solution=[7, None, ["x", "y"], []]) == [1.0, None, 1.0, None]
    loose = ExactMatch(answer_column="gold", after="Answer:", ignore_case=True, ignore_punctuation=True)
    texts = ["Answer: no. Answer: Paris!", "Paris", "answer: paris"]
    assert loose(completions=texts, gold=["paris"] * 3) == [1.0, 0.0, 0.0]
