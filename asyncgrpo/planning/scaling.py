"""Keeps a simulation affordable: a smaller run that behaves as a large one does."""

from __future__ import annotations

from dataclasses import replace

from asyncgrpo.planning.model import EngineModel, RunModel

__all__ = ["affordable", "scaled_down", "scaled_learner"]

SAMPLES = 40_000
"""Less than a second of simulation."""
FEWEST_GROUPS = 64
"""Of a step, after scaling: with fewer, the tail of lengths would differ."""


def affordable(model: RunModel, steps: int, samples: int = SAMPLES) -> RunModel:
    """The model itself if `steps` steps of it have no more than `samples` samples, else scaled down towards that."""
    per_step = model.policy.groups_per_step * model.lengths.samples
    return scaled_down(model, per_step * steps / samples)


def scaled_down(model: RunModel, factor: float) -> RunModel:
    """One `factor`-th of the groups, on fewer engines or, where they are few, on smaller ones; seconds per step stay.

    Every engine has the same load as before for its size, and a publish takes as long. What changes is the tail: the
    longest of fewer groups is shorter, by a little where FEWEST_GROUPS are left.
    """
    policy, learner, seats = model.policy, model.learner, model.engines.max_num_seqs
    groups = max(1, round(policy.groups_per_step / max(1.0, factor)), min(FEWEST_GROUPS, policy.groups_per_step))
    ratio = policy.groups_per_step / groups
    count = max(1, round(model.engines.count / ratio))
    smaller = max(1.0, min(ratio * count / model.engines.count, seats / model.lengths.samples))
    if groups == policy.groups_per_step:
        return model
    cap = policy.max_unfinished_groups
    return replace(
        model,
        engines=_smaller_engines(replace(model.engines, count=count), model.engines.count / count, smaller),
        learner=replace(learner, token_seconds=learner.token_seconds * ratio),
        policy=replace(
            policy,
            groups_per_step=groups,
            max_unfinished_groups=None if cap is None else max(groups, round(cap / ratio)),
            refill_budget=round(policy.refill_budget / ratio),
        ),
    )


def _smaller_engines(engines: EngineModel, fewer: float, smaller: float) -> EngineModel:
    """Each computes one `smaller`-th of the requests in as many seconds; a `fewer`-th of them load at a time."""
    return replace(
        engines,
        token_seconds_per_request=engines.token_seconds_per_request * smaller,
        max_num_seqs=max(1, round(engines.max_num_seqs / smaller)),
        max_requests=None if engines.max_requests is None else max(1, round(engines.max_requests / smaller)),
        publish_concurrency=max(1, round(engines.publish_concurrency / fewer)),
    )


def scaled_learner(model: RunModel, factor: float) -> RunModel:
    """Training takes `factor` times as long."""
    learner = model.learner
    fixed, per_token = learner.step_seconds * factor, learner.token_seconds * factor
    return replace(model, learner=replace(learner, step_seconds=fixed, token_seconds=per_token))
