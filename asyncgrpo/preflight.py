"""Everything that can be refused before a model loads, and what the run is made from afterwards."""

from __future__ import annotations

import json
import math
import socket
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from asyncgrpo.config import RunConfig
from asyncgrpo.config.adapter import with_adapter
from asyncgrpo.config.four_bit_checks import check_four_bit
from asyncgrpo.config.resolve import Machine, locate_model, resolve
from asyncgrpo.config.secrets import check_logins, secret_of
from asyncgrpo.config.sections import RunSection, TrainingSection
from asyncgrpo.config.training_checks import check_warm_up
from asyncgrpo.config.transport_checks import check_transport
from asyncgrpo.environments.building import find_source
from asyncgrpo.environments.player import Player
from asyncgrpo.errors import ConfigError, RunFolderError
from asyncgrpo.evaluation.held_out import HeldOut, held_out
from asyncgrpo.generation.spec import check_ports, check_vllm_installed
from asyncgrpo.observe.run_folder import RunFolder, check_free
from asyncgrpo.observe.trackers import check_installed
from asyncgrpo.observe.webhook import check_webhook
from asyncgrpo.playing import check_columns, player_of, reward_functions, with_tools
from asyncgrpo.prompts.encoding import load_tokenizer
from asyncgrpo.prompts.rows import load_rows
from asyncgrpo.prompts.stream import PromptStream
from asyncgrpo.rewards.functions import RewardFunction


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """A checked run: nothing here is known to be wrong."""

    config: RunConfig
    """Resolved: no `auto` is left, but for the dtype of engines that already run."""
    prompts: PromptStream
    rewards: Sequence[RewardFunction]
    tokenizer: Any
    total_steps: int
    player: Player | None = None
    """Plays the turns of a sample; None: a sample is one completion."""
    vocab_size: int | None
    """Size of the model's output; None when its configuration is not here to be read."""
    held_out: HeldOut | None = None
    """What is evaluated beside the training, if anything is."""


def prepare(
    config: RunConfig,
    *,
    rows: Any = None,
    rewards: Sequence[RewardFunction] | None = None,
    tokenizer: Any = None,
    eval_rows: Any = None,
    machine: Machine | None = None,
    environment_factory: Callable[..., Any] | None = None,
    tools: Sequence[Callable[..., Any]] = (),
) -> Job:
    """Check a configuration and load what is light: rows, tokenizer, reward functions.

    `rows`, `rewards`, `tokenizer` and `eval_rows` are given by Python callers; absent, the configuration names them.
    Raises ConfigError, DataError or RunFolderError, each naming value and remedy.
    """
    config = with_adapter(config)
    check_transport(config)
    check_four_bit(config)
    check_model_path(config.model.path)
    config = within_context(resolve(config, machine or Machine.here()))
    check_output_dir(config.run)
    check_former_run(config.run.plan_from)
    if config.engines.devices:
        check_vllm_installed()
    check_ports(config)
    check_metrics_port(config)
    check_installed(config.observe.trackers)
    check_logins(config.engines.urls)
    secret_of(config.engines.api_key_env, "engines.api_key_env")
    secret_of(config.observe.metrics_token_env, "observe.metrics_token_env")
    check_webhook(config.observe.webhook_env)
    source = find_source(config, environment_factory, tools)
    functions = reward_functions(config, source, rewards)
    checked_rows = load_rows(config, rows)
    check_columns(functions, source, set(checked_rows.column_names) - {checked_rows.prompt_column})
    tokenizer = load_tokenizer(config) if tokenizer is None else tokenizer
    shown = with_tools(config, source)
    prompts = PromptStream(checked_rows, tokenizer, shown)
    context = model_setting(config, "max_position_embeddings")
    player = player_of(source, shown, tokenizer, prompts, context)
    steps = total_steps(config, prompts.prompts_per_epoch)
    training = with_length(config.training, steps)
    return Job(
        config=config.model_copy(update={"training": training}),
        prompts=prompts,
        rewards=functions,
        tokenizer=tokenizer,
        total_steps=steps,
        player=player,
        vocab_size=model_setting(config, "vocab_size"),
        held_out=held_out(config, tokenizer, functions, rows=eval_rows, context=context, source=source),
    )


def check_output_dir(run: RunSection) -> None:
    """Raises RunFolderError for a folder that can neither be made nor resumed, or that another run uses."""
    folder = RunFolder(run.output_dir)
    folder.check_unlocked()
    has_checkpoint = folder.has_checkpoint
    if run.resume == "must" and not has_checkpoint:
        raise RunFolderError(
            f"run.resume=must, but {run.output_dir} has no checkpoint to resume from; name another run.output_dir, or "
            "leave run.resume out to start anew"
        )
    if run.resume == "never" or not (has_checkpoint or folder.was_cut_off):
        check_free(Path(run.output_dir))


def model_setting(config: RunConfig, name: str) -> int | None:
    """A whole number of the model's config.json; None for a hub model or another layout."""
    try:
        value = json.loads((Path(config.model.path) / "config.json").read_text()).get(name)
    except (OSError, ValueError):
        return None
    return value if isinstance(value, int) else None


def within_context(config: RunConfig) -> RunConfig:
    """Refuses lengths that the model's context cannot hold, which the engine would refuse a minute later.

    Without any limit on prompts they get what completions leave: longer ones are then skipped and counted.
    """
    context = model_setting(config, "max_position_embeddings")
    if context is None:
        return config
    longest = max(config.engines.max_model_len or 0, config.generation.max_completion_length + 1)
    if longest > context:
        raise ConfigError(
            f"prompt and completion may have {longest} tokens, but the model's context is {context}; lower "
            "generation.max_completion_length, data.max_prompt_length or engines.max_model_len"
        )
    if not config.engines.devices or config.engines.max_model_len is not None:
        return config
    room = context - config.generation.max_completion_length
    return config.model_copy(update={"data": config.data.model_copy(update={"max_prompt_length": room})})


def total_steps(config: RunConfig, prompts_per_epoch: int) -> int:
    """A last step that the epochs do not fill takes prompts of the next one."""
    training = config.training
    if training.max_steps > 0:
        return training.max_steps
    return max(1, math.ceil(training.num_train_epochs * prompts_per_epoch / training.groups_per_step))


def with_length(training: TrainingSection, steps: int) -> TrainingSection:
    """Schedules need the length. Raises ConfigError for a warm-up that the run ends in."""
    section = training.model_copy(update={"max_steps": steps})
    try:
        check_warm_up(section)
    except ValueError as error:
        raise ConfigError(str(error)) from error
    return section


def check_model_path(path: str) -> None:
    """What is a local path must hold a model; a name on the hub is the learner's to find."""
    if not path:
        raise ConfigError("model.path is not set: name a folder in Hugging Face format, or a model on the hub")
    folder = Path(locate_model(path))
    if not folder.is_absolute():
        return
    if not folder.exists():
        raise ConfigError(f"model.path={path} does not exist (looked in {Path.cwd()})")
    if not (folder / "config.json").is_file():
        raise ConfigError(f"model.path={path} has no config.json, so it is not a model in Hugging Face format")


def check_former_run(path: str | None) -> None:
    """Whether it holds what a prediction is made from. Raises ConfigError."""
    if path is None:
        return
    former = RunFolder(path)
    if not former.metrics_file.is_file():
        raise ConfigError(f"run.plan_from={path} is no folder of a run: it has no metrics.jsonl; name another or none")
    if not any(former.rollouts_dir.glob("step_*.parquet")):
        raise ConfigError(f"run.plan_from={path} has no rollouts; name a run with observe.save_rollouts=true, or none")


def check_metrics_port(config: RunConfig) -> None:
    host, port = config.observe.metrics_host, config.observe.metrics_port
    if port <= 0:
        return
    with socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
        except OSError as error:
            raise ConfigError(
                f"observe.metrics_port={port}: cannot listen on {host}: {error.strerror}; "
                "choose another, or 0 for a free one"
            ) from error
