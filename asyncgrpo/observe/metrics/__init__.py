"""The one place that names metrics: `fields` those of a step record, `evaluation` those of an evaluation, and the
others those under /metrics, by what they are about. `families` puts them together."""

from asyncgrpo.observe.metrics.evaluation import EVALUATION_FIELDS, EvaluationMetrics, EvaluationRecord
from asyncgrpo.observe.metrics.families import ReplayMetrics, RunMetrics
from asyncgrpo.observe.metrics.fields import LEARNER_FIELDS, REPORTED_AS, STEP_FIELDS, StepRecord, labels_of
from asyncgrpo.observe.metrics.flow import DROP_REASONS, GENERATION_STATES, SLOT_STATES
from asyncgrpo.observe.metrics.info import run_info
from asyncgrpo.observe.metrics.learner import LEARNER_FAMILIES, LEARNER_STATES

__all__ = [
    "DROP_REASONS",
    "EVALUATION_FIELDS",
    "GENERATION_STATES",
    "LEARNER_FAMILIES",
    "LEARNER_FIELDS",
    "LEARNER_STATES",
    "REPORTED_AS",
    "SLOT_STATES",
    "STEP_FIELDS",
    "EvaluationMetrics",
    "EvaluationRecord",
    "ReplayMetrics",
    "RunMetrics",
    "StepRecord",
    "labels_of",
    "run_info",
]
