import math

import numpy as np
import pytest
from observe_cases import group, measures, report, sample

from asyncgrpo.observe.metrics import STEP_FIELDS
from asyncgrpo.observe.reuse import ReuseMeter
from asyncgrpo.observe.steps import step_record
from asyncgrpo.types import Batch


def batch_of(version: int, *samples: tuple[int, int, int, int], masked: int = 0) -> Batch:
    """Samples of (group, uses, tokens, version of the tokens); the first `masked` tokens are not trained."""
    group_ids, uses, lengths, versions = (np.array(column, dtype=np.int32) for column in zip(*samples, strict=True))
    total = int(lengths.sum())
    return Batch(
        version=version,
        prompt_tokens=np.ones(len(samples), dtype=np.int32),
        prompt_lengths=np.ones(len(samples), dtype=np.int32),
        completion_tokens=np.ones(total, dtype=np.int32),
        completion_lengths=lengths,
        behaviour_logprobs=np.zeros(total, dtype=np.float32),
        token_versions=np.repeat(versions, lengths),
        loss_mask=np.arange(total) >= masked,
        denominator_tokens=lengths,
        advantages=np.ones(len(samples), dtype=np.float32),
        is_scored=np.ones(len(samples), dtype=bool),
        sample_weights=np.ones(len(samples), dtype=np.float32),
        uses=uses,
        group_ids=group_ids,
    )


def test_without_replay_reuse_is_the_passes_of_a_step() -> None:
    fields = ReuseMeter(num_iterations=3).step(batch_of(4, (0, 0, 5, 4), (0, 0, 2, 3)), stored=0)
    assert fields["reuse_mean"] == 3.0
    assert (fields["replayed_groups"], fields["replayed_tokens"], fields["replay_age_max"]) == (0, 0, 0)
    assert math.isnan(fields["replay_age_mean"]) and math.isnan(fields["replay_uses_mean"])


def test_replay_adds_passes_and_no_tokens() -> None:
    meter = ReuseMeter(num_iterations=2)
    meter.step(batch_of(0, (0, 0, 4, 0), (0, 0, 6, 0)), stored=1)
    # 2 · 10 passes over 10 tokens; then 2 · (5 + 8 + 2) over 5 more: 50 / 15
    replayed = [(0, 1, 3, 0), (0, 1, 5, 1), (1, 3, 2, 2)]
    fields = meter.step(batch_of(4, (7, 0, 5, 4), *replayed), stored=2)
    assert fields["reuse_mean"] == pytest.approx(50 / 15)
    assert (fields["replayed_groups"], fields["replayed_tokens"], fields["replay_groups"]) == (2, 10, 2)
    assert fields["replay_age_mean"] == pytest.approx((3 * 4 + 5 * 3 + 2 * 2) / 10)
    assert fields["replay_age_max"] == 4
    assert fields["replay_uses_mean"] == 3.0  # the second time of one, the fourth of the other


def test_tokens_that_are_not_trained_are_not_reused() -> None:
    meter = ReuseMeter(num_iterations=1)
    fields = meter.step(batch_of(4, (7, 0, 5, 4), (0, 1, 3, 0), masked=2), stored=1)
    assert fields["reuse_mean"] == pytest.approx(6 / 3)
    assert math.isnan(ReuseMeter(num_iterations=1).step(batch_of(4, (7, 0, 2, 4), masked=2), 0)["reuse_mean"])


def test_reuse_is_part_of_a_steps_record_and_documented() -> None:
    fields = ReuseMeter(num_iterations=1).step(batch_of(2, (7, 0, 5, 2)), stored=3)
    assert set(fields) <= set(STEP_FIELDS)
    record = step_record(3, [group([sample(0.0, (1,)), sample(1.0, (2,))])], 2, report(), measures(), fields)
    assert {name: record[name] for name in ("reuse_mean", "replay_groups")} == {"reuse_mean": 1.0, "replay_groups": 3}


def test_a_restored_meter_counts_on() -> None:
    whole, resumed = ReuseMeter(num_iterations=2), ReuseMeter(num_iterations=2)
    whole.step(batch_of(4, (0, 0, 5, 4)), stored=1)
    resumed.restore(whole.state())
    later = batch_of(5, (1, 0, 3, 5), (0, 1, 5, 4))
    assert resumed.step(later, stored=2) == whole.step(later, stored=2)
