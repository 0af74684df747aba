"""What an evaluation is made from: held-out prompts, how they are sampled, and who scores them. Checked, not begun."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from asyncgrpo.config import RunConfig
from asyncgrpo.config.data import TASKS
from asyncgrpo.config.evaluation import EvaluationSection
from asyncgrpo.config.sections import RewardSection
from asyncgrpo.environments.building import Source
from asyncgrpo.environments.player import Player
from asyncgrpo.errors import ConfigError, DataError
from asyncgrpo.evaluation.estimates import ks_up_to
from asyncgrpo.playing import check_columns, configured_rewards, player_of, with_tools
from asyncgrpo.prompts.rows import load_rows
from asyncgrpo.prompts.stream import PromptStream
from asyncgrpo.prompts.table import Rows
from asyncgrpo.rewards.binding import bound
from asyncgrpo.rewards.functions import RewardFunction
from asyncgrpo.types import Prompt, Sample

_SHAPE = ("columns", "prompt_template", "system_prompt", "task_arguments")
"""Settings of rows that an evaluation has of its own, or else shares with the training."""
APART = 2**31
"""Between seeds of tasks that are trained on and of those that are held out."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HeldOut:
    """A checked evaluation."""

    prompts: Sequence[Prompt]
    skipped: int
    """Rows left out because their prompt is too long."""
    rewards: Sequence[RewardFunction]
    player: Player | None = None
    """Plays the turns of a sample, as in training; None: a sample is one completion."""
    config: RunConfig
    """As the requests of an evaluation see it: its `generation` has their number, temperature and length."""
    digest: str
    """Of the prompts' token ids, in order: equal only for the same held-out set."""

    @property
    def samples_per_prompt(self) -> int:
        return self.config.generation.num_generations

    @property
    def ks(self) -> list[int]:
        return ks_up_to(self.samples_per_prompt)

    def passes(self, sample: Sample) -> bool | None:
        """None where no reward function that counts applied."""
        section = self.config.evaluation
        value = sample.reward if section.pass_reward is None else sample.rewards[section.pass_reward]
        return None if value is None or np.isnan(value) else bool(value >= section.pass_threshold)


def held_out(
    config: RunConfig,
    tokenizer: Any,
    rewards: Sequence[RewardFunction],
    *,
    rows: Any = None,
    context: int | None = None,
    source: Source | None = None,
) -> HeldOut | None:
    """The evaluation that a resolved configuration asks for; None if none.

    rows: given by Python callers, instead of `evaluation.dataset`. rewards: the run's. context: tokens that the model
    can hold, if known. source: the run's environment. Raises ConfigError or DataError.
    """
    section = config.evaluation
    if rows is None and not section.dataset:
        _check_nothing_given(section)
        return None
    if section.eval_strategy != "no" and section.one_version and section.timeout >= config.buffer.stall_timeout:
        raise ConfigError(
            f"evaluation.timeout={section.timeout:g} is not less than buffer.stall_timeout="
            f"{config.buffer.stall_timeout:g}: a step may have to wait for an evaluation, and would be given up first; "
            "lower the one, raise the other, or set evaluation.one_version=false"
        )
    functions = rewards
    if section.rewards:
        own = configured_rewards([RewardSection(path=path) for path in section.rewards], source)
        functions = bound(own, config.generation.max_completion_length)
    check_pass_reward(section.pass_reward, functions)
    view = with_tools(_with_own_rows(_as_evaluated(config, context), rows), source)
    with _own_names(section):
        checked = load_rows(view, rows)
        check_columns(functions, source, set(checked.column_names) - {checked.prompt_column})
        stream = PromptStream(checked, tokenizer, view)
        count = min(stream.prompts_per_epoch, section.max_prompts or stream.prompts_per_epoch)
        prompts = [stream.next() for _ in range(count)]
        player = player_of(source, view, tokenizer, stream, context)
    return HeldOut(
        prompts=[replace(prompt, prompt_id=f"eval-{prompt.row}") for prompt in prompts],
        skipped=stream.skipped_per_epoch,
        rewards=functions,
        player=player,
        config=view,
        digest=_digest(prompts),
    )


def held_out_rows(config: RunConfig) -> Rows | None:
    """The rows that `evaluation.dataset` names, looked at as `held_out` does before it needs a tokenizer; None if there
    are to be none. Raises ConfigError or DataError."""
    if not config.evaluation.dataset:
        _check_nothing_given(config.evaluation)
        return None
    with _own_names(config.evaluation):
        return load_rows(_with_own_rows(_as_evaluated(config, None), None))


def _check_nothing_given(section: EvaluationSection) -> None:
    if section.given:
        name = section.given[0]
        raise ConfigError(
            f"evaluation.{name}={getattr(section, name)} has no effect without held-out prompts; name "
            "evaluation.dataset, or leave it out"
        )


def check_pass_reward(name: str | None, functions: Sequence[RewardFunction]) -> None:
    """Raises ConfigError for one that no reward function has."""
    names = [function.name for function in functions]
    if name is not None and name not in names:
        raise ConfigError(f"evaluation.pass_reward={name!r} is none of the reward functions: {', '.join(names)}")


def _as_evaluated(config: RunConfig, context: int | None) -> RunConfig:
    """The configuration in which `data` and `generation` say what `evaluation` does."""
    section, generation, data = config.evaluation, config.generation, config.data
    temperature = generation.temperature if section.temperature is None else section.temperature
    longest = section.max_completion_length or generation.max_completion_length
    samples = section.num_generations_eval or (1 if temperature == 0.0 else generation.num_generations)
    room = [limit - longest for limit in (config.engines.max_model_len, context) if limit is not None]
    if any(tokens < 1 for tokens in room):
        raise ConfigError(
            f"evaluation.max_completion_length={longest} leaves no room for a prompt in {longest + min(room)} tokens, "
            "which is all that engine or model take; lower it"
        )
    limits = [*room, *([] if data.max_prompt_length is None else [data.max_prompt_length])]
    named = {"shuffle_dataset": False, "max_prompt_length": min(limits, default=None)}
    sampled = {"num_generations": samples, "temperature": temperature, "max_completion_length": longest}
    return config.model_copy(
        update={"data": data.model_copy(update=named), "generation": generation.model_copy(update=sampled)}
    )


def _with_own_rows(config: RunConfig, rows: Any) -> RunConfig:
    """The configuration in which `data` names the held-out rows, and says how prompts are made of them."""
    section, data = config.evaluation, config.data
    is_task = rows is None and section.dataset.startswith(TASKS)
    own = {name: value for name in _SHAPE if (value := getattr(section, name)) is not None}
    named: dict[str, Any] = {
        "dataset": section.dataset,
        "dataset_config": section.dataset_config,
        "dataset_split": section.dataset_split,
        # What has no end, or any, ends here; of other rows, those that fit are counted.
        "max_rows": section.max_prompts if is_task or _is_stream(rows) else None,
        "mix": (),
        "task_arguments": {},
    }
    if is_task:
        own["task_arguments"] = _task_arguments(config)
    return config.model_copy(update={"data": data.model_copy(update=named | own)})


def _task_arguments(config: RunConfig) -> dict[str, Any]:
    """Those given for the evaluation, or else the training's; not with its seed, for held-out tasks are others.

    Task i of seed s is that of seed s + i, so a seed near the training's would give the same ones.
    """
    own = config.evaluation.task_arguments
    trained = config.data.task_arguments
    seed = trained.get("seed")
    apart = (seed if isinstance(seed, int) else config.run.seed) + APART
    if own is None:
        own = {name: value for name, value in trained.items() if name not in ("size", "seed")}
    return {"seed": apart % (2 * APART), **own}


def _is_stream(rows: Any) -> bool:
    if rows is None:
        return False
    from datasets import IterableDataset

    return isinstance(rows, IterableDataset)


@contextmanager
def _own_names(section: EvaluationSection) -> Iterator[None]:
    """Errors of loading rows name the settings of the evaluation, not those of training data."""
    own = {"data.dataset": "evaluation.dataset", "train_dataset": "eval_dataset"}
    own |= {"data.max_rows": "evaluation.max_prompts"}
    names = [name for name in _SHAPE if name != "system_prompt" or section.system_prompt is not None]
    own |= {f"data.{name}": f"evaluation.{name}" for name in names}
    try:
        yield
    except (ConfigError, DataError) as error:
        said = str(error)
        for theirs, ours in own.items():
            said = said.replace(theirs, ours)
        raise error.saying(said if "eval" in said else f"evaluation.dataset: {said}") from error


def _digest(prompts: Sequence[Prompt]) -> str:
    digest = hashlib.sha256()
    for prompt in prompts:
        digest.update(np.asarray([len(prompt.token_ids), *prompt.token_ids], np.int64).tobytes())
    return digest.hexdigest()[:16]
