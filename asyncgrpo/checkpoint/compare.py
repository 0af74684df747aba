"""Which settings differ between the run that was saved and the one that resumes it, and which of them matter. Pure.

A setting is *free* if the run may go on with another value: where things run, how long one waits, what is written
down. It has *meaning* if another value changes what is trained: data, rewards, sampling, objective, optimiser, number
formats, and the rules by which groups are taken. What only rounds differently is free.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Literal, NamedTuple

from asyncgrpo.config import RunConfig
from asyncgrpo.config.names import FIELDS
from asyncgrpo.config.sections import RewardSection
from asyncgrpo.errors import ConfigError

__all__ = ["FREE", "MEANING", "Difference", "check_resumable", "differences", "reward_differences"]

Kind = Literal["free", "meaning"]


def _keys(section: str, fields: str) -> set[str]:
    return {f"{section}.{field}" for field in fields.split()}


FREE: frozenset[str] = frozenset().union(
    _keys("run", "output_dir resume allow_changes plan_from"),
    # A model may be moved: weights that stay are recognised by the learner, the tokenizer by the next prompt.
    _keys("model", "path attn_implementation trust_remote_code"),
    _keys("lora", "lora_adapter"),  # likewise: its first weights only matter to a reference, which the learner knows
    _keys("rewards", "timeout on_error max_concurrency device batch_size api_key_env"),
    _keys("generation", "request_timeout max_attempts group_timeout max_prompt_failures max_failed_groups"),
    _keys(
        "engines",
        "urls api_key_env devices port max_num_seqs gpu_memory_utilization cpu_kv_cache_gib enforce_eager "
        "max_concurrent_requests health_interval max_restarts startup_timeout control_timeout stop_timeout",
    ),
    _keys("environment", "step_timeout max_concurrency"),
    _keys("buffer", "stall_timeout"),
    # Epochs count by the steps that they come to.
    _keys("training", "num_train_epochs gradient_checkpointing max_skipped_updates"),
    _keys("learner", "mode devices token_budget start_timeout step_timeout max_restarts"),
    _keys("weights", "transport shared_memory_dir publish_timeout publish_concurrency probe probe_tolerance"),
    _keys(
        "evaluation",
        "dataset dataset_config dataset_split columns prompt_template system_prompt task_arguments max_prompts "
        "eval_strategy eval_steps eval_on_start num_generations_eval temperature max_completion_length rewards "
        "pass_reward pass_threshold max_concurrency one_version timeout save_samples",
    ),
    _keys("checkpoint", "save_steps save_minutes save_total_limit keep_every save_timeout"),
    _keys(
        "observe",
        "metrics_host metrics_port metrics_token_env targets_dir save_rollouts rollouts_keep_steps rollouts_max_gib "
        "write_timeout trackers project run_name tracker_timeout stall_report_seconds log_level log_format "
        "webhook_env",
    ),
    _keys(
        "guards",
        "mismatch_action mismatch_nats mismatch_patience reward_collapse_action reward_collapse_fraction "
        "reward_collapse_patience entropy_collapse_action entropy_collapse_nats entropy_collapse_patience "
        "kl_spike_action kl_spike_factor kl_spike_patience gradient_spike_action gradient_spike_factor "
        "gradient_spike_patience max_rollbacks",
    ),
)

MEANING: frozenset[str] = frozenset().union(
    _keys("run", "seed"),
    _keys("model", "dtype load_in_4bit"),
    _keys("lora", "lora_r lora_alpha lora_dropout lora_target_modules lora_modules_to_save"),
    _keys(
        "data",
        "dataset dataset_config dataset_split max_rows prompt_column columns prompt_template mix system_prompt "
        "task_arguments shuffle_dataset max_prompt_length long_prompts chat_template_kwargs",
    ),
    _keys("curriculum", "kind pass_reward low high rest_epochs retire_after"),
    _keys("environment", "path arguments tools tool_parser max_turns turn_rewards"),
    _keys("rewards", "path model url arguments weight name per_sample dtype"),
    _keys(
        "generation",
        "num_generations max_completion_length temperature top_p top_k min_p stop_token_ids num_extra_generations "
        "drop_sample",
    ),
    _keys("engines", "dtype max_model_len extra_args"),
    _keys("buffer", "max_staleness max_unfinished_groups over_stale filter_uniform_groups refill_budget"),
    _keys(
        "replay",
        "replay_fraction replay_capacity replay_max_age replay_max_uses replay_sampling replay_exponent "
        "replay_correction replay_advantages",
    ),
    _keys(
        "objective",
        "advantage_baseline scale_rewards multi_objective_aggregation soft_punish_cache mask_truncated_completions "
        "top_entropy_quantile off_policy_mask_threshold importance_sampling_level gate epsilon epsilon_high delta "
        "dual_clip gate_cap gate_threshold sapo_temperature_pos sapo_temperature_neg vespo_k_pos vespo_lambda_pos "
        "vespo_k_neg vespo_lambda_neg proximal_anchor importance_sampling_correction importance_sampling_cap "
        "importance_sampling_min importance_sampling_veto importance_sampling_normalise loss_type beta kl_estimator "
        "kl_weight entropy_coef",
    ),
    _keys(
        "training",
        "max_steps groups_per_step num_iterations num_minibatches learning_rate weight_decay adam_beta1 adam_beta2 "
        "adam_epsilon lr_scheduler_type warmup_steps max_grad_norm bf16 cast_lm_head_to_fp32",
    ),
    _keys("weights", "in_flight publish_interval"),
)
"""`training.max_steps` is free all the same where the schedule does not depend on it."""

UNENDING = ("constant", "constant_with_warmup", "inverse_sqrt")
"""Schedules that know no end."""


GIVEN = "reward_funcs"
"""What a trainer calls the rewards that a Python program gives."""


class Difference(NamedTuple):
    setting: str
    """Dotted; of a reward `rewards[0].weight`, or `rewards` where there are more or fewer."""
    old: Any
    new: Any
    kind: Kind

    def __str__(self) -> str:
        return f"{self.setting}: {_shown(self.old)} -> {_shown(self.new)}"


def differences(old: Mapping[str, Any], new: RunConfig) -> list[Difference]:
    """What has changed, in the order of the settings.

    Args:
        old: `RunConfig.model_dump(mode="json")` of the run that was saved, resolved, perhaps of an earlier version:
            a setting that it does not have counts as today's default, one that is no more as absent today.
        new: resolved as well.
    """
    now = new.model_dump(mode="json")
    found = [
        Difference(key, before, after, _kind(key, new))
        for key in _settings(old)
        if (before := _value(old, key)) != (after := _value(now, key))
    ]
    return found + _rewards(old.get("rewards", []), now["rewards"])


def reward_differences(old: Sequence[Sequence[Any]] | None, new: Sequence[tuple[str, float]]) -> list[Difference]:
    """The same of reward functions that a Python program gives: name and weight of each. What they compute cannot be
    compared. old: None where the run that was saved did not note it."""
    if old is None:
        return []
    if len(old) != len(new):
        return [Difference(GIVEN, [name for name, _ in old], [name for name, _ in new], "meaning")]
    return [
        Difference(f"{GIVEN}[{index}].{field}", before, after, "meaning")
        for index, pairs in enumerate(zip(old, new, strict=True))
        for field, before, after in zip(("name", "weight"), *pairs, strict=True)
        if before != after
    ]


def check_resumable(found: Sequence[Difference], *, override: str, allowed: bool = False) -> None:
    """Raise ConfigError for changes with meaning. override: the words that allow them, for the message."""
    changed = [difference for difference in found if difference.kind == "meaning"]
    if not changed or allowed:
        return
    lines = "\n".join(f"  {difference}" for difference in changed)
    raise ConfigError(
        f"resuming with other settings would change what is trained:\n{lines}\nset them back, start a new run, or give "
        f"{override}"
    )


def _settings(old: Mapping[str, Any]) -> Iterable[str]:
    """Today's, and those that only the old run has."""
    sections = {name: values for name, values in old.items() if isinstance(values, Mapping)}
    gone = [f"{section}.{field}" for section, values in sections.items() for field in values]
    return dict.fromkeys([*FIELDS, *gone])


def _value(values: Mapping[str, Any], key: str) -> Any:
    section, _, field = key.partition(".")
    of_section = values.get(section, {})
    if field in of_section:
        return of_section[field]
    return _plain(FIELDS[key].get_default(call_default_factory=True)) if key in FIELDS else None


def _kind(key: str, new: RunConfig) -> Kind:
    if key == "training.max_steps" and new.training.lr_scheduler_type in UNENDING:
        return "free"
    return "free" if key in FREE else "meaning"  # what is no more had perhaps a meaning


def _rewards(old: Sequence[Mapping[str, Any]], new: Sequence[Mapping[str, Any]]) -> list[Difference]:
    if len(old) != len(new):
        return [Difference("rewards", [_source(each) for each in old], [_source(each) for each in new], "meaning")]
    return [
        Difference(f"rewards[{index}].{field}", one, other, "free" if f"rewards.{field}" in FREE else "meaning")
        for index, (before, after) in enumerate(zip(old, new, strict=True))
        for field, info in RewardSection.model_fields.items()
        if (one := before.get(field, _plain(info.default))) != (other := after[field])
    ]


def _source(reward: Mapping[str, Any]) -> Any:
    return reward.get("path") or reward.get("model") or reward.get("url")


def _plain(value: Any) -> Any:
    return list(value) if isinstance(value, tuple) else value


def _shown(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)
