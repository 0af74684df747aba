from asyncgrpo.learning.report import step_metrics
from asyncgrpo.observe.metrics import REPORTED_AS


def test_learner_reports_what_is_recorded() -> None:
    reported = step_metrics([], [], updates_planned=0, learning_rate=1e-6, has_reference=True)
    assert set(REPORTED_AS) - set(reported) == set()
