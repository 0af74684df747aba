"""Section `evaluation`: held-out prompts that are answered and scored beside the training. See docs/evaluation.md."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field, NonNegativeInt, PositiveFloat, PositiveInt

from asyncgrpo.config.data import TASKS, check_columns, template_columns
from asyncgrpo.config.section import PathText, Section

LEAST_TEMPERATURE = 0.01
"""vLLM raises what lies below to it, but for 0, which is greedy."""


class EvaluationSection(Section):
    dataset: PathText = ""
    """Held-out prompts: a file, a folder, a name on the hub, or `reasoning_gym:TASK`. Absent: none."""
    dataset_config: str | None = None
    """Configuration of a hub dataset, for example `main` of openai/gsm8k."""
    dataset_split: str = "test"
    """Split to evaluate on."""
    columns: dict[str, str] | None = None
    """New names of its columns, as data.columns. Absent: those."""
    prompt_template: str | None = None
    """Text of its prompts, as data.prompt_template. Absent: that."""
    system_prompt: str | None = None
    """Put before its prompts, as data.system_prompt. Absent: that."""
    task_arguments: dict[str, Any] | None = None
    """Of its reasoning_gym task. Absent: data.task_arguments, but with `size` and `seed` of its own."""
    max_prompts: PositiveInt | None = None
    """Most prompts, the first that fit. Absent: all."""
    eval_strategy: Literal["no", "steps"] = "steps"
    """While training: as eval_on_start and eval_steps say, and after the last step (`steps`); or not at all (`no`)."""
    eval_steps: NonNegativeInt = 0
    """Evaluate after every so many steps, and after the last. 0: after the last only."""
    eval_on_start: bool = True
    """Evaluate version 0 as well: the model before any training."""
    num_generations_eval: Annotated[PositiveInt | None, Field(le=4096)] = None
    """k: samples per prompt, for mean@k and pass@k. Absent: generation.num_generations; 1 where they are greedy."""
    temperature: Annotated[float, Field(ge=0.0, le=2.0)] | None = None
    """Sampling temperature; 0 is greedy. Absent: generation.temperature."""
    max_completion_length: PositiveInt | None = None
    """Most tokens a completion may have. Absent: generation.max_completion_length."""
    rewards: tuple[str, ...] = ()
    """Reward functions by path (`package.module:function` or `file.py:function`), weight 1 each. Absent: the run's."""
    pass_reward: str | None = None
    """Name of the reward function that says whether a sample passes, for pass@k. Absent: the weighted sum does."""
    pass_threshold: float = 1.0
    """A sample passes with at least this reward."""
    max_concurrency: PositiveInt = 16
    """Most requests of an evaluation at the same time, all engines together; the rest of the engines goes on training.
    """
    one_version: bool = True
    """No version is published while an evaluation samples, so that all its tokens are of one. Off: publishes go on, and
    samples that span versions are counted."""
    timeout: PositiveFloat = 900.0
    """Seconds an evaluation may take; then it has failed, and the run goes on."""
    save_samples: bool = True
    """Write its samples to rollouts/eval_*.parquet."""

    def check(self) -> None:
        """Raises ValueError for settings that contradict each other, or would measure nothing."""
        self._check_shape()
        if self.temperature is not None and 0.0 < self.temperature < LEAST_TEMPERATURE:
            raise ValueError(
                f"evaluation.temperature={self.temperature:g} is not what engines would sample at: vLLM raises what "
                f"lies below {LEAST_TEMPERATURE} to it; give 0 (greedy) or at least {LEAST_TEMPERATURE}"
            )
        if self.temperature == 0.0 and (self.num_generations_eval or 1) > 1:
            raise ValueError(
                f"evaluation.num_generations_eval={self.num_generations_eval} with evaluation.temperature=0 is of no "
                "use: greedy samples of a prompt are all the same; set evaluation.num_generations_eval=1, or a "
                "temperature"
            )
        if self.eval_strategy == "no" and self.eval_steps:
            raise ValueError(
                f"evaluation.eval_steps={self.eval_steps} has no effect with evaluation.eval_strategy=no; set "
                "evaluation.eval_strategy=steps, or leave evaluation.eval_steps out"
            )

    def _check_shape(self) -> None:
        """Of the rows."""
        check_columns(self.columns or {}, "evaluation.columns")
        if self.prompt_template is not None:
            template_columns(self.prompt_template, "evaluation.prompt_template")
        if self.task_arguments and self.dataset and not self.dataset.startswith(TASKS):
            raise ValueError(
                "evaluation.task_arguments are for tasks, and evaluation.dataset is none; name one, as "
                f"evaluation.dataset={TASKS}leg_counting"
            )

    @property
    def given(self) -> list[str]:
        """Names of the settings that are not as they are by default."""
        return [name for name, field in type(self).model_fields.items() if getattr(self, name) != field.default]
