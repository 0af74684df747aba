"""From a recorded run to a model of it."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence

import numpy as np

from asyncgrpo.config import RunConfig
from asyncgrpo.errors import RunFolderError
from asyncgrpo.planning.model import EngineModel, LearnerModel, Lengths, Policy, RunModel
from asyncgrpo.planning.pace import fit_pace, nonnegative_least_squares
from asyncgrpo.planning.recorded import Record, Recording, Samples

__all__ = ["fit", "lengths_of", "policy_of"]

VLLM_MAX_NUM_SEQS = 256
FEWEST_SAMPLES = 8


def fit(recording: Recording) -> RunModel:
    """Model of the recorded run: its paces, its lengths, its settings. Raises RunFolderError for too little data."""
    config, samples, steps = recording.config, recording.samples, recording.steps
    if len(samples) < FEWEST_SAMPLES:
        raise RunFolderError(f"{len(samples)} samples are too few to plan from; record at least {FEWEST_SAMPLES}")
    count = len(np.unique(samples.engine))
    engines = _engines(samples, steps, config, count)
    per_step = max(1, len(steps))
    failed = _counts(steps[-1], "failed", "environment", "reward")
    admitted = max(1, int(steps[-1].get("groups_admitted", 0)))
    return RunModel(
        lengths=lengths_of(samples),
        engines=engines,
        learner=_learner(samples, steps, config),
        policy=policy_of(config),
        reward_seconds=_reward_seconds(samples),
        failed_groups_ratio=min(0.9, failed / admitted),
        uniform_groups_ratio=sum(float(step.get("uniform_groups_ratio") or 0.0) for step in steps) / per_step,
    )


def policy_of(config: RunConfig) -> Policy:
    buffer, per_step = config.buffer, config.fresh_groups
    refills = math.floor(buffer.refill_budget * per_step) if buffer.filter_uniform_groups else 0
    return Policy(
        groups_per_step=per_step,
        max_staleness=buffer.max_staleness,
        max_unfinished_groups=buffer.max_unfinished_groups,
        over_stale=buffer.over_stale,
        publish_interval=config.weights.publish_interval,
        refill_budget=refills,
    )


def _engines(samples: Samples, steps: Sequence[Record], config: RunConfig, count: int) -> EngineModel:
    limit = config.engines.max_num_seqs or VLLM_MAX_NUM_SEQS
    pace = fit_pace(samples, limit)
    publish = _median([float(step["publish_seconds"]) for step in steps if step.get("publish_seconds")])
    rounds = math.ceil(count / config.weights.publish_concurrency)
    cap = config.engines.max_concurrent_requests
    return EngineModel(
        count=count,
        token_seconds=pace.token_seconds,
        token_seconds_per_request=pace.token_seconds_per_request,
        max_num_seqs=limit,
        max_requests=cap if isinstance(cap, int) else None,
        request_seconds=pace.request_seconds,
        pause_seconds=publish / rounds if publish else pace.pause_seconds,
        publish_concurrency=config.weights.publish_concurrency,
    )


def lengths_of(samples: Samples) -> Lengths:
    """Finished groups as they were; those cut or short of samples are filled up from their own."""
    order = np.argsort(samples.group, kind="stable")
    _, starts = np.unique(samples.group[order], return_index=True)
    groups = np.split(samples.tokens[order], starts[1:])
    width = max(len(group) for group in groups)
    return Lengths(np.stack([np.resize(np.maximum(group, 1), width) for group in groups]))


def _learner(samples: Samples, steps: Sequence[Record], config: RunConfig) -> LearnerModel:
    warm = steps[1:] if len(steps) > 3 else steps  # the first step also warms up
    tokens = np.array([float(step["tokens_trained"]) for step in warm])
    seconds = np.array([float(step["training_seconds"]) for step in warm])
    fixed, per_token = nonnegative_least_squares(np.stack([np.ones(len(warm)), tokens], axis=1), seconds)
    # A snapshot may wait for the publish before it: the shortest did not.
    snapshots = sorted(float(step["snapshot_seconds"]) for step in steps if step.get("snapshot_seconds"))
    return LearnerModel(
        step_seconds=float(fixed),
        token_seconds=float(per_token),
        snapshot_seconds=snapshots[len(snapshots) // 4] if snapshots else 0.0,
        overhead_seconds=_overhead(samples, steps),
        holds_learner=config.weights.transport == "nccl",
    )


def _overhead(samples: Samples, steps: Sequence[Record]) -> float:
    """Seconds per step that count as waiting, though the step's groups were there."""
    found = []
    for before, step in itertools.pairwise(steps):
        entered = samples.entered[samples.step == step["step"]]
        if len(entered):
            waited = max(0.0, float(entered.max()) - float(before["time"]))
            found.append(float(step["waiting_seconds"]) - waited)
    return max(0.0, _median(found))


def _reward_seconds(samples: Samples) -> float:
    last: dict[int, float] = {}
    for group, finished in zip(samples.group.tolist(), samples.finished.tolist(), strict=True):
        last[group] = max(last.get(group, finished), finished)
    waits = [entered - last[group] for group, entered in zip(samples.group, samples.entered, strict=True)]
    return max(0.0, _median(waits))


def _counts(step: Record, *reasons: str) -> int:
    kinds = ("groups_dropped", "groups_reissued")
    return sum(int(step.get(f"{kind}/{reason}") or 0) for kind in kinds for reason in reasons)


def _median(values: Sequence[float]) -> float:
    return float(np.median(values)) if len(values) else 0.0
