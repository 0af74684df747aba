import dataclasses

import numpy as np
import pytest
import torch
from learning_cases import make_config, make_group, make_sample, random_groups

from asyncgrpo.learning.attention.layout import Tree
from asyncgrpo.learning.batching import make_batch
from asyncgrpo.learning.microbatch import PADDING, MicroBatch, micro_batches
from asyncgrpo.learning.packing import Packing
from asyncgrpo.types import Batch

CPU = torch.device("cpu")


def two_groups() -> Batch:
    """Prompts (1, 2) and (3,); the second sample has nothing to train, the third a hole and an untrained end."""
    groups = [
        make_group(0, [make_sample([10, 11, 12]), make_sample([13]), make_sample([14, 15, 16, 17])], (1, 2)),
        make_group(1, [make_sample([20]), make_sample([21, 22], version=-2)], (3,)),
    ]
    batch = make_batch(groups, 0, make_config("m"))
    mask = np.array([1, 1, 1, 0, 1, 0, 1, 0, 1, 1, 1], dtype=bool)
    logprobs = -np.arange(11, dtype=np.float32)
    return dataclasses.replace(batch, loss_mask=mask, behaviour_logprobs=logprobs)


def only(batch: Batch, packing: Packing) -> MicroBatch:
    (micro,) = micro_batches(batch, np.arange(5), 100, packing, CPU, token_weights=np.arange(5) / 4)
    return micro


def test_a_packed_row() -> None:
    micro = only(two_groups(), "shared")
    assert micro.members_B.tolist() == [0, 2, 3, 4]
    # the last trained token of a sample is only a target, and what follows it is nothing
    assert micro.input_ids_RL.tolist() == [[1, 2, 10, 11, 14, 15, 3, 21]]
    assert micro.positions_RL.tolist() == [[0, 1, 2, 3, 2, 3, 0, 1]]
    assert micro.layout.trees == (Tree(0, 2, (4, 6)), Tree(6, 7, (8,)))
    # first tokens are predicted where the prompt ends
    assert micro.targets_N.tolist() == [10, 11, 12, 14, 16, 20, 21, 22]
    assert micro.columns_N.tolist() == [1, 2, 3, 1, 5, 6, 6, 7]
    assert micro.rows_N.tolist() == [0] * 8


def test_what_the_objective_needs_lies_sample_by_sample() -> None:
    micro = only(two_groups(), "shared")
    assert micro.mask_BT.int().tolist() == [[1, 1, 1, 0], [1, 0, 1, 0], [1, 0, 0, 0], [1, 1, 0, 0]]
    assert micro.behaviour_BT.tolist() == [[0, -1, -2, 0], [-4, -5, -6, -7], [-8, 0, 0, 0], [-9, -10, 0, 0]]
    assert micro.staleness_BT.tolist() == [[0, 0, 0, 0], [0, 0, 0, 0], [0, 0, 0, 0], [2, 2, 0, 0]]
    assert micro.token_weights_B.tolist() == [0, 0.5, 0.75, 1]
    values = torch.arange(1.0, 9.0)
    assert micro.padded(values).tolist() == [[1, 2, 3, 0], [4, 0, 5, 0], [6, 0, 0, 0], [7, 8, 0, 0]]


def test_separate_prompts() -> None:
    micro = only(two_groups(), "separate")
    assert micro.input_ids_RL.tolist() == [[1, 2, 10, 11, 1, 2, 14, 15, 3, 3, 21]]
    assert micro.layout.trees == (Tree(0, 2, (4,)), Tree(4, 6, (8,)), Tree(8, 9, ()), Tree(9, 10, (11,)))
    assert micro.columns_N.tolist() == [1, 2, 3, 5, 7, 8, 9, 10]


def test_padded_rows() -> None:
    micro = only(two_groups(), "padded")
    assert micro.members_B.tolist() == [0, 2, 4, 3], "the longest first"
    assert micro.input_ids_RL.tolist() == [[1, 2, 10, 11], [1, 2, 14, 15], [3, 21, 0, 0], [3, 0, 0, 0]]
    assert micro.layout is None and micro.positions_RL is None
    assert micro.rows_N.tolist() == [0, 0, 0, 1, 1, 2, 2, 3]
    assert micro.columns_N.tolist() == [1, 2, 3, 1, 3, 0, 1, 0]
    assert micro.targets_N.tolist() == [10, 11, 12, 14, 16, 21, 22, 20]


@pytest.mark.parametrize("packing", ["shared", "separate", "padded"])
def test_tokens_that_look_like_padding_are_trained_like_any_other(packing: Packing) -> None:
    """As with a tokenizer whose padding is its end token: what counts is how many tokens the engine gave."""
    completions = [[8, 9, PADDING], [PADDING], [8, PADDING, 9, PADDING, PADDING], [PADDING, PADDING]]
    groups = [make_group(0, [make_sample(tokens) for tokens in completions], (PADDING, 7, PADDING))]
    batch = make_batch(groups, 0, make_config("m"))
    micro = micro_batches(batch, np.arange(4), 100, packing, CPU)[0]
    said = dict(zip(micro.members_B.tolist(), micro.padded(micro.targets_N), strict=True))
    for member, tokens in enumerate(completions):
        assert said[member].tolist() == tokens + [0] * (5 - len(tokens))
    lengths = dict(zip(micro.members_B.tolist(), micro.mask_BT.sum(1).tolist(), strict=True))
    assert lengths == {0: 3, 1: 1, 2: 5, 3: 2}


def test_equal_prompts_of_different_groups_are_shared() -> None:
    groups = [make_group(index, [make_sample([10 + index, 1])], (1, 2)) for index in range(2)]
    batch = make_batch(groups, 0, make_config("m"))
    (micro,) = micro_batches(batch, np.arange(2), 100, "shared", CPU)
    assert micro.input_ids_RL.tolist() == [[1, 2, 10, 11]]


@pytest.mark.parametrize("packing", ["shared", "separate", "padded"])
@pytest.mark.parametrize("budget", [1, 20, 1000])
def test_every_trained_token_is_predicted_once_from_the_token_before_it(packing: Packing, budget: int) -> None:
    batch = make_batch(random_groups(groups=3), 0, make_config("m"))
    found = []
    for micro in micro_batches(batch, np.arange(len(batch)), budget, packing, CPU):
        assert micro.input_ids_RL.numel() <= budget or len(micro.members_B) == 1
        before = micro.input_ids_RL[micro.rows_N, micro.columns_N].tolist()
        samples = np.repeat(micro.members_B, micro.mask_BT.sum(1))
        found += list(zip(samples.tolist(), before, micro.targets_N.tolist(), strict=True))
    expected = []
    at = 0
    prompt_ends = np.cumsum(batch.prompt_lengths)
    for sample, length in enumerate(batch.completion_lengths):
        last = batch.prompt_tokens[prompt_ends[sample] - 1]
        completion = batch.completion_tokens[at : at + length].tolist()
        expected += [(sample, *pair) for pair in zip([last, *completion], completion, strict=False)]
        at += length
    assert sorted(found) == sorted(expected)


def test_samples_without_trained_tokens_leave_one_forward_pass() -> None:
    batch = dataclasses.replace(two_groups(), loss_mask=np.zeros(11, dtype=bool))
    for packing in ("shared", "separate", "padded"):
        micro = only(batch, packing)
        assert micro.members_B.tolist() == [0]
        assert micro.input_ids_RL.tolist() == [[1, 2]]
        assert len(micro.targets_N) == 0
    assert micro_batches(batch, np.arange(0), 100, "shared", CPU) == []
