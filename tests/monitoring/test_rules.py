"""Recording rules and alerts: what promtool says of them, and that each alert is tested and has its runbook entry."""

import subprocess
from pathlib import Path

import pytest
import yaml
from monitoring_cases import MONITORING, RUNBOOK, alerts, anchors, recorded
from prometheus_client.exposition import generate_latest

from asyncgrpo.observe.metrics import LEARNER_STATES, EvaluationMetrics, RunMetrics
from asyncgrpo.observe.timing import TimeAccount

RULES = sorted((MONITORING / "rules").glob("*.yml"))
TESTS = sorted((MONITORING / "rules" / "tests").glob("*.yml"))
NEVER_SILENT = "AsyncGRPOWatchdog"


def check(command: list[str | Path], stdin: bytes | None = None) -> str:
    done = subprocess.run(command, input=stdin, capture_output=True, timeout=60)
    said = (done.stdout + done.stderr).decode()
    assert done.returncode == 0, said
    return said


def test_promtool_has_nothing_to_say_against_the_rules(promtool: str) -> None:
    check([promtool, "check", "rules", "--lint=all", "--lint-fatal", *RULES])


def test_alerts_fire_and_stay_silent(promtool: str) -> None:
    assert "SUCCESS" in check([promtool, "test", "rules", *TESTS])


def test_the_configuration_is_one_that_prometheus_takes(promtool: str) -> None:
    check([promtool, "check", "config", MONITORING / "prometheus.yml"])


def test_promtool_has_nothing_to_say_against_the_metrics(promtool: str) -> None:
    metrics = RunMetrics(
        info={"model": "m"},
        target_steps=1,
        slots=1,
        engines=["engine-0"],
        rewards=["r"],
        learner=TimeAccount(LEARNER_STATES),
    )
    EvaluationMetrics(metrics.registry, ["r"], (1,))
    assert check([promtool, "check", "metrics"], generate_latest(metrics.registry)) == ""


@pytest.mark.parametrize("alert", alerts(), ids=lambda alert: alert["alert"])
def test_an_alert_fires_in_a_test_and_is_silent_in_another(alert: dict[str, str]) -> None:
    """Promtool runs them; a test without expectations would pass too."""
    name = alert["alert"]
    tests = [test for file in TESTS for test in yaml.safe_load(file.read_text())["tests"] if test["name"] == name]
    (test,) = tests
    cases = [case for case in test["promql_expr_test"] if f'alertname="{name}", alertstate="firing"' in case["expr"]]
    fired = [case["exp_samples"] for case in cases if case["exp_samples"]]
    assert fired
    if name != NEVER_SILENT:
        assert any(not case["exp_samples"] for case in cases)
        runs = {series["series"].partition('run="')[2].partition('"')[0] for series in test["input_series"]}
        assert runs - {run for samples in fired for sample in samples for run in runs if f'"{run}"' in sample["labels"]}


@pytest.mark.parametrize("alert", alerts(), ids=lambda alert: alert["alert"])
def test_an_alert_says_whose_it_is_and_what_to_do(alert: dict[str, dict[str, str]]) -> None:
    assert alert["labels"]["severity"] in ("page", "ticket", "none")
    page, _, anchor = alert["annotations"]["runbook"].partition("#")
    assert page == f"docs/{RUNBOOK.name}"
    assert anchor == str(alert["alert"]).lower()
    assert anchor in anchors()
    assert alert["annotations"]["summary"]
    assert alert["annotations"]["description"].endswith(".")


def test_names_of_recorded_series_say_level_metric_and_operation() -> None:
    assert all(name.startswith("run:asyncgrpo_") and name.count(":") == 2 for name in recorded())
