"""What a setting is called: by section in YAML, flat in Python, and by another name in TRL.

Invariant: every field of every section has exactly one flat name, but for those that a trainer takes as arguments.
A flat name is the field's own name unless `_RENAMED` says otherwise.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable, Iterable

from pydantic.fields import FieldInfo

from asyncgrpo.config.root import RunConfig
from asyncgrpo.config.section import Section

SECTIONS: dict[str, type[Section]] = {
    name: info.annotation
    for name, info in RunConfig.model_fields.items()
    if isinstance(info.annotation, type) and issubclass(info.annotation, Section)
}

FIELDS: dict[str, FieldInfo] = {
    f"{section}.{name}": info for section, cls in SECTIONS.items() for name, info in cls.model_fields.items()
}
"""Every setting by its dotted key."""

TRAINER_ARGUMENTS = {
    "model.path": "model",
    "data.dataset": "train_dataset",
    "environment.path": "environment_factory",
    "environment.tools": "tools",
    "evaluation.dataset": "eval_dataset",
}
"""Given to a trainer under these names, so without a flat one. (So are `rewards`, as `reward_funcs`.)"""

_RENAMED = {
    # TRL's names.
    "engines.urls": "vllm_server_base_url",
    "engines.gpu_memory_utilization": "vllm_gpu_memory_utilization",
    "engines.max_model_len": "vllm_max_model_length",
    "engines.startup_timeout": "vllm_server_timeout",
    "objective.importance_sampling_correction": "vllm_importance_sampling_correction",
    "objective.importance_sampling_cap": "vllm_importance_sampling_clip_max",
    "objective.importance_sampling_min": "vllm_importance_sampling_clip_min",
    "observe.trackers": "report_to",
    # Names that mean something only beside their section.
    "engines.devices": "vllm_devices",
    "engines.dtype": "vllm_dtype",
    "engines.extra_args": "vllm_extra_args",
    "engines.port": "vllm_port",
    "learner.devices": "learner_devices",
    "learner.max_restarts": "learner_max_restarts",
    "learner.mode": "learner_mode",
    "weights.transport": "weights_transport",
    "checkpoint.keep_every": "save_keep_every",
    "curriculum.kind": "curriculum",
    "curriculum.pass_reward": "curriculum_pass_reward",
    "curriculum.low": "curriculum_low",
    "curriculum.high": "curriculum_high",
    "curriculum.rest_epochs": "curriculum_rest_epochs",
    "curriculum.retire_after": "curriculum_retire_after",
    "data.columns": "dataset_columns",
    "data.mix": "dataset_mix",
    "evaluation.dataset_config": "eval_dataset_config",
    "evaluation.dataset_split": "eval_dataset_split",
    "evaluation.columns": "eval_dataset_columns",
    "evaluation.prompt_template": "eval_prompt_template",
    "evaluation.system_prompt": "eval_system_prompt",
    "evaluation.task_arguments": "eval_task_arguments",
    "evaluation.max_prompts": "eval_max_prompts",
    "evaluation.temperature": "eval_temperature",
    "evaluation.max_completion_length": "eval_max_completion_length",
    "evaluation.rewards": "eval_rewards",
    "evaluation.pass_reward": "eval_pass_reward",
    "evaluation.pass_threshold": "eval_pass_threshold",
    "evaluation.max_concurrency": "eval_max_concurrency",
    "evaluation.one_version": "eval_one_version",
    "evaluation.timeout": "eval_timeout",
    "evaluation.save_samples": "eval_save_samples",
    "environment.arguments": "environment_arguments",
    "environment.max_concurrency": "environment_concurrency",
    "environment.step_timeout": "environment_timeout",
}

FLAT: dict[str, str] = {key: _RENAMED.get(key, key.partition(".")[2]) for key in FIELDS if key not in TRAINER_ARGUMENTS}
"""Dotted key to flat name."""

DOTTED: dict[str, str] = {flat: key for key, flat in FLAT.items()}
"""Flat name to dotted key."""

_BATCH = (
    "the batch is <training.groups_per_step> prompts x <generation.num_generations> samples, "
    "in <training.num_minibatches>"
)
_SEPARATE = "engines are always vLLM servers of their own; see <engines.devices> and <engines.urls>"
_MODEL = "see <model.dtype>, <model.attn_implementation> and <model.trust_remote_code>"
_NOT_YET = "this version does not have it"

_WITHOUT_COUNTERPART = """
    accelerator_config auto_find_batch_size average_tokens_across_devices batch_eval_metrics bf16_full_eval
    cache_implementation dataloader_drop_last dataloader_in_order dataloader_multiprocessing_context
    dataloader_num_workers dataloader_persistent_workers dataloader_pin_memory dataloader_prefetch_factor ddp_backend
    ddp_broadcast_buffers ddp_bucket_cap_mb ddp_find_unused_parameters ddp_static_graph ddp_timeout debug deepspeed
    disable_tqdm do_eval do_predict do_train ds3_gather_for_generation enable_jit_checkpoint eval_accumulation_steps
    eval_do_concat_batches eval_use_gather_object fork_threshold_tokens fp16_full_eval fsdp
    fsdp_config full_determinism generation_kwargs greater_is_better hub_always_push hub_model_id hub_private_repo
    hub_revision hub_strategy hub_token ignore_data_skip include_for_metrics include_num_input_tokens_seen label_names
    label_smoothing_factor length_column_name liger_kernel_config load_best_model_at_end local_rank
    log_completions_hub_repo log_level_replica log_multimodal log_on_each_node log_unique_prompts logging_first_step
    logging_nan_inf_filter lr_scheduler_kwargs metric_for_best_model neftune_noise_alpha num_completions_to_print
    optim_args optim_target_modules pad_to_multiple_of parallelism_config prediction_loss_only
    ref_model_mixup_alpha ref_model_sync_steps restore_callback_states_from_checkpoint router_aux_loss_coef
    save_on_each_node save_only_model skip_memory_metrics tf32 torch_compile_backend torch_compile_mode
    torch_empty_cache_steps trackio_bucket_id trackio_space_id trackio_static_space_id
    transformers_continuous_batching_config use_cache use_transformers_continuous_batching use_transformers_paged
    vllm_structured_outputs_regex
"""

ELSEWHERE: dict[str, str] = {
    "per_device_train_batch_size": f"{_BATCH} updates, computed <learner.token_budget> tokens at a time",
    "gradient_accumulation_steps": f"{_BATCH} updates; <learner.token_budget> only bounds memory",
    "steps_per_generation": f"{_BATCH} updates per pass, <training.num_iterations> passes",
    "generation_batch_size": f"{_BATCH} updates per pass",
    "use_vllm": _SEPARATE,
    "vllm_mode": _SEPARATE,
    "vllm_enable_sleep_mode": _SEPARATE,
    "vllm_tensor_parallel_size": "name the devices of one engine together, as in <engines.devices> = ['cuda:0,1']",
    "vllm_server_host": "use <engines.urls>",
    "vllm_server_port": "use <engines.urls>",
    "vllm_group_port": "ports between engines and learner are picked free",
    "vllm_model_impl": "use <engines.extra_args>",
    "vllm_importance_sampling_cap": "use <objective.importance_sampling_cap>",
    "vllm_importance_sampling_mode": "use <objective.importance_sampling_correction>",
    "weight_sync_timeout": "use <weights.publish_timeout>",
    "weight_sync_steps": "use <weights.publish_interval>, and count <buffer.max_staleness> in steps",
    "max_inflight_tasks": "use <buffer.max_unfinished_groups>",
    "queue_maxsize": "the buffer is bounded by <buffer.max_staleness> and <buffer.max_unfinished_groups>",
    "heartbeat_stale_after_s": "use <buffer.stall_timeout>",
    "max_prompt_tokens": "use <data.max_prompt_length>",
    "data_seed": "use <run.seed>",
    "train_sampling_strategy": "use <data.shuffle_dataset>",
    "model_init_kwargs": _MODEL,
    "model_name_or_path": "the model is <model.path>",
    "peft_config": "use <lora.lora_r> and its neighbours",
    "dataset_name": "the dataset is <data.dataset>",
    "reward_weights": "each entry of rewards has its weight",
    "fp16": "use <training.bf16>",
    "log_completions": "every sample is written to disk; see <observe.save_rollouts>",
    "logging_steps": "every step is logged",
    "logging_strategy": "every step is logged",
    "logging_dir": "logs are written below <run.output_dir>",
    "overwrite_output_dir": "a run never overwrites; choose another <run.output_dir>",
    "repetition_penalty": f"{_NOT_YET}: the learner could not reproduce the engine's log-probabilities",
    "sync_ref_model": f"{_NOT_YET}; the reference model is the initial one",
    **dict.fromkeys(
        ("use_adaptive_entropy", "entropy_coef_min", "entropy_coef_max", "entropy_coef_delta", "entropy_target"),
        f"{_NOT_YET}; <objective.entropy_coef> stays what it is",
    ),
    "max_tool_calling_iterations": "use <environment.max_turns>, which counts answers: one more than calls",
    "save_strategy": "see <checkpoint.save_steps> and <checkpoint.save_minutes>",
    "resume_from_checkpoint": "a run goes on by itself (see <run.resume>); trainer.train(resume_from_checkpoint=True) "
    "insists on it",
    "per_device_eval_batch_size": "requests of an evaluation are bounded by <evaluation.max_concurrency>",
    "eval_delay": "see <evaluation.eval_on_start> and <evaluation.eval_steps>",
    "push_to_hub": f"{_NOT_YET}; the final model is written below <run.output_dir>",
    "optim": "the optimiser is AdamW; see <training.weight_decay> and <training.adam_beta1>",
    "use_cpu": "use <learner.devices> and <engines.devices>",
    "torch_compile": "engines compile unless <engines.enforce_eager> is set; the learner does not",
    "gradient_checkpointing_kwargs": "<training.gradient_checkpointing> is all there is",
    "remove_unused_columns": "every column reaches the reward functions that name it or take **columns",
    "use_liger_kernel": "not needed: the learner never holds all logits at once",
    "use_liger_loss": "not needed: the learner never holds all logits at once",
    "use_bias_correction_kl": "use <objective.kl_weight>",
    "disable_dropout": "the model's dropout is always off; see <lora.lora_dropout>",
    **dict.fromkeys(_WITHOUT_COUNTERPART.split(), "TRL has it, asyncgrpo has nothing like it; leave it out"),
}
"""TRL's arguments that have no counterpart of their own, and what to do instead. <section.field> names a setting."""

Face = Callable[[str], str]
"""How a face of the configuration spells a dotted key: `dotted` or `flat`."""

_KEY = re.compile(r"\b(" + "|".join(re.escape(key) for key in sorted(FIELDS, key=len, reverse=True)) + r")\b")


def dotted(key: str) -> str:
    return key


def flat(key: str) -> str:
    return FLAT.get(key) or f"the trainer's {TRAINER_ARGUMENTS[key]}"


def spell(text: str, face: Face) -> str:
    """`text` with the dotted keys in it spelled as the face does, and <section.field> unbracketed."""
    return _KEY.sub(lambda match: face(match[1]), re.sub(r"<(\w+\.\w+)>", r"\1", text))


def closest(name: str, candidates: Iterable[str]) -> str | None:
    """The candidate that `name` is probably a misspelling of."""
    matches = difflib.get_close_matches(name.replace("-", "_").lower(), list(candidates), n=1, cutoff=0.6)
    return matches[0] if matches else None
