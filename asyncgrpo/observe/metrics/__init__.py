"""The one place that names metrics: `fields` those of a step record, `families` those under /metrics, `evaluation` both
of an evaluation."""

from asyncgrpo.observe.metrics.evaluation import EVALUATION_FIELDS, EvaluationMetrics, EvaluationRecord
from asyncgrpo.observe.metrics.families import (
    DROP_REASONS,
    GENERATION_STATES,
    LEARNER_FAMILIES,
    LEARNER_STATES,
    RunMetrics,
)
from asyncgrpo.observe.metrics.fields import LEARNER_FIELDS, REPORTED_AS, STEP_FIELDS, StepRecord, labels_of

__all__ = [
    "DROP_REASONS",
    "EVALUATION_FIELDS",
    "GENERATION_STATES",
    "LEARNER_FAMILIES",
    "LEARNER_FIELDS",
    "LEARNER_STATES",
    "REPORTED_AS",
    "STEP_FIELDS",
    "EvaluationMetrics",
    "EvaluationRecord",
    "RunMetrics",
    "StepRecord",
    "labels_of",
]
