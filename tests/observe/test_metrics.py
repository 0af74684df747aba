import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from observe_cases import group, measures, report, sample
from prometheus_client import CollectorRegistry
from prometheus_client.exposition import generate_latest
from prometheus_client.parser import text_string_to_metric_families

from asyncgrpo.config import RunConfig
from asyncgrpo.errors import ConfigError
from asyncgrpo.observe.metrics import (
    GENERATION_STATES,
    LEARNER_FAMILIES,
    LEARNER_FIELDS,
    LEARNER_STATES,
    REPORTED_AS,
    ReplayMetrics,
    RunMetrics,
    run_info,
)
from asyncgrpo.observe.metrics.making import refuse_multiprocess_mode
from asyncgrpo.observe.steps import step_record
from asyncgrpo.observe.timing import TimeAccount


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


def run_metrics(clock: Clock | None = None) -> RunMetrics:
    return RunMetrics(
        info={"model": "tiny", "version": "1"},
        target_steps=14,
        slots=16,
        engines=["engine-0", "engine-1"],
        rewards=["length"],
        learner=TimeAccount(LEARNER_STATES, clock or Clock()),
        generation=TimeAccount(GENERATION_STATES, clock or Clock()),
        max_staleness=3,
        stall_seconds=600.0,
    )


def series(metrics: RunMetrics) -> dict[str, float]:
    return series_of(metrics.registry)


def series_of(registry: CollectorRegistry) -> dict[str, float]:
    """Everything /metrics shows, as `name{label="value"}`."""

    def named() -> Iterator[tuple[str, float]]:
        for family in text_string_to_metric_families(generate_latest(registry).decode()):
            for s in family.samples:
                labels = ",".join(f'{key}="{value}"' for key, value in sorted(s.labels.items()))
                yield s.name + (f"{{{labels}}}" if labels else ""), s.value

    return dict(named())


def test_every_series_is_there_from_the_start_and_counters_begin_at_zero() -> None:
    shown = series(run_metrics())
    assert shown['asyncgrpo_run_info{model="tiny",version="1"}'] == 1
    assert shown["asyncgrpo_learner_target_steps"] == 14
    assert shown['asyncgrpo_buffer_slots{state="free"}'] == 16
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


def test_no_series_appears_or_goes_whatever_happens() -> None:
    """But those under names of their own that reward functions log."""
    metrics = run_metrics()
    before = set(series(metrics))
    everything_happens(metrics)
    assert set(series(metrics)) == before
    assert len(before) < 450


def everything_happens(metrics: RunMetrics) -> None:
    every_field = dict.fromkeys(REPORTED_AS, 0.5)
    cut = replace(group([sample(0.0, finish_reason="length"), sample(1.0)]), logged={})
    flow = {"quarantined_prompts": 2.0, "trained_less_generated/tokens": -1.5, "reuse_mean": 1.25}
    metrics.flow.finished(cut)
    metrics.flow.taken([cut])
    metrics.flow.groups_admitted.inc()
    metrics.flow.reward_failed("length", "late")
    metrics.flow.watch_slots(lambda: {"in_flight": 3, "free": 13})
    metrics.observe_step(step_record(1, [cut], 0, report(**every_field), measures(), flow))
    metrics.engines.served("engine-0", 1)
    metrics.engines.left("engine-0", "died")
    metrics.engines.restarting("engine-0")
    metrics.engines.recovered("engine-0")
    metrics.engines.published(1000, 0.5)
    with metrics.engines.activity["engine-1"].request():
        pass
    metrics.process.log_messages.labels("warning").inc()
    metrics.process.guard_alarms.labels("kl_spike").inc()
    metrics.process.loop_delay.observe(0.01)
    metrics.process.watch_progress(lambda: 5.0)
    metrics.learner.checkpoint_duration.observe(1.0)


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
    metrics.flow.staleness.add(5, 3)
    metrics.flow.staleness.add(40, 2)
    shown = series(metrics)
    assert shown['asyncgrpo_staleness_versions_bucket{le="4.0"}'] == 0
    assert shown['asyncgrpo_staleness_versions_bucket{le="6.0"}'] == 3
    assert shown['asyncgrpo_staleness_versions_bucket{le="16.0"}'] == 3
    assert shown["asyncgrpo_staleness_versions_count"] == 5
    assert shown["asyncgrpo_staleness_versions_sum"] == 95
    with pytest.raises(ValueError, match="staleness -1"):
        metrics.flow.staleness.add(-1, 1)


def test_every_learner_field_has_a_family_or_is_only_recorded() -> None:
    families = {field.partition("/")[0] for field in LEARNER_FIELDS}
    assert families - set(LEARNER_FAMILIES) == {"optimiser_updates", "optimiser_updates_skipped"}
    assert set(LEARNER_FAMILIES) <= families


def test_every_learner_field_is_reported_under_one_name() -> None:
    assert sorted(REPORTED_AS.values()) == sorted(LEARNER_FIELDS)


def test_two_runs_in_one_process_do_not_mix() -> None:
    first, second = run_metrics(), run_metrics()
    first.flow.groups_admitted.inc()
    assert series(second)["asyncgrpo_groups_admitted_total"] == 0


def test_multiprocess_mode_is_refused() -> None:
    with pytest.raises(ConfigError, match="PROMETHEUS_MULTIPROC_DIR=/somewhere is set; unset it"):
        refuse_multiprocess_mode({"PROMETHEUS_MULTIPROC_DIR": "/somewhere"})
    refuse_multiprocess_mode({"PATH": "/bin"})


def test_what_reward_functions_log_and_how_they_fail() -> None:
    metrics = run_metrics()
    logged = [replace(group([sample(1.0), sample(0.0)]), logged={"judge/seconds": (3.0, 2)})]
    metrics.observe_step(step_record(3, logged, 2, report(), measures()))
    metrics.flow.reward_failed("length", "raised")
    shown = series(metrics)
    assert shown['asyncgrpo_reward_metric{metric="judge/seconds"}'] == 1.5
    assert shown['asyncgrpo_reward_failures_total{reason="raised",reward="length"}'] == 1


def test_what_happens_between_steps_is_shown_at_once() -> None:
    clock = Clock()
    metrics = run_metrics(clock)
    everything_happens(metrics)
    shown = series(metrics)
    for name, value in {
        'buffer_slots{state="in_flight"}': 3,
        'buffer_slots{state="free"}': 13,
        'buffer_slots{state="training"}': 0,
        'samples_total{finish_reason="length"}': 1,
        'samples_total{finish_reason="stop"}': 1,
        "sample_tokens_count": 2,
        "group_duration_seconds_sum": 2.0,
        "scoring_duration_seconds_sum": 0.5,
        "buffer_residence_seconds_count": 1,
        'generation_requests_total{engine="engine-1",outcome="answered"}': 1,
        'generation_requests_total{engine="engine-1",outcome="failed"}': 0,
        'engine_serving{engine="engine-0"}': 0,
        'policy_version{holder="engine-0"}': 1,
        "published_bytes_total": 1000,
        "quarantined_prompts": 2,
        "trained_less_generated_tokens": -1.5,
        "reuse_mean": 1.25,
        "staleness_limit_versions": 3,
        "stall_threshold_seconds": 600,
        "last_progress_timestamp_seconds": 5,
        'log_messages_total{level="warning"}': 1,
        'guard_alarms_total{guard="kl_spike"}': 1,
        'verdict{verdict="generation-bound"}': 1,
        'verdict{verdict="balanced"}': 0,
    }.items():
        assert (name, shown[f"asyncgrpo_{name}"]) == (name, value)


def test_the_learners_training_is_shown_by_part() -> None:
    metrics = run_metrics()
    parts = replace(report(), seconds={"proximal": 1.0, "forward_backward": 2.5, "total": 4.0})
    for step in (1, 2):
        metrics.observe_step(step_record(step, [group([sample(0.0), sample(1.0)])], 0, parts, measures()))
    shown = series(metrics)
    name = "asyncgrpo_learner_training_seconds_total"
    assert [shown[f'{name}{{part="{part}"}}'] for part in ("proximal", "forward_backward", "optimiser")] == [2, 5, 0]


def test_the_learners_memory_is_shown_by_kind_where_it_is_known() -> None:
    metrics = run_metrics()
    groups = [group([sample(0.0), sample(1.0)])]
    for step, memory in ((1, {"resident": 2**30, "allocated": 2**31}), (2, {"resident": 2**29})):
        metrics.observe_step(step_record(step, groups, 0, replace(report(), memory=memory), measures()))
    shown = series(metrics)
    name = "asyncgrpo_learner_memory_bytes"
    assert [shown[f'{name}{{kind="{kind}"}}'] for kind in ("resident", "allocated", "reserved")] == [2**29, 2**31, 0]


def test_the_time_of_every_engine_sums_to_the_wall_clock_also_between_events() -> None:
    metrics = run_metrics()
    started = time.monotonic()
    metrics.engines.served("engine-0", 0)
    for _ in range(3):
        before = time.monotonic() - started
        shown = series(metrics)
        for engine in ("engine-0", "engine-1"):
            total = sum(value for name, value in shown.items() if f'engine_seconds_total{{engine="{engine}"' in name)
            assert before <= total <= time.monotonic() - started + 0.5
        time.sleep(0.02)


def test_a_replay_shows_what_there_is_without_engines() -> None:
    metrics = ReplayMetrics(info={"model": "tiny"}, target_steps=4, learner=TimeAccount(LEARNER_STATES))
    metrics.retrained({"step": 2, "version": 1, "loss": 0.5, "policy_kl_nats/proximal_current": 0.25})
    shown = series_of(metrics.registry)
    assert shown["asyncgrpo_learner_step"] == 2
    assert shown["asyncgrpo_loss"] == 0.5
    assert shown['asyncgrpo_policy_kl_nats{between="proximal_current"}'] == 0.25
    assert not any("engine" in name or "groups" in name for name in shown)


def test_runs_of_equal_settings_are_told_as_such(tmp_path: Path) -> None:
    config = RunConfig.model_validate({"model": {"path": "tiny"}})
    first = run_info(config, tmp_path / "first")
    elsewhere = config.model_copy(update={"engines": config.engines.model_copy(update={"port": 9000})})
    assert run_info(elsewhere, tmp_path / "second") == {**first, "folder": str(tmp_path / "second")}
    other = config.model_copy(update={"training": config.training.model_copy(update={"learning_rate": 1e-3})})
    assert run_info(other, tmp_path / "first")["settings"] != first["settings"]


def test_a_run_that_goes_on_shows_where() -> None:
    metrics = run_metrics()
    metrics.begins_at(7)
    shown = series(metrics)
    assert (shown["asyncgrpo_learner_step"], shown['asyncgrpo_policy_version{holder="learner"}']) == (7, 7)
