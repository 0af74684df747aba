"""Watches the numbers of a run for signs that it has gone wrong. A pure state machine over step records: no I/O.

| guard            | is bad when                                                           | field                   |
|------------------|-----------------------------------------------------------------------|-------------------------|
| mismatch         | above a threshold                                                     | KL behaviour / current  |
| reward_collapse  | below a share of the best mean over as many steps as patience has     | mean reward             |
| entropy_collapse | below a threshold                                                     | entropy per token       |
| kl_spike         | above a multiple of its median over the last 32 steps, and 0.05 nats  | every KL divergence     |
| gradient_spike   | above a multiple of its median over the last 32 steps                 | gradient norm           |

Each wants to see it `patience` steps in a row, and then says so after every step until it ends. A step without a value
(no update was made, no reference is kept) neither counts nor ends a row.

Invariant: the same records give the same alarms, whether or not the state was saved and restored in between.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from asyncgrpo.config.guards import GuardAction, GuardsSection
from asyncgrpo.observe.metrics import StepRecord, labels_of

GRAVITY: Sequence[GuardAction] = ("off", "warn", "pause", "rollback", "stop")
GRAVE: Sequence[GuardAction] = ("rollback", "stop")
WINDOW = 32
"""Steps whose median a spike is held against."""
FEWEST = 8
"""Of them, before there is a median to speak of."""
KL_FLOOR_NATS = 0.05
"""A divergence below is none to worry about, whatever it was before."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Alarm:
    """What one guard makes of a step."""

    guard: str
    action: GuardAction
    """Never `off`."""
    step: int
    value: float
    limit: float
    message: str
    """For a person: what, how far, for how long, what it may mean."""


class Guards:
    """One per run. Hand every step's record to `after`, in order."""

    def __init__(self, section: GuardsSection) -> None:
        self._section = section
        self._rows: dict[str, int] = {}  # by guard and field: bad steps in a row
        self._history: dict[str, list[float]] = {}  # by guard and field: the last values
        self._best_reward: float | None = None
        self._rollbacks = 0

    def after(self, record: StepRecord) -> list[Alarm]:
        """Alarms of a step, the gravest first. However many of them want a rollback, it is counted as one."""
        step = int(record["step"] or 0)
        alarms = [
            *self._mismatch(step, record),
            *self._reward_collapse(step, record),
            *self._entropy_collapse(step, record),
            *self._kl_spike(step, record),
            *self._gradient_spike(step, record),
        ]
        alarms.sort(key=lambda alarm: -GRAVITY.index(alarm.action))
        if any(alarm.action == "rollback" for alarm in alarms):
            self._rollbacks += 1
        return alarms

    @property
    def is_calm(self) -> bool:
        """No guard that would go back, or end the run, sees anything bad at the moment: a checkpoint taken now is one
        to go back to. What is only warned of may last for the whole run."""
        return not any(row for key, row in self._rows.items() if self._action(key.partition("/")[0]) in GRAVE)

    def forgive(self) -> None:
        """Start counting anew, as when a person has looked and lets the run go on."""
        self._rows.clear()

    def state(self) -> dict[str, Any]:
        """For a checkpoint: anything JSON can hold."""
        return {
            "rows": dict(self._rows),
            "history": {name: list(values) for name, values in self._history.items()},
            "best_reward": self._best_reward,
            "rollbacks": self._rollbacks,
            "is_calm": self.is_calm,
        }

    def restore(self, state: Mapping[str, Any]) -> None:
        """Go back to a state. Rollbacks since then still count: they do not take themselves back."""
        self._rows = dict(state["rows"])
        self._history = {name: list(values) for name, values in state["history"].items()}
        self._best_reward = state["best_reward"]
        self.count_rollbacks(state)

    def count_rollbacks(self, state: Mapping[str, Any]) -> None:
        """Those of a `state` that was left behind by one of them."""
        self._rollbacks = max(self._rollbacks, state["rollbacks"])

    def _mismatch(self, step: int, record: StepRecord) -> list[Alarm]:
        value, limit = _of_learner(record, "policy_kl_nats/behaviour_current"), self._section.mismatch_nats
        said = "engines and learner stay {value:.2f} nats per token apart (KL of behaviour from current policy): an "
        said += "engine may not load what is published, or the learning rate is too high"
        return self._judge("mismatch", "", step, value, limit, _above(value, limit), said)

    def _reward_collapse(self, step: int, record: StepRecord) -> list[Alarm]:
        value, patience = _number(record, "reward_mean"), self._section.reward_collapse_patience
        if value is None:
            return []
        best = self._best_reward
        recent = self._remember("reward_collapse", value, patience)
        if len(recent) == patience:
            self._best_reward = max(statistics.fmean(recent), -math.inf if best is None else best)
        limit = math.nan if best is None or best <= 0 else self._section.reward_collapse_fraction * best
        said = f"mean reward is {{value:.3g}}, its best was {best or 0:.3g} (mean of {patience} steps)"
        return self._judge("reward_collapse", "", step, value, limit, value < limit, said)

    def _entropy_collapse(self, step: int, record: StepRecord) -> list[Alarm]:
        value, limit = _of_learner(record, "policy_entropy_nats"), self._section.entropy_collapse_nats
        said = "the policy's entropy is {value:.2g} nats per token: samples of a prompt are nearly all alike"
        return self._judge("entropy_collapse", "", step, value, limit, value is not None and value < limit, said)

    def _kl_spike(self, step: int, record: StepRecord) -> list[Alarm]:
        alarms = []
        for label in labels_of(record, "policy_kl_nats"):
            value = _of_learner(record, f"policy_kl_nats/{label}")
            limit = max(self._usual("kl_spike", label, value) * self._section.kl_spike_factor, KL_FLOOR_NATS)
            said = f"KL of {label.replace('_', ' from ')} policy jumped to {{value:.2g}} nats per token"
            alarms += self._judge("kl_spike", label, step, value, limit, _above(value, limit), said)
        return alarms

    def _gradient_spike(self, step: int, record: StepRecord) -> list[Alarm]:
        value = _of_learner(record, "gradient_norm")
        usual = self._usual("gradient_spike", "", value) or math.inf  # 0: most steps had nothing to learn from
        limit = usual * self._section.gradient_spike_factor
        said = "the gradient norm jumped to {value:.3g}"
        return self._judge("gradient_spike", "", step, value, limit, _above(value, limit), said)

    def _judge(
        self, guard: str, label: str, step: int, value: float | None, limit: float, is_bad: bool, said: str
    ) -> list[Alarm]:
        """Count a step for or against a row; an alarm if the row is long enough."""
        action = self._action(guard)
        patience: int = getattr(self._section, f"{guard}_patience")
        if value is None:
            return []
        key = f"{guard}/{label}"
        row = self._rows[key] = self._rows.get(key, 0) + 1 if is_bad else 0
        if row < patience or action == "off":
            return []
        text = f"{said.format(value=value)}; {row} step{'s' if row > 1 else ''} in a row beyond {limit:.3g}"
        if action == "rollback" and self._rollbacks >= self._section.max_rollbacks:
            action, text = "stop", f"{text}; guards.max_rollbacks={self._section.max_rollbacks} are used up"
        message = f"step {step}, guard {guard}: {text}"
        return [Alarm(guard=guard, action=action, step=step, value=value, limit=limit, message=message)]

    def _action(self, guard: str) -> GuardAction:
        action: GuardAction = getattr(self._section, f"{guard}_action")
        return action

    def _usual(self, guard: str, label: str, value: float | None) -> float:
        """Median of the steps before, infinite while there are few; then remember this one."""
        key = f"{guard}/{label}"
        before = list(self._history.get(key, ()))
        if value is not None:
            self._remember(key, value, WINDOW)
        return statistics.median(before) if len(before) >= FEWEST else math.inf

    def _remember(self, key: str, value: float, most: int) -> list[float]:
        self._history[key] = [*self._history.get(key, ()), value][-most:]
        return self._history[key]


def _above(value: float | None, limit: float) -> bool:
    return value is not None and value > limit


def _of_learner(record: StepRecord, field: str) -> float | None:
    """None also if the step made no update: its metrics are then 0 for want of tokens."""
    return _number(record, field) if _number(record, "optimiser_updates") else None


def _number(record: StepRecord, field: str) -> float | None:
    value = record.get(field)
    return float(value) if isinstance(value, (int, float)) and math.isfinite(value) else None
