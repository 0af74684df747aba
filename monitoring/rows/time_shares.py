"""Where does time go?"""

from __future__ import annotations

from panels import Panel, Query, Row

# What is counted once a step is averaged over 15 minutes: Grafana's own interval may hold no step.

TIME = Row(
    title="Where does time go?",
    panels=(
        Panel(
            title="Learner",
            description="Share of its time by what it does. Waiting: for groups, or until records are written.",
            queries=(
                Query(
                    expr='sum by (state) (rate(asyncgrpo_learner_seconds_total{run="$run"}[$__rate_interval]))',
                    legend="{{state}}",
                ),
            ),
            unit="percentunit",
            stack=True,
            minimum=0,
            maximum=1,
        ),
        Panel(
            title="Engines",
            description="Share of their time by what they do, mean over engines.",
            queries=(
                Query(
                    expr='avg by (state) (rate(asyncgrpo_engine_seconds_total{run="$run"}[$__rate_interval]))',
                    legend="{{state}}",
                ),
            ),
            unit="percentunit",
            stack=True,
            minimum=0,
            maximum=1,
        ),
        Panel(
            title="Who waits for whom",
            description="Learner waiting: generation-bound. Nothing in flight, for want of a slot: training-bound.",
            queries=(
                Query(expr='run:asyncgrpo_learner_waiting:ratio_rate5m{run="$run"}', legend="learner waits"),
                Query(
                    expr='run:asyncgrpo_generation_idle:ratio_rate5m{run="$run"}',
                    legend="generation idle",
                    zero_in_health=True,
                ),
            ),
            unit="percentunit",
            minimum=0,
            maximum=1,
        ),
        Panel(
            title="Tokens",
            description="Completion tokens per second.",
            queries=(
                Query(expr='run:asyncgrpo_generated_tokens:rate5m{run="$run"}', legend="generated"),
                Query(expr='run:asyncgrpo_trained_tokens:rate5m{run="$run"}', legend="trained"),
            ),
            unit="suffix: tok/s",
            minimum=0,
        ),
        Panel(
            title="Duration of a step",
            description="Mean, end to end; and the learner's computing in it by part.",
            queries=(
                Query(
                    expr='rate(asyncgrpo_step_duration_seconds_sum{run="$run"}[15m])'
                    ' / (rate(asyncgrpo_step_duration_seconds_count{run="$run"}[15m]) > 0)',
                    legend="step",
                ),
                Query(
                    expr='sum by (part) (rate(asyncgrpo_learner_training_seconds_total{run="$run"}[15m]))'
                    " / on () group_left ()"
                    ' (sum(rate(asyncgrpo_step_duration_seconds_count{run="$run"}[15m])) > 0)',
                    legend="{{part}}",
                ),
            ),
            unit="s",
            minimum=0,
        ),
        Panel(
            title="Evaluations",
            description="Mean duration; they run beside the training, on the same engines.",
            queries=(
                Query(
                    expr='asyncgrpo_eval_duration_seconds_sum{run="$run"}'
                    ' / (asyncgrpo_eval_duration_seconds_count{run="$run"} > 0)',
                    legend="mean",
                ),
            ),
            unit="s",
            minimum=0,
        ),
    ),
)
