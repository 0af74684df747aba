"""Is it stable?"""

from __future__ import annotations

from panels import Panel, Query, Row

STABLE = Row(
    title="Is it stable?",
    panels=(
        Panel(
            title="KL divergences",
            description="Per token. Behaviour to proximal: engine mismatch and staleness; proximal to current: the "
            "step's own updates; current to reference: how far it has come.",
            queries=(Query(expr='asyncgrpo_policy_kl_nats{run="$run"}', legend="{{between}}"),),
            unit="suffix: nats",
        ),
        Panel(
            title="Correction for staleness and mismatch",
            description="Weights proximal/behaviour: 1 on average where the policies agree.",
            queries=(
                Query(expr='asyncgrpo_importance_weight_mean{run="$run"}', legend="mean"),
                Query(expr='asyncgrpo_importance_weight_max{run="$run"}', legend="largest"),
                Query(expr='asyncgrpo_behaviour_ratio_mean{run="$run"}', legend="current/behaviour mean"),
                Query(expr='asyncgrpo_behaviour_ratio_max{run="$run"}', legend="current/behaviour largest"),
            ),
        ),
        Panel(
            title="Effective sample size",
            description="Share of the tokens that the weights leave in effect. Low: a few tokens decide the step.",
            queries=(
                Query(expr='asyncgrpo_importance_weight_effective_ratio{run="$run"}', legend="proximal/behaviour"),
                Query(expr='asyncgrpo_behaviour_ratio_effective_ratio{run="$run"}', legend="current/behaviour"),
            ),
            unit="percentunit",
            maximum=1,
        ),
        Panel(
            title="Clipped, masked and capped tokens",
            description="Shares of the trained tokens.",
            queries=(
                Query(expr='asyncgrpo_clipped_tokens_ratio{run="$run"}', legend="clipped {{side}}"),
                Query(expr='asyncgrpo_masked_tokens_ratio{run="$run"}', legend="masked by {{by}}"),
                Query(
                    expr='asyncgrpo_importance_weight_capped_ratio{run="$run"}',
                    legend="weight capped",
                    zero_in_health=True,
                ),
            ),
            unit="percentunit",
            minimum=0,
        ),
        Panel(
            title="Gradient norm",
            description="Before clipping, mean over the step's updates.",
            queries=(Query(expr='asyncgrpo_gradient_norm{run="$run"}', legend="gradient norm"),),
            minimum=0,
        ),
        Panel(
            title="Loss and learning rate",
            description="A policy gradient's loss says little: it is 0 on average where advantages are.",
            queries=(
                Query(expr='asyncgrpo_loss{run="$run"}', legend="loss"),
                Query(expr='asyncgrpo_learning_rate{run="$run"}', legend="learning rate"),
            ),
        ),
        Panel(
            title="Alarms of guards, skipped updates",
            description="In the last ten minutes.",
            queries=(
                Query(
                    expr='increase(asyncgrpo_guard_alarms_total{run="$run"}[10m]) > 0',
                    legend="{{guard}}",
                    zero_in_health=True,
                ),
                Query(
                    expr='increase(asyncgrpo_optimiser_updates_skipped_total{run="$run"}[10m])',
                    legend="updates skipped",
                    zero_in_health=True,
                ),
            ),
            minimum=0,
        ),
    ),
)
