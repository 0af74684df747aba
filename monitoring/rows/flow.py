"""Groups and samples: how they flow, and what becomes of them."""

from __future__ import annotations

from panels import Panel, Query, Row

# What is counted once a step is averaged over 15 minutes: Grafana's own interval may hold no step.

FLOW = Row(
    title="Flow",
    panels=(
        Panel(
            title="Slots",
            description="Where the group of each slot is. All held and many buffered: training-bound; most in flight: "
            "generation-bound.",
            queries=(Query(expr='asyncgrpo_buffer_slots{run="$run"}', legend="{{state}}"),),
            unit="none",
            stack=True,
            minimum=0,
        ),
        Panel(
            title="Groups by fate",
            description="Per minute.",
            queries=(
                Query(
                    expr='60 * sum by (fate) (rate(asyncgrpo_groups_total{run="$run"}[$__rate_interval])) > 0',
                    legend="{{fate}}",
                ),
                Query(
                    expr='60 * sum(rate(asyncgrpo_groups_admitted_total{run="$run"}[$__rate_interval]))',
                    legend="admitted",
                ),
            ),
            unit="suffix: /min",
            minimum=0,
        ),
        Panel(
            title="Groups not trained",
            description="Share of all, uniform ones left out.",
            queries=(
                Query(
                    expr='run:asyncgrpo_groups_dropped:ratio_rate30m{run="$run"}',
                    legend="dropped or reissued",
                    zero_in_health=True,
                ),
            ),
            unit="percentunit",
            minimum=0,
        ),
        Panel(
            title="A group's way",
            description="Mean seconds: from admission to the buffer, of that scoring, and in the buffer.",
            queries=tuple(
                Query(
                    expr=f'rate(asyncgrpo_{name}_seconds_sum{{run="$run"}}[15m])'
                    f' / (rate(asyncgrpo_{name}_seconds_count{{run="$run"}}[15m]) > 0)',
                    legend=legend,
                )
                for name, legend in (
                    ("group_duration", "to the buffer"),
                    ("scoring_duration", "of that, scoring"),
                    ("buffer_residence", "in the buffer"),
                )
            ),
            unit="s",
            minimum=0,
        ),
        Panel(
            title="Trained less generated",
            description="Mean of trained samples less mean of all, so far. Not near 0, training sees other completions "
            "than the policy generates.",
            queries=(
                Query(expr='asyncgrpo_trained_less_generated_tokens{run="$run"}', legend="tokens", zero_in_health=True),
                Query(expr='asyncgrpo_trained_less_generated_reward{run="$run"}', legend="reward", zero_in_health=True),
            ),
        ),
        Panel(
            title="Rewards that fail, prompts given up",
            description="Failures in the last ten minutes; rows of the dataset that are not tried any more.",
            queries=(
                Query(
                    expr='increase(asyncgrpo_reward_failures_total{run="$run"}[10m]) > 0',
                    legend="{{reward}} {{reason}}",
                    zero_in_health=True,
                ),
                Query(expr='asyncgrpo_quarantined_prompts{run="$run"}', legend="prompts given up", zero_in_health=True),
            ),
            unit="none",
            minimum=0,
        ),
        Panel(
            title="Reuse",
            description="Optimiser passes over tokens, over distinct tokens; groups kept for replay.",
            queries=(
                Query(expr='asyncgrpo_reuse_mean{run="$run"}', legend="passes per token"),
                Query(expr='asyncgrpo_replay_groups{run="$run"}', legend="groups for replay"),
            ),
            unit="none",
            minimum=0,
        ),
        Panel(
            title="What reward functions log",
            description="Means of log_metric, of the last step.",
            queries=(Query(expr='asyncgrpo_reward_metric{run="$run"}', legend="{{metric}}"),),
        ),
    ),
)
