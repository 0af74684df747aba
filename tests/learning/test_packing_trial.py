import numpy as np
import torch

from asyncgrpo.learning.attention import flex
from asyncgrpo.learning.microbatch import micro_batches, scoring_batch
from asyncgrpo.learning.packing_trial import LONG, SHORT, Outcome, Trial, deviation, trial_for

CPU = torch.device("cpu")


def test_where_training_takes_other_kernels_the_trial_takes_them_too() -> None:
    assert trial_for(CPU, use_bf16=True) == Trial(samples=SHORT, use_bf16=False, with_gradient=False)
    assert trial_for(torch.device("cuda:0"), use_bf16=True) == Trial(samples=LONG, use_bf16=True, with_gradient=True)
    assert not trial_for(torch.device("cuda:0"), use_bf16=False).use_bf16


def test_the_long_samples_have_blocks_of_every_kind() -> None:
    pairs = [([prompt] * prompt, [0] * length) for prompt, lengths in LONG for length in lengths]
    batch = scoring_batch(pairs)
    (micro,) = micro_batches(batch, np.arange(len(batch)), 10_000, "shared", CPU)
    assert micro.layout is not None and micro.layout.trees[0].end == 487, "more than two blocks"
    mask = flex.block_mask(micro.layout, None, CPU)
    seen = [[1, 0, 0, 0], [1, 1, 0, 0], [1, 1, 1, 0], [1, 0, 1, 1]]
    assert mask.to_dense()[0, 0].tolist() == seen, "the last skips one"
    assert mask.full_kv_num_blocks is not None and mask.full_kv_num_blocks.flatten().tolist() == [0, 1, 1, 0]


def test_deviation_is_that_of_the_worst_token_and_of_the_gradient_relative_to_their_lengths() -> None:
    expected = Outcome(torch.tensor([[3.0, 4.0], [0.0, 10.0]]), torch.tensor([3.0, 4.0]))
    actual = Outcome(torch.tensor([[3.0, 5.0], [1.0, 10.0]]), torch.tensor([6.0, 8.0]))
    assert deviation(actual, expected) == (float(torch.tensor(0.2)), 1.0)
    nothing = torch.empty(0)
    assert deviation(Outcome(actual.hidden_NH, nothing), Outcome(expected.hidden_NH, nothing))[1] == 0.0
