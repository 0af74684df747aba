"""The dashboard that lays runs over each other. Its x axis is time, as always in Grafana; reports plot by step."""

from __future__ import annotations

from panels import Dashboard, Panel, Query, Row

_RUNS = 'run=~"$run"'


def _curve(title: str, description: str, expr: str, unit: str = "short", **options: float) -> Panel:
    """One line per run."""
    query = Query(expr=expr.replace("RUNS", _RUNS), legend="{{run}}")
    return Panel(title=title, description=description, queries=(query,), unit=unit, **options)  # type: ignore[arg-type]


WHICH = Row(
    title="Which runs",
    panels=(
        Panel(
            title="Runs",
            description="Equal settings: what they train is the same, where they run may differ.",
            queries=(Query(expr=f"asyncgrpo_run_info{{{_RUNS}}}"),),
            kind="table",
            width=16,
            height=6,
        ),
        _curve("Step", "Steps trained.", "asyncgrpo_learner_step{RUNS}", "none", height=6),
    ),
)

RESULTS = Row(
    title="What comes out",
    panels=(
        _curve("Reward", "Mean of a step's samples.", 'asyncgrpo_reward_mean{RUNS, reward="total"}'),
        _curve("Held-out reward", "Mean@k.", 'asyncgrpo_eval_reward_mean{RUNS, reward="total"}'),
        _curve("Entropy", "Per token.", "asyncgrpo_policy_entropy_nats{RUNS}", "suffix: nats"),
        _curve(
            "Length of samples",
            "Mean tokens of scored samples.",
            "sum by (run) (rate(asyncgrpo_sample_tokens_sum{RUNS}[$__rate_interval]))"
            " / (sum by (run) (rate(asyncgrpo_sample_tokens_count{RUNS}[$__rate_interval])) > 0)",
            "none",
        ),
        _curve(
            "Off-policy drift",
            "KL of behaviour from current policy, per token.",
            'asyncgrpo_policy_kl_nats{RUNS, between="behaviour_current"}',
            "suffix: nats",
        ),
        _curve(
            "Effective sample size",
            "Of the weights current/behaviour.",
            "asyncgrpo_behaviour_ratio_effective_ratio{RUNS}",
            "percentunit",
        ),
        _curve("Gradient norm", "Before clipping.", "asyncgrpo_gradient_norm{RUNS}"),
        _curve(
            "Second moment of the drift",
            "Mean square of log(current/behaviour), per token.",
            "asyncgrpo_behaviour_ratio_second_moment{RUNS}",
        ),
    ),
)

COSTS = Row(
    title="What it costs",
    panels=(
        _curve("Trained", "Tokens per second.", "run:asyncgrpo_trained_tokens:rate5m{RUNS}", "suffix: tok/s"),
        _curve("Generated", "Tokens per second.", "run:asyncgrpo_generated_tokens:rate5m{RUNS}", "suffix: tok/s"),
        _curve("Duration of a step", "Over half an hour.", "run:asyncgrpo_step_duration_seconds:mean30m{RUNS}", "s"),
        _curve("Learner waits", "Share of time.", "run:asyncgrpo_learner_waiting:ratio_rate5m{RUNS}", "percentunit"),
        _curve("Generation idle", "Share of time.", "run:asyncgrpo_generation_idle:ratio_rate5m{RUNS}", "percentunit"),
        _curve("Mean staleness", "Of trained tokens.", "run:asyncgrpo_staleness_versions:mean15m{RUNS}", "none"),
    ),
)

COMPARE_RUNS = Dashboard(
    uid="asyncgrpo-compare",
    title="asyncgrpo: compare runs",
    description="What comes out and what it costs, one line per run.",
    rows=(WHICH, RESULTS, COSTS),
    several_runs=True,
)
