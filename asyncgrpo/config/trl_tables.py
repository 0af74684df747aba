"""What is known of TRL's arguments beyond their names: defaults that differ, and arguments that are not needed."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from asyncgrpo.config.names import ELSEWHERE

__all__ = ["DEFAULTS", "NEEDLESS", "SCRIPT", "advice_on", "is_off"]

DEFAULTS: Mapping[str, Any] = {
    "gradient_checkpointing": True,
    "vllm_server_timeout": 240.0,
    "vllm_gpu_memory_utilization": 0.3,
}
"""Of both, where ours is another that changes neither: it is told. docs/coming_from_trl.md shows them all."""

_NEEDLESS = """
    accelerator_config average_tokens_across_devices cache_implementation dataloader_drop_last
    dataloader_in_order dataloader_multiprocessing_context dataloader_num_workers dataloader_persistent_workers
    dataloader_pin_memory dataloader_prefetch_factor ddp_backend ddp_broadcast_buffers ddp_bucket_cap_mb
    ddp_find_unused_parameters ddp_static_graph ddp_timeout disable_dropout disable_tqdm do_train
    ds3_gather_for_generation gradient_checkpointing_kwargs ignore_bias_buffers local_rank log_completions
    log_level log_level_replica log_on_each_node log_unique_prompts logging_dir logging_first_step
    logging_nan_inf_filter logging_steps logging_strategy lora_task_type num_completions_to_print num_processes
    overwrite_output_dir remove_unused_columns skip_memory_metrics torch_empty_cache_steps use_cache
    use_liger_kernel use_liger_loss use_vllm vllm_enable_sleep_mode vllm_group_port vllm_mode
"""

NEEDLESS = frozenset(_NEEDLESS.split())
"""Without them a run here does what it does in TRL, or shows as much."""

_NOT_YET = "this version does not have it"

_STREAMING = "set <data.max_rows>: so many rows are streamed before the run, and no more are downloaded"

SCRIPT: Mapping[str, str] = {
    "model_revision": "download that revision, and name its folder as <model.path>",
    "dataset_test_split": "name it as <evaluation.dataset_split>, of <evaluation.dataset>",
    "dataset_streaming": _STREAMING,
    "reward_model_name_or_path": "an entry of rewards: [{model: FOLDER_OR_NAME, device: cuda:1}]",
    "ignore_bias_buffers": "not needed",
    "lora_task_type": "not needed",
    "lora_target_parameters": _NOT_YET,
    "use_rslora": f"{_NOT_YET}: set <lora.lora_alpha> to alpha times the root of the rank, for the same scale",
    "use_dora": _NOT_YET,
    **dict.fromkeys(
        ["load_in_8bit", "bnb_4bit_quant_type", "use_bnb_nested_quant", "bnb_4bit_quant_storage"],
        f"{_NOT_YET}: <model.load_in_4bit> is NF4, its constants not rounded once more",
    ),
    "streaming": _STREAMING,
    "test_split_size": "write the held-out rows to a file of their own, and name it as <evaluation.dataset>",
    "datasets": "TRL concatenates them: name each in <data.mix>, with its number of rows as weight",
    "env": "set environment variables in the shell that starts the run",
    "accelerate_config": "name devices: <learner.devices>, <engines.devices>",
    "num_processes": "processes follow from <learner.devices>",
}
"""Arguments of TRL's script beside GRPOConfig's (those of the script, the model, the data mixture, the launcher)."""


def advice_on(name: str) -> str | None:
    """What to do instead of an argument that has no counterpart; None for one that TRL does not have."""
    return SCRIPT.get(name) or ELSEWHERE.get(name)


def is_off(name: str, value: Any) -> bool:
    """The value asks for nothing."""
    harmless = {
        "model_revision": "main",
        "bnb_4bit_quant_type": "nf4",
        "bnb_4bit_quant_storage": "uint8",
        "optim": ("adamw_torch", "adamw_torch_fused"),
    }
    if value in (None, False, "", "no", "none") or value == [] or value == {}:
        return True
    allowed = harmless.get(name, ())
    return value == allowed or (isinstance(allowed, tuple) and value in allowed)
