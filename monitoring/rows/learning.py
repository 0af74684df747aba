"""Is it learning?"""

from __future__ import annotations

from panels import Panel, Query, Row

# What is counted once a step is averaged over 15 minutes: Grafana's own interval may hold no step.

LEARNING = Row(
    title="Is it learning?",
    panels=(
        Panel(
            title="Reward",
            description="Mean over the samples of a step, and one deviation up and down.",
            queries=(
                Query(expr='asyncgrpo_reward_mean{run="$run", reward="total"}', legend="mean"),
                Query(
                    expr='asyncgrpo_reward_mean{run="$run", reward="total"}'
                    ' + asyncgrpo_reward_stddev{run="$run", reward="total"}',
                    legend="mean + sd",
                ),
                Query(
                    expr='asyncgrpo_reward_mean{run="$run", reward="total"}'
                    ' - asyncgrpo_reward_stddev{run="$run", reward="total"}',
                    legend="mean - sd",
                ),
            ),
        ),
        Panel(
            title="Reward by function",
            description="Unweighted, where the function applied.",
            queries=(Query(expr='asyncgrpo_reward_mean{run="$run", reward!="total"}', legend="{{reward}}"),),
        ),
        Panel(
            title="Held-out reward",
            description="Mean@k of the last evaluation, and the share of prompts that one of k samples passes.",
            queries=(
                Query(expr='asyncgrpo_eval_reward_mean{run="$run", reward="total"}', legend="mean reward"),
                Query(expr='asyncgrpo_eval_pass_ratio{run="$run"}', legend="pass@{{k}}"),
            ),
        ),
        Panel(
            title="Entropy",
            description="Of the current policy, per token. Near 0, samples of a prompt are alike and teach nothing.",
            queries=(Query(expr='asyncgrpo_policy_entropy_nats{run="$run"}', legend="entropy"),),
            unit="suffix: nats",
            minimum=0,
        ),
        Panel(
            title="Length of samples",
            description="Tokens; of all scored samples, and of the last evaluation.",
            queries=(
                Query(
                    expr='histogram_quantile(0.5, sum by (le) (rate(asyncgrpo_sample_tokens_bucket{run="$run"}[15m])))',
                    legend="median",
                ),
                Query(
                    expr="histogram_quantile(0.95, sum by (le)"
                    ' (rate(asyncgrpo_sample_tokens_bucket{run="$run"}[15m])))',
                    legend="p95",
                ),
                Query(expr='asyncgrpo_eval_completion_tokens_mean{run="$run"}', legend="held-out mean"),
            ),
            unit="none",
            minimum=0,
        ),
        Panel(
            title="Cut at the limit, or without a lesson",
            description="Samples that hit the length limit; held-out ones; groups in which all rewards are equal.",
            queries=(
                Query(expr='run:asyncgrpo_samples_truncated:ratio_rate30m{run="$run"}', legend="truncated"),
                Query(
                    expr='asyncgrpo_eval_truncated_ratio{run="$run"}',
                    legend="held-out truncated",
                ),
                Query(
                    expr='run:asyncgrpo_groups_uniform:ratio_rate30m{run="$run"}',
                    legend="uniform groups",
                ),
            ),
            unit="percentunit",
            minimum=0,
        ),
    ),
)
