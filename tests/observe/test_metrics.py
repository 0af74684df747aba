from collections.abc import Iterator
from dataclasses import replace

import pytest
from observe_cases import group, measures, report, sample
from prometheus_client.exposition import generate_latest
from prometheus_client.parser import text_string_to_metric_families

from asyncgrpo.errors import ConfigError
from asyncgrpo.observe.metrics import LEARNER_FAMILIES, LEARNER_FIELDS, LEARNER_STATES, REPORTED_AS, RunMetrics
from asyncgrpo.observe.metrics.families import refuse_multiprocess_mode
from asyncgrpo.observe.steps import step_record
from asyncgrpo.observe.timing import TimeAccount


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


def run_metrics(clock: Clock | None = None) -> RunMetrics:
    return RunMetrics(
        info={"run": "demo", "model": "tiny"},
        target_steps=14,
        slots=16,
        engines=["engine-0", "engine-1"],
        rewards=["length"],
        learner=TimeAccount(LEARNER_STATES, clock or Clock()),
    )


def series(metrics: RunMetrics) -> dict[str, float]:
    """Everything /metrics shows, as `name{label="value"}`."""

    def named() -> Iterator[tuple[str, float]]:
        for family in text_string_to_metric_families(generate_latest(metrics.registry).decode()):
            for s in family.samples:
                labels = ",".join(f'{key}="{value}"' for key, value in sorted(s.labels.items()))
                yield s.name + (f"{{{labels}}}" if labels else ""), s.value

    return dict(named())


def test_every_series_is_there_from_the_start_and_counters_begin_at_zero() -> None:
    shown = series(run_metrics())
    assert shown['asyncgrpo_run_info{model="tiny",run="demo"}'] == 1
    assert shown["asyncgrpo_learner_target_steps"] == 14
    assert shown["asyncgrpo_buffer_slots"] == 16
    zero = [
        'asyncgrpo_groups_total{fate="trained"}',
        'asyncgrpo_groups_total{fate="dropped_stale"}',
        'asyncgrpo_groups_total{fate="dropped_failed"}',
        'asyncgrpo_groups_total{fate="dropped_run_ended"}',
        'asyncgrpo_policy_version{holder="learner"}',
        'asyncgrpo_policy_version{holder="engine-1"}',
        'asyncgrpo_generation_requests_in_flight{engine="engine-1"}',
        'asyncgrpo_learner_seconds_total{state="snapshot"}',
        'asyncgrpo_reward_mean{reward="length"}',
        'asyncgrpo_reward_failures_total{reason="late",reward="length"}',
        'asyncgrpo_reward_failures_total{reason="value",reward="length"}',
        'asyncgrpo_policy_kl_nats{between="behaviour_proximal"}',
        'asyncgrpo_clipped_tokens_ratio{side="high"}',
        'asyncgrpo_staleness_versions_bucket{le="+Inf"}',
        "asyncgrpo_groups_admitted_total",
        "asyncgrpo_generated_tokens_total",
    ]
    assert {name: shown.get(name) for name in zero} == dict.fromkeys(zero, 0.0)


def test_no_series_appears_with_the_first_step() -> None:
    metrics = run_metrics()
    before = set(series(metrics))
    every_field = dict.fromkeys(REPORTED_AS, 0.5)
    metrics.observe_step(step_record(1, [group([sample(0.0), sample(1.0)])], 0, report(**every_field), measures()))
    assert set(series(metrics)) == before


def test_step_is_shown() -> None:
    metrics = run_metrics()
    groups = [
        group([sample(0.0, (1, 2)), sample(1.0, (2, 2))]),
        group([sample(3.0, (2,)), sample(3.0, (2,))]),
    ]
    known = {"loss": 0.25, "kl/behaviour_proximal_k3": 0.01, "clip/low_fraction": 0.1, "masked/gate_fraction": 0.3}
    metrics.observe_step(step_record(3, groups, 2, report(**known), measures()))
    shown = series(metrics)
    assert shown["asyncgrpo_learner_step"] == 3
    assert shown['asyncgrpo_policy_version{holder="learner"}'] == 3
    assert shown['asyncgrpo_reward_mean{reward="total"}'] == 1.75
    assert shown['asyncgrpo_groups_total{fate="trained"}'] == 2
    assert shown["asyncgrpo_uniform_groups_total"] == 1
    assert shown["asyncgrpo_trained_tokens_total"] == 6
    assert shown['asyncgrpo_staleness_versions_bucket{le="0.0"}'] == 5
    assert shown['asyncgrpo_staleness_versions_bucket{le="1.0"}'] == 6
    assert shown["asyncgrpo_staleness_versions_sum"] == 1
    assert shown["asyncgrpo_step_duration_seconds_sum"] == 10
    assert shown["asyncgrpo_loss"] == 0.25
    assert shown['asyncgrpo_policy_kl_nats{between="behaviour_proximal"}'] == 0.01
    assert shown['asyncgrpo_clipped_tokens_ratio{side="low"}'] == 0.1
    assert shown['asyncgrpo_masked_tokens_ratio{by="gate"}'] == 0.3


def test_nan_leaves_a_gauge_at_its_last_value() -> None:
    metrics = run_metrics()
    for loss in (0.25, float("nan")):
        metrics.observe_step(step_record(1, [group([sample(0.0), sample(1.0)])], 0, report(loss=loss), measures()))
    assert series(metrics)["asyncgrpo_loss"] == 0.25


def test_learner_seconds_include_the_running_interval() -> None:
    clock = Clock()
    metrics = run_metrics(clock)
    clock.now = 20.0
    assert series(metrics)['asyncgrpo_learner_seconds_total{state="waiting"}'] == 20


def test_large_staleness_lands_in_its_bucket() -> None:
    metrics = run_metrics()
    metrics.staleness.add(5, 3)
    metrics.staleness.add(40, 2)
    shown = series(metrics)
    assert shown['asyncgrpo_staleness_versions_bucket{le="4.0"}'] == 0
    assert shown['asyncgrpo_staleness_versions_bucket{le="6.0"}'] == 3
    assert shown['asyncgrpo_staleness_versions_bucket{le="16.0"}'] == 3
    assert shown["asyncgrpo_staleness_versions_count"] == 5
    assert shown["asyncgrpo_staleness_versions_sum"] == 95
    with pytest.raises(ValueError, match="staleness -1"):
        metrics.staleness.add(-1, 1)


def test_every_learner_field_has_a_family_or_is_only_recorded() -> None:
    families = {field.partition("/")[0] for field in LEARNER_FIELDS}
    assert families - set(LEARNER_FAMILIES) == {"optimiser_updates", "optimiser_updates_skipped"}
    assert set(LEARNER_FAMILIES) <= families


def test_every_learner_field_is_reported_under_one_name() -> None:
    assert sorted(REPORTED_AS.values()) == sorted(LEARNER_FIELDS)


def test_two_runs_in_one_process_do_not_mix() -> None:
    first, second = run_metrics(), run_metrics()
    first.groups_admitted.inc()
    assert series(second)["asyncgrpo_groups_admitted_total"] == 0


def test_multiprocess_mode_is_refused() -> None:
    with pytest.raises(ConfigError, match="PROMETHEUS_MULTIPROC_DIR=/somewhere is set; unset it"):
        refuse_multiprocess_mode({"PROMETHEUS_MULTIPROC_DIR": "/somewhere"})
    refuse_multiprocess_mode({"PATH": "/bin"})


def test_what_reward_functions_log_and_how_they_fail() -> None:
    metrics = run_metrics()
    logged = [replace(group([sample(1.0), sample(0.0)]), logged={"judge/seconds": (3.0, 2)})]
    metrics.observe_step(step_record(3, logged, 2, report(), measures()))
    metrics.count_reward_failure("length", "raised")
    shown = series(metrics)
    assert shown['asyncgrpo_reward_metric{metric="judge/seconds"}'] == 1.5
    assert shown['asyncgrpo_reward_failures_total{reason="raised",reward="length"}'] == 1
