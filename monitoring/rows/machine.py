"""The orchestrator's process, disk, checkpoints and logs."""

from __future__ import annotations

from panels import Panel, Query, Row

MACHINE = Row(
    title="Machine, checkpoints, logs",
    collapsed=True,
    panels=(
        Panel(
            title="Orchestrator",
            description="Cores in use, and its memory in GiB.",
            queries=(
                Query(expr='rate(asyncgrpo_process_cpu_seconds_total{run="$run"}[$__rate_interval])', legend="cores"),
                Query(expr='asyncgrpo_process_resident_memory_bytes{run="$run"} / 2^30', legend="GiB"),
            ),
            minimum=0,
        ),
        Panel(
            title="Learner's memory",
            description="Of the rank that holds most: resident; on CUDA, peaks of a step of what tensors take and of"
            " what is reserved for them.",
            queries=(Query(expr='asyncgrpo_learner_memory_bytes{run="$run"} > 0', legend="{{kind}}"),),
            unit="bytes",
            minimum=0,
        ),
        Panel(
            title="Event loop",
            description="By how much a timer is late: 99 of 100, and on average.",
            queries=(
                Query(
                    expr="histogram_quantile(0.99, sum by (le)"
                    ' (rate(asyncgrpo_event_loop_delay_seconds_bucket{run="$run"}[$__rate_interval])))',
                    legend="p99",
                ),
                Query(
                    expr='rate(asyncgrpo_event_loop_delay_seconds_sum{run="$run"}[$__rate_interval])'
                    ' / rate(asyncgrpo_event_loop_delay_seconds_count{run="$run"}[$__rate_interval])',
                    legend="mean",
                ),
            ),
            unit="s",
            minimum=0,
        ),
        Panel(
            title="Disk",
            description="Free where the run folder is.",
            queries=(Query(expr='asyncgrpo_disk_free_bytes{run="$run"}', legend="free"),),
            unit="bytes",
            minimum=0,
        ),
        Panel(
            title="Steps since a checkpoint",
            description="What a kill would cost at most.",
            queries=(
                Query(
                    expr='asyncgrpo_learner_step{run="$run"} - asyncgrpo_checkpoint_step{run="$run"}', legend="steps"
                ),
            ),
            unit="none",
            minimum=0,
        ),
        Panel(
            title="Duration of a checkpoint",
            description="Mean. The learner stands still for a part of it only (state checkpoint).",
            queries=(
                Query(
                    expr='asyncgrpo_checkpoint_duration_seconds_sum{run="$run"}'
                    ' / (asyncgrpo_checkpoint_duration_seconds_count{run="$run"} > 0)',
                    legend="mean",
                ),
            ),
            unit="s",
            minimum=0,
        ),
        Panel(
            title="What went wrong",
            description="In the last hour.",
            queries=(
                Query(
                    expr='increase(asyncgrpo_checkpoint_failures_total{run="$run"}[1h])',
                    legend="checkpoints not saved",
                    zero_in_health=True,
                ),
                Query(
                    expr='increase(asyncgrpo_learner_restarts_total{run="$run"}[1h])',
                    legend="learner started anew",
                    zero_in_health=True,
                ),
                Query(
                    expr='increase(asyncgrpo_rollbacks_total{run="$run"}[1h])', legend="rollbacks", zero_in_health=True
                ),
                Query(
                    expr='sum(increase(asyncgrpo_tracker_steps_lost_total{run="$run"}[1h]))',
                    legend="steps lost by trackers",
                    zero_in_health=True,
                ),
                Query(
                    expr='increase(asyncgrpo_eval_runs_total{run="$run", outcome!="done"}[1h]) > 0',
                    legend="evaluations {{outcome}}",
                    zero_in_health=True,
                ),
                Query(
                    expr='increase(asyncgrpo_eval_samples_failed_total{run="$run"}[1h])',
                    legend="evaluation samples failed",
                    zero_in_health=True,
                ),
            ),
            unit="none",
            minimum=0,
        ),
        Panel(
            title="Log lines",
            description="Per minute, by level.",
            queries=(
                Query(
                    expr='60 * sum by (level) (rate(asyncgrpo_log_messages_total{run="$run"}[$__rate_interval])) > 0',
                    legend="{{level}}",
                ),
            ),
            unit="suffix: /min",
            minimum=0,
        ),
        Panel(
            title="Without progress",
            description="Seconds since a step, group or publish, against the threshold of the alert.",
            queries=(
                Query(expr='time() - asyncgrpo_last_progress_timestamp_seconds{run="$run"}', legend="so far"),
                Query(expr='asyncgrpo_stall_threshold_seconds{run="$run"}', legend="threshold"),
            ),
            unit="s",
            minimum=0,
        ),
    ),
)
