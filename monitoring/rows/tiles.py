"""What one wants to know first."""

from __future__ import annotations

from panels import Panel, Query, Row

TILES = Row(
    title="At a glance",
    panels=(
        Panel(
            title="Step",
            description="Steps trained over the whole run.",
            queries=(Query(expr='asyncgrpo_learner_step{run="$run"}'),),
            kind="stat",
            width=3,
            height=4,
            unit="none",
        ),
        Panel(
            title="Time left",
            description="Steps to go, at the pace of the last half hour.",
            queries=(
                Query(
                    expr='(max by (run) (asyncgrpo_learner_target_steps{run="$run"})'
                    ' - max by (run) (asyncgrpo_learner_step{run="$run"}))'
                    ' * on (run) run:asyncgrpo_step_duration_seconds:mean30m{run="$run"}'
                ),
            ),
            kind="stat",
            width=3,
            height=4,
            unit="s",
        ),
        Panel(
            title="Since the last step",
            description="Compare with the usual step.",
            queries=(Query(expr='time() - asyncgrpo_learner_last_step_timestamp_seconds{run="$run"}'),),
            kind="stat",
            width=3,
            height=4,
            unit="s",
        ),
        Panel(
            title="Trained",
            description="Completion tokens trained per second, over five minutes.",
            queries=(Query(expr='run:asyncgrpo_trained_tokens:rate5m{run="$run"}'),),
            kind="stat",
            width=3,
            height=4,
            unit="suffix: tok/s",
            decimals=0,
        ),
        Panel(
            title="Reward",
            description="Mean of the last step's samples.",
            queries=(Query(expr='asyncgrpo_reward_mean{run="$run", reward="total"}'),),
            kind="stat",
            width=3,
            height=4,
            decimals=3,
        ),
        Panel(
            title="Staleness",
            description="Mean over trained tokens, in versions.",
            queries=(Query(expr='run:asyncgrpo_staleness_versions:mean15m{run="$run"}'),),
            kind="stat",
            width=3,
            height=4,
            unit="none",
            decimals=2,
        ),
        Panel(
            title="Limited by",
            description="The side that is waited for, in the last step.",
            queries=(Query(expr='asyncgrpo_verdict{run="$run"} == 1', legend="{{verdict}}"),),
            kind="stat",
            width=3,
            height=4,
            shows_name=True,
        ),
        Panel(
            title="Alerts",
            description="That fire for this run; docs/runbook.md has each.",
            queries=(Query(expr='count(ALERTS{run="$run", alertstate="firing"}) or vector(0)', zero_in_health=True),),
            kind="stat",
            width=3,
            height=4,
            unit="none",
        ),
    ),
)
