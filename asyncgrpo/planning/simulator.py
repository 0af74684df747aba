"""A run, simulated: engines and learner are modelled, admission, staleness and choice are the run's own contract.

The same two loops as in `orchestrator.py`, as events:

    a slot is free -> admit a group -> engines -> scored -> enter
    P groups may be taken -> take -> train -> consumed -> snapshot -> publish in the background -> published
"""

from __future__ import annotations

import numpy as np

from asyncgrpo.buffer.contract import StalenessContract
from asyncgrpo.planning.engines import SimulatedPool
from asyncgrpo.planning.events import Events
from asyncgrpo.planning.groups import SimulatedGroup
from asyncgrpo.planning.model import RunModel
from asyncgrpo.planning.outcome import Outcome, StepOutcome

__all__ = ["simulate"]


def simulate(model: RunModel, steps: int, seed: int = 0) -> Outcome:
    """`steps` steps from an empty buffer, as a run of that many takes them. The same seed gives the same outcome."""
    return _Simulation(model, steps, seed).run()


class _Simulation:
    def __init__(self, model: RunModel, steps: int, seed: int) -> None:
        policy = model.policy
        self.model, self.steps = model, steps
        self.rng = np.random.default_rng(seed)
        self.events = Events()
        self.contract = StalenessContract(
            max_staleness=policy.max_staleness,
            groups_per_step=policy.groups_per_step,
            total_groups=steps * policy.groups_per_step,
            max_unfinished_groups=policy.max_unfinished_groups,
            over_stale=policy.over_stale,
            refill_budget=policy.refill_budget,
        )
        self.pool = SimulatedPool(model.engines, self.events, self.rng, self._generated)
        self.finished: dict[int, SimulatedGroup] = {}
        self.outcomes: list[StepOutcome] = []
        self.learner_is_free = True
        self.publishing = False
        self.after_publish: list[int] = []  # a version that waits for the publish before it
        self.step_began = self.snapshot_began = 0.0
        self.idle_since: float | None = 0.0
        self.idle = 0.0  # seconds of this step without a group in flight
        self.generated_before = 0

    def run(self) -> Outcome:
        self._admit()
        self.events.run()
        return Outcome(self.outcomes, dict(self.contract.fates))

    def _admit(self) -> None:
        table = self.model.lengths.tokens
        while self.contract.can_admit():
            group_id, _ = self.contract.admit()
            if self.idle_since is not None:
                self.idle += self.events.now - self.idle_since
                self.idle_since = None
            lengths: list[int] = table[self.rng.integers(len(table))].tolist()
            self.pool.start(SimulatedGroup(group_id, lengths), lengths)

    def _generated(self, group: SimulatedGroup) -> None:
        if self.model.reward_seconds:
            self.events.after(self.model.reward_seconds, self._scored, group)
        else:
            self._scored(group)

    def _scored(self, group: SimulatedGroup) -> None:
        if self._happens(self.model.failed_groups_ratio):
            self.contract.drop(group.group_id, "failed")
        elif self.contract.enter(
            group.group_id, group.oldest, group.newest, is_uniform=self._happens(self.model.uniform_groups_ratio)
        ):
            self.finished[group.group_id] = group
        if not self.contract.in_flight:
            self.idle_since = self.events.now
        self._admit()
        self._take()

    def _happens(self, ratio: float) -> bool:
        return ratio > 0 and float(self.rng.random()) < ratio

    def _take(self) -> None:
        """Begin a step if the learner is free and the contract has one."""
        if not self.learner_is_free or len(self.outcomes) == self.steps:
            return
        for group_id in self.contract.over_stale_groups():
            self.contract.drop(group_id, "stale", reissue=self.contract.over_stale == "drop_reissue")
            del self.finished[group_id]
        chosen = self.contract.choose()
        if chosen is not None:
            buffered = self.contract.buffered
            self.contract.take(chosen)
            groups = [self.finished.pop(group_id) for group_id in chosen]
            self.learner_is_free = False
            learner = self.model.learner
            training = learner.training_seconds(sum(group.tokens for group in groups))
            self.events.after(learner.overhead_seconds + training, self._trained, groups, training, buffered)
        self._admit()

    def _trained(self, groups: list[SimulatedGroup], training: float, buffered: int) -> None:
        version = self.contract.consumed()
        self.snapshot_began = self.events.now
        step, interval = len(self.outcomes) + 1, self.model.policy.publish_interval
        self.trained = groups, training, buffered, version - 1
        if step == self.steps or version % interval:
            self._step_ends()
        elif self.publishing:
            self.after_publish.append(version)
        else:
            self._snapshot(version)

    def _snapshot(self, version: int) -> None:
        self.events.after(self.model.learner.snapshot_seconds, self._publish, version)

    def _publish(self, version: int) -> None:
        self.publishing = True
        self.pool.publish(version, self._published)
        if not self.model.learner.holds_learner:
            self._step_ends()

    def _published(self, version: int) -> None:
        self.publishing = False
        self.contract.published(max(self.contract.served_version, min(version, self.pool.served_version)))
        self._admit()
        if self.model.learner.holds_learner:
            self._step_ends()
        elif self.after_publish:
            self._snapshot(self.after_publish.pop())

    def _step_ends(self) -> None:
        now = self.events.now
        groups, training, buffered, version = self.trained
        if self.idle_since is not None:
            self.idle += now - self.idle_since
            self.idle_since = now
        self.outcomes.append(
            StepOutcome.of(
                groups,
                version,
                seconds=now - self.step_began,
                training_seconds=training,
                snapshot_seconds=now - self.snapshot_began,
                idle_seconds=self.idle,
                buffered=buffered,
                generated_tokens=self.pool.generated_tokens - self.generated_before,
            )
        )
        self.step_began, self.idle, self.generated_before = now, 0.0, self.pool.generated_tokens
        if len(self.outcomes) == self.steps:
            self.events.stop()
        self.learner_is_free = True
        self._take()
