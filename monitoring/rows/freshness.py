"""How stale what is trained is, and how versions reach engines."""

from __future__ import annotations

from panels import Panel, Query, Row

# What is counted once a step is averaged over 15 minutes: Grafana's own interval may hold no step.

FRESHNESS = Row(
    title="Freshness",
    panels=(
        Panel(
            title="Staleness of trained tokens",
            description="Tokens by how many versions older than the learner they were.",
            queries=(
                Query(
                    expr='sum by (le) (increase(asyncgrpo_staleness_versions_bucket{run="$run"}[$__rate_interval]))',
                    legend="{{le}}",
                ),
            ),
            kind="heatmap",
            unit="none",
        ),
        Panel(
            title="Mean staleness",
            description="And the most that buffer.max_staleness allows.",
            queries=(
                Query(expr='run:asyncgrpo_staleness_versions:mean15m{run="$run"}', legend="mean"),
                Query(expr='asyncgrpo_staleness_limit_versions{run="$run"}', legend="limit"),
            ),
            unit="none",
            minimum=0,
        ),
        Panel(
            title="Versions",
            description="The learner's, and each engine's.",
            queries=(Query(expr='asyncgrpo_policy_version{run="$run"}', legend="{{holder}}"),),
            unit="none",
        ),
        Panel(
            title="Versions behind",
            description="Of the engine that gets work and has the oldest.",
            queries=(
                Query(expr='run:asyncgrpo_policy_version:behind{run="$run"}', legend="behind", zero_in_health=True),
            ),
            unit="none",
            minimum=0,
        ),
        Panel(
            title="Duration of a publish",
            description="Mean, until a version is on every engine. Engines generate for all but a part of it.",
            queries=(
                Query(
                    expr='rate(asyncgrpo_publish_duration_seconds_sum{run="$run"}[15m])'
                    ' / (rate(asyncgrpo_publish_duration_seconds_count{run="$run"}[15m]) > 0)',
                    legend="publish",
                ),
            ),
            unit="s",
            minimum=0,
        ),
        Panel(
            title="Weights published",
            description="Bytes per second.",
            queries=(Query(expr='rate(asyncgrpo_published_bytes_total{run="$run"}[15m])', legend="weights"),),
            unit="Bps",
            minimum=0,
        ),
    ),
)
