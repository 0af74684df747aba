"""What a prediction needs to know of a run: lengths, engines, learner, and the policy between them.

Plain numbers. Seconds are wall-clock; tokens are completion tokens; a *request* is one sample on its way.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import numpy as np

from asyncgrpo.buffer.contract import OverStale

__all__ = ["EngineModel", "LearnerModel", "Lengths", "Policy", "RunModel"]

DRAWN_GROUPS = 4096
"""Groups drawn from a distribution to stand for it."""


@dataclass(frozen=True, slots=True, eq=False)
class Lengths:
    """Tokens of completions [groups, samples]. Groups are drawn whole: samples of one prompt resemble each other."""

    tokens: np.ndarray

    @classmethod
    def lognormal(cls, mean: float, cv: float, samples: int, *, longest: int | None = None, seed: int = 0) -> Lengths:
        """Independent lengths with this mean and coefficient of variation (0: all equal), cut at `longest`."""
        rng = np.random.default_rng(seed)
        spread = math.sqrt(math.log1p(cv * cv))
        drawn = rng.lognormal(math.log(mean) - spread * spread / 2, spread, size=(DRAWN_GROUPS if cv else 1, samples))
        return cls(np.clip(np.rint(drawn), 1, longest or np.inf).astype(np.int64))

    @property
    def samples(self) -> int:
        """G, samples of a group."""
        return int(self.tokens.shape[1])

    @property
    def mean(self) -> float:
        return float(self.tokens.mean())

    @property
    def group_mean(self) -> float:
        """Tokens of a group."""
        return float(self.tokens.sum(axis=1).mean())

    def longest_of(self, groups: int) -> float:
        """Expected tokens of the longest sample among `groups` independent groups."""
        longest = np.sort(self.tokens.max(axis=1)).astype(np.float64)
        reached = (np.arange(1, len(longest) + 1) / len(longest)) ** groups  # P(longest of all <= this one)
        return float(longest @ np.diff(reached, prepend=0.0))


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineModel:
    """All engines of a run, alike. Requests on one engine advance together, one token per decode step."""

    count: int = 1
    token_seconds: float
    """Seconds of a decode step, without what each running request adds to it."""
    token_seconds_per_request: float = 0.0
    max_num_seqs: int = 256
    """Requests one engine computes at once; further ones wait in its queue."""
    max_requests: int | None = None
    """Open requests of one engine beyond which it gets no new group. None: no limit."""
    request_seconds: float = 0.0
    """From sending a request to its first decode step: transport, and the prompt."""
    pause_seconds: float = 0.0
    """Pause of one engine for one publish."""
    publish_concurrency: int = 1
    """Engines that load a version at the same time."""
    seconds_between_failures: float = math.inf
    """Mean time of one engine from its start to its failure."""
    recovery_seconds: float = 0.0
    """From a failure until the engine takes groups again."""

    def step_seconds(self, running: float) -> float:
        """Seconds of one decode step while `running` requests are computed."""
        return self.token_seconds + self.token_seconds_per_request * running

    def tokens_per_second(self, requests: float) -> float:
        """Of one engine with so many open requests."""
        running = min(requests, self.max_num_seqs)
        return running / self.step_seconds(running) if running else 0.0

    @property
    def publish_seconds(self) -> float:
        """From the start of a publish until every engine serves the version."""
        return self.pause_seconds * math.ceil(self.count / self.publish_concurrency)


@dataclass(frozen=True, slots=True, kw_only=True)
class LearnerModel:
    step_seconds: float
    """Seconds of a step that do not depend on its tokens."""
    token_seconds: float = 0.0
    """Seconds per token of its fresh groups; what else the step trains is in here too."""
    snapshot_seconds: float = 0.0
    """The learner writes a version down, before it is published."""
    overhead_seconds: float = 0.0
    """Between steps, when groups are there: batches, metrics, files."""
    holds_learner: bool = False
    """No step trains while engines load (transport `nccl`)."""

    def training_seconds(self, tokens: float) -> float:
        return self.step_seconds + self.token_seconds * tokens


@dataclass(frozen=True, slots=True, kw_only=True)
class Policy:
    """The settings that a run can choose. Names are those of the configuration."""

    groups_per_step: int
    """P: fresh groups of a step."""
    max_staleness: int = 1
    max_unfinished_groups: int | None = None
    over_stale: OverStale = "wait"
    publish_interval: int = 1
    refill_budget: int = 0
    """Most uniform groups dropped per step."""

    @property
    def slots(self) -> int:
        return (self.max_staleness + 1) * self.groups_per_step

    @property
    def unfinished_limit(self) -> int:
        """Most groups in flight or buffered."""
        return min(self.slots, self.max_unfinished_groups or self.slots)


@dataclass(frozen=True, slots=True, kw_only=True)
class RunModel:
    """One run. Frozen: variants are made with `with_policy` and `dataclasses.replace`."""

    lengths: Lengths
    engines: EngineModel
    learner: LearnerModel
    policy: Policy
    reward_seconds: float = 0.0
    """From a group's last completion until it is scored."""
    failed_groups_ratio: float = 0.0
    """Share of groups that fail, at their end."""
    uniform_groups_ratio: float = 0.0
    """Share of groups in which all rewards are equal."""

    @property
    def tokens_per_step(self) -> float:
        return self.policy.groups_per_step * self.lengths.group_mean

    def with_policy(self, **changes: object) -> RunModel:
        return replace(self, policy=replace(self.policy, **changes))  # type: ignore[arg-type]
