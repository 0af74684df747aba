"""All families of a run, or of a replay, on a registry of their own."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from prometheus_client import CollectorRegistry

from asyncgrpo.observe.metrics.engines import EngineMetrics
from asyncgrpo.observe.metrics.evaluation import EvaluationMetrics
from asyncgrpo.observe.metrics.fields import StepRecord
from asyncgrpo.observe.metrics.flow import GENERATION_STATES, FlowMetrics
from asyncgrpo.observe.metrics.learner import LearnerMetrics
from asyncgrpo.observe.metrics.making import Maker, number
from asyncgrpo.observe.metrics.process import ProcessMetrics
from asyncgrpo.observe.timing import TimeAccount

__all__ = ["ReplayMetrics", "RunMetrics"]


class ReplayMetrics:
    """What there is without engines: the learner and the process."""

    def __init__(
        self, *, info: Mapping[str, str], target_steps: int, learner: TimeAccount, stall_seconds: float = 0.0
    ) -> None:
        """`info` becomes labels of run_info (model, version, …); `learner` accounts for LEARNER_STATES.

        Raises ConfigError when prometheus_client is told to share files between processes.
        """
        self._make = Maker()
        self.registry: CollectorRegistry = self._make.registry
        run_info = self._make.gauge("run_info", "Identity of the run; always 1", **{k: (v,) for k, v in info.items()})
        run_info.labels(**info).set(1)
        self.learner = LearnerMetrics(self._make, target_steps, learner)
        self.process = ProcessMetrics(self._make, stall_seconds)

    def retrained(self, record: StepRecord) -> None:
        """A step of a replay is done. record: its number, and what the learner says."""
        self.learner.observe(record)
        self.process.progressed()


class RunMetrics(ReplayMetrics):
    """Live families are told by whoever sees the event (`flow.finished(group)`); `observe_step` sets the others from a
    step record. After the start no series is added, but one of `reward_metric` for each name that a reward function
    logs under."""

    def __init__(
        self,
        *,
        info: Mapping[str, str],
        target_steps: int,
        slots: int,
        engines: Sequence[str],
        rewards: Sequence[str],
        learner: TimeAccount,
        generation: TimeAccount | None = None,
        max_staleness: int = 0,
        stall_seconds: float = 0.0,
    ) -> None:
        super().__init__(info=info, target_steps=target_steps, learner=learner, stall_seconds=stall_seconds)
        generation = TimeAccount(GENERATION_STATES) if generation is None else generation
        self.flow = FlowMetrics(self._make, slots, max_staleness, rewards, generation)
        self.engines = EngineMetrics(self._make, engines)
        self.evaluation: EvaluationMetrics | None = None
        """Set for a run that has evaluations."""

    def observe_step(self, record: StepRecord) -> None:
        """Take over what a step record says."""
        self.learner.observe(record)
        self.flow.observe(record)
        self.engines.trained(int(number(record, "step")))
