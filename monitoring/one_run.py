"""The dashboard of one run, in reading order: is it learning, is it stable, where does time go; then flow, freshness,
engines and the machine."""

from __future__ import annotations

from panels import Dashboard, Panel, Query, Row

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
                    expr="histogram_quantile(0.5, sum by (le)"
                    ' (rate(asyncgrpo_sample_tokens_bucket{run="$run"}[$__rate_interval])))',
                    legend="median",
                ),
                Query(
                    expr="histogram_quantile(0.95, sum by (le)"
                    ' (rate(asyncgrpo_sample_tokens_bucket{run="$run"}[$__rate_interval])))',
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
                    expr='rate(asyncgrpo_step_duration_seconds_sum{run="$run"}[$__rate_interval])'
                    ' / (rate(asyncgrpo_step_duration_seconds_count{run="$run"}[$__rate_interval]) > 0)',
                    legend="step",
                ),
                Query(
                    expr='sum by (part) (rate(asyncgrpo_learner_training_seconds_total{run="$run"}[$__rate_interval]))'
                    " / on () group_left ()"
                    ' (sum(rate(asyncgrpo_step_duration_seconds_count{run="$run"}[$__rate_interval])) > 0)',
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
                    expr=f'rate(asyncgrpo_{name}_seconds_sum{{run="$run"}}[$__rate_interval])'
                    f' / (rate(asyncgrpo_{name}_seconds_count{{run="$run"}}[$__rate_interval]) > 0)',
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
            queries=(Query(expr='run:asyncgrpo_policy_version:behind{run="$run"}', legend="behind"),),
            unit="none",
            minimum=0,
        ),
        Panel(
            title="Duration of a publish",
            description="Mean, until a version is on every engine. Engines generate for all but a part of it.",
            queries=(
                Query(
                    expr='rate(asyncgrpo_publish_duration_seconds_sum{run="$run"}[$__rate_interval])'
                    ' / (rate(asyncgrpo_publish_duration_seconds_count{run="$run"}[$__rate_interval]) > 0)',
                    legend="publish",
                ),
            ),
            unit="s",
            minimum=0,
        ),
        Panel(
            title="Weights published",
            description="Bytes per second.",
            queries=(
                Query(expr='rate(asyncgrpo_published_bytes_total{run="$run"}[$__rate_interval])', legend="weights"),
            ),
            unit="Bps",
            minimum=0,
        ),
    ),
)

ENGINES = Row(
    title="Engines",
    panels=(
        Panel(
            title="Get work",
            description="1 or 0 for each engine.",
            queries=(Query(expr='asyncgrpo_engine_serving{run="$run"}', legend="{{engine}}"),),
            unit="none",
            minimum=0,
            width=6,
        ),
        Panel(
            title="Requests in flight",
            description="As the run sees them.",
            queries=(Query(expr='asyncgrpo_generation_requests_in_flight{run="$run"}', legend="{{engine}}"),),
            unit="none",
            minimum=0,
            width=6,
        ),
        Panel(
            title="Running and waiting requests",
            description="As vLLM sees them.",
            queries=(
                Query(expr='sum by (engine) (vllm:num_requests_running{run="$run"})', legend="{{engine}} running"),
                Query(expr='sum by (engine) (vllm:num_requests_waiting{run="$run"})', legend="{{engine}} waiting"),
            ),
            unit="none",
            minimum=0,
            width=6,
        ),
        Panel(
            title="Generated by each",
            description="Completion tokens per second, by vLLM's count.",
            queries=(
                Query(
                    expr='sum by (engine) (rate(vllm:generation_tokens_total{run="$run"}[$__rate_interval]))',
                    legend="{{engine}}",
                ),
            ),
            unit="suffix: tok/s",
            minimum=0,
            width=6,
        ),
        Panel(
            title="KV cache in use",
            description="The fullest rank of each engine. Full: requests are preempted and computed again.",
            queries=(Query(expr='max by (engine) (vllm:kv_cache_usage_perc{run="$run"})', legend="{{engine}}"),),
            unit="percentunit",
            minimum=0,
            maximum=1,
            width=6,
        ),
        Panel(
            title="Preemptions",
            description="In ten minutes. A pause that keeps requests counts one for each that was running.",
            queries=(
                Query(
                    expr='sum by (engine) (increase(vllm:num_preemptions_total{run="$run"}[10m]))',
                    legend="{{engine}}",
                    zero_in_health=True,
                ),
            ),
            unit="none",
            minimum=0,
            width=6,
        ),
        Panel(
            title="Requests by how they end",
            description="Per second. Failed: those that a publish cuts short (weights.in_flight) are among them.",
            queries=(
                Query(
                    expr="sum by (outcome)"
                    ' (rate(asyncgrpo_generation_requests_total{run="$run"}[$__rate_interval])) > 0',
                    legend="{{outcome}}",
                ),
            ),
            unit="reqps",
            minimum=0,
            width=6,
        ),
        Panel(
            title="Engines that leave and come back",
            description="In the last hour.",
            queries=(
                Query(
                    expr='sum by (engine, reason) (increase(asyncgrpo_engine_ejections_total{run="$run"}[1h])) > 0',
                    legend="{{engine}} left: {{reason}}",
                    zero_in_health=True,
                ),
                Query(
                    expr='increase(asyncgrpo_engine_restarts_total{run="$run"}[1h]) > 0',
                    legend="{{engine}} started anew",
                    zero_in_health=True,
                ),
                Query(
                    expr='increase(asyncgrpo_engine_recoveries_total{run="$run"}[1h]) > 0',
                    legend="{{engine}} came back",
                    zero_in_health=True,
                ),
            ),
            unit="none",
            minimum=0,
            width=6,
        ),
    ),
)

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

ONE_RUN = Dashboard(
    uid="asyncgrpo-run",
    title="asyncgrpo: one run",
    description="Is it learning, is it stable, where does time go; then flow, freshness, engines and the machine.",
    rows=(TILES, LEARNING, STABLE, TIME, FLOW, FRESHNESS, ENGINES, MACHINE),
    annotations=(
        Query(expr='changes(asyncgrpo_process_start_time_seconds{run="$run"}[1m]) > 0', legend="started"),
        Query(expr='changes(asyncgrpo_checkpoint_step{run="$run"}[1m]) > 0', legend="checkpoint"),
    ),
)
