"""What a prediction of a run takes for something else than the run's settings say.

Each setting is *policy* if the model has a place for it, *carried over* if it shapes a recorded pace or length and the
model has none, or has *no pace*.
"""

from __future__ import annotations

from asyncgrpo.config import RunConfig
from asyncgrpo.config.names import FIELDS

__all__ = ["CARRIED_OVER", "MODELLED_AS", "NO_PACE", "POLICY", "assumptions"]


def _keys(section: str, fields: str) -> set[str]:
    return {f"{section}.{field}" for field in fields.split()}


CARRIED_OVER: frozenset[str] = frozenset().union(
    _keys("model", "path dtype load_in_4bit attn_implementation"),
    _keys("lora", "lora_r lora_dropout lora_target_modules lora_modules_to_save lora_adapter"),
    _keys(
        "data",
        "dataset dataset_config dataset_split max_rows prompt_column columns prompt_template mix system_prompt "
        "task_arguments shuffle_dataset max_prompt_length long_prompts chat_template_kwargs",
    ),
    _keys("environment", "path arguments tools tool_parser max_turns max_concurrency"),
    # Which prompts come, and so how long answers are.
    _keys("curriculum", "kind pass_reward low high rest_epochs retire_after"),
    _keys(
        "generation",
        "num_generations max_completion_length temperature top_p top_k min_p stop_token_ids num_extra_generations "
        "drop_sample",
    ),
    _keys(
        "engines",
        "urls devices dtype max_model_len max_num_seqs gpu_memory_utilization cpu_kv_cache_gib enforce_eager "
        "max_concurrent_requests extra_args",
    ),
    _keys("replay", "replay_fraction replay_capacity replay_max_age replay_max_uses replay_advantages"),
    # Which samples have a gradient, and how many passes there are.
    _keys(
        "objective",
        "advantage_baseline soft_punish_cache mask_truncated_completions top_entropy_quantile gate proximal_anchor "
        "importance_sampling_normalise beta entropy_coef",
    ),
    _keys("training", "num_iterations num_minibatches bf16 cast_lm_head_to_fp32 gradient_checkpointing"),
    _keys("learner", "mode devices token_budget"),
    _keys("weights", "transport shared_memory_dir publish_concurrency"),
    _keys("checkpoint", "save_steps save_minutes keep_every"),
    _keys("observe", "save_rollouts"),
    _keys(
        "evaluation",
        "dataset dataset_config dataset_split columns prompt_template system_prompt task_arguments max_prompts "
        "eval_strategy eval_steps eval_on_start num_generations_eval temperature max_completion_length "
        "max_concurrency one_version",
    ),
)
"""Settings that shape a recorded pace: of these, a prediction for another run keeps what the recorded one had."""

POLICY: frozenset[str] = frozenset().union(
    _keys("training", "groups_per_step max_steps num_train_epochs"),
    _keys("buffer", "max_staleness max_unfinished_groups over_stale filter_uniform_groups refill_budget"),
    _keys("weights", "publish_interval"),
)
"""A prediction has these from the run itself: `policy_of`, and the steps that it is about."""

MODELLED_AS = {"weights.in_flight": "keep"}
"""Settings of which one value is modelled, whatever either run has."""

NO_PACE: frozenset[str] = frozenset().union(
    _keys("run", "output_dir resume allow_changes seed plan_from"),
    _keys("model", "trust_remote_code"),
    _keys("lora", "lora_alpha"),
    _keys("generation", "request_timeout max_attempts group_timeout max_prompt_failures max_failed_groups"),
    _keys("engines", "api_key_env port health_interval max_restarts startup_timeout control_timeout stop_timeout"),
    _keys("buffer", "stall_timeout"),
    _keys("replay", "replay_sampling replay_exponent replay_correction"),
    _keys(
        "objective",
        "scale_rewards multi_objective_aggregation off_policy_mask_threshold importance_sampling_level epsilon "
        "epsilon_high delta dual_clip gate_cap gate_threshold sapo_temperature_pos sapo_temperature_neg vespo_k_pos "
        "vespo_lambda_pos vespo_k_neg vespo_lambda_neg importance_sampling_correction importance_sampling_cap "
        "importance_sampling_min importance_sampling_veto loss_type kl_estimator kl_weight",
    ),
    _keys(
        "training",
        "learning_rate weight_decay adam_beta1 adam_beta2 adam_epsilon lr_scheduler_type warmup_steps max_grad_norm "
        "max_skipped_updates",
    ),
    _keys("learner", "start_timeout step_timeout max_restarts"),
    _keys("weights", "publish_timeout probe probe_tolerance"),
    _keys(
        "guards",
        "mismatch_action mismatch_nats mismatch_patience reward_collapse_action reward_collapse_fraction "
        "reward_collapse_patience entropy_collapse_action entropy_collapse_nats entropy_collapse_patience "
        "kl_spike_action kl_spike_factor kl_spike_patience gradient_spike_action gradient_spike_factor "
        "gradient_spike_patience max_rollbacks",
    ),
    _keys("environment", "step_timeout turn_rewards"),
    _keys("evaluation", "rewards pass_reward pass_threshold timeout save_samples"),
    _keys("checkpoint", "save_total_limit save_timeout"),
    _keys(
        "observe",
        "metrics_host metrics_port metrics_token_env targets_dir rollouts_keep_steps rollouts_max_gib "
        "write_timeout stall_report_seconds log_level log_format webhook_env trackers project run_name "
        "tracker_timeout",
    ),
)
"""Settings that change no pace by themselves. What is learned may: lengths change with the policy, unpredicted."""

_SWITCHES = {"lora.lora_dropout", "objective.beta", "objective.entropy_coef"}
"""Cost a pass, or nothing at 0: how large they are does not matter."""


def assumptions(config: RunConfig, recorded: RunConfig) -> tuple[str, ...]:
    """Of a run with `config`, predicted from the pace of one with `recorded`: `weights.in_flight were keep`, ..."""
    told = [(key, was) for key, was in MODELLED_AS.items() if _value(config, key) != was]
    carried = [key for key in FIELDS if key in CARRIED_OVER]
    told += [(key, _shown(recorded, key)) for key in carried if _value(config, key) != _value(recorded, key)]
    were, are = _rewards(recorded), _rewards(config)
    if were and are and were != are:  # none: functions given in Python, which nobody can compare
        told.append(("rewards", were))
    return tuple(f"{key} were {was}" for key, was in told)


def _value(config: RunConfig, key: str) -> object:
    """What matters of a setting."""
    section, _, field = key.partition(".")
    value: object = getattr(getattr(config, section), field)
    if key == "engines.urls":
        return len(config.engines.urls)  # which ports they had does not matter
    return bool(value) if key in _SWITCHES else value


def _shown(config: RunConfig, key: str) -> str:
    section, _, field = key.partition(".")
    value = _value(config, key) if key == "engines.urls" else getattr(getattr(config, section), field)
    if key == "data.mix":
        value = tuple(f"{entry.label} x {entry.weight:g}" for entry in config.data.mix)
    return (
        (", ".join(str(getattr(each, "path", each)) for each in value) or "none")
        if isinstance(value, tuple)
        else str(value)
    )


def _rewards(config: RunConfig) -> str:
    return ", ".join(reward.source for reward in config.rewards)
