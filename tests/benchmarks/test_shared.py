import numpy as np
import pytest
import torch
from shared import Work, allocate_gradients, make_samples, peak_since, ratio, run_child, start_peak

MEGABYTE = 2**20


def make_work(model, **changes):
    return Work(**{"model": str(model), "prompt": 5, "completion": 16, "groups": 2, "generations": 4} | changes)


def test_samples_of_a_group_share_their_prompt_and_lengths_are_ragged(tiny_model):
    samples = make_samples(make_work(tiny_model))
    assert [len(prompt) for prompt in samples.prompts] == [5] * 8
    assert len({tuple(prompt) for prompt in samples.prompts}) == 2
    assert samples.prompts[0] == samples.prompts[3] != samples.prompts[4]
    lengths = [len(completion) for completion in samples.completions]
    assert max(lengths) == 16 and min(lengths) >= 2 and len(set(lengths)) > 1
    assert samples.tokens == sum(lengths)


def test_the_best_case_shares_nothing_and_pads_nothing(tiny_model):
    samples = make_samples(make_work(tiny_model, shared=False, ragged=False))
    assert len({tuple(prompt) for prompt in samples.prompts}) == 8
    assert {len(completion) for completion in samples.completions} == {16}


def test_the_same_work_gives_the_same_samples(tiny_model):
    first, again = make_samples(make_work(tiny_model)), make_samples(make_work(tiny_model))
    other = make_samples(make_work(tiny_model, seed=1))
    assert first.completions == again.completions != other.completions
    np.testing.assert_array_equal(first.advantages, again.advantages)


def test_the_peak_counts_memory_that_is_gone_again():
    resident = start_peak()
    block = bytearray(64 * MEGABYTE)
    block[::4096] = b"\1" * len(block[::4096])
    del block
    assert 60 * MEGABYTE < peak_since(resident) < 100 * MEGABYTE
    assert peak_since(start_peak()) < 8 * MEGABYTE


def test_gradients_are_allocated_as_zeros_where_something_trains():
    model = torch.nn.Linear(3, 2)
    model.bias.requires_grad_(False)
    allocate_gradients(model.parameters())
    assert model.weight.grad is not None and not model.weight.grad.any()
    assert model.bias.grad is None


def test_a_child_that_fails_says_why():
    with pytest.raises(RuntimeError, match=r"(?s)learner_vs_trl\.py failed.*there is no model in /nowhere"):
        run_child("learner_vs_trl.py", "--model", "/nowhere", threads=1)


def test_a_ratio_needs_both_figures():
    assert ratio(3.0, 2.0) == 1.5
    assert ratio(None, 2.0) is ratio(1.0, None) is ratio(1.0, 0.0) is None
