"""Our side of a measurement, end to end in its own process, as the benchmarks start it."""

from dataclasses import replace

import numpy as np
import pytest
from learner_asyncgrpo import make_config, make_shard
from shared import Work, make_samples, measure


@pytest.fixture
def work(tiny_model):
    return Work(model=str(tiny_model), prompt=6, completion=12, groups=2, generations=4, micro_batch=4, steps=2)


def test_a_measurement_has_every_figure(work):
    figures = measure("learner_asyncgrpo.py", work)
    samples = make_samples(work)
    assert len(figures["seconds"]) == 2 and min(figures["seconds"]) > 0
    assert figures["tokens"] == samples.tokens
    assert figures["peak_bytes"] > 0 and figures["grad_norm"] > 0
    # On the first update the ratio is 1, so the loss is the mean of -advantage over tokens.
    lengths = [len(completion) for completion in samples.completions]
    assert figures["loss"] == pytest.approx(-np.dot(samples.advantages, lengths) / samples.tokens, rel=1e-5)
    # Random tokens are worse than uniform to a model that is not.
    assert figures["logprob_sum"] < samples.tokens * samples.behaviour_logprob


def test_the_shard_is_the_samples(work):
    samples = make_samples(work)
    shard = make_shard(samples, work, make_config(work))
    np.testing.assert_array_equal(shard.batch.completion_tokens, np.concatenate(samples.completions))
    np.testing.assert_array_equal(shard.batch.prompt_tokens, np.concatenate(samples.prompts))
    np.testing.assert_array_equal(shard.batch.advantages, samples.advantages)
    assert len(set(shard.batch.group_ids)) == 2


def test_samples_that_share_nothing_are_groups_of_their_own(work):
    work = replace(work, shared=False)
    shard = make_shard(make_samples(work), work, make_config(work))
    assert len(set(shard.batch.group_ids)) == 8
