"""Section `data`: where prompts come from and in which shape. See docs/data.md."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import PurePath
from string import Formatter
from typing import Annotated, Any, Literal, Self

from pydantic import Field, PositiveInt, field_serializer, model_validator

from asyncgrpo.config.section import PathText, Section

TASKS = "reasoning_gym:"
"""What the name of a task begins with."""


class MixedDataset(Section):
    """One of several datasets that are mixed. What is left out is as in `data`."""

    dataset: Annotated[PathText, Field(min_length=1)]
    """As data.dataset."""
    weight: Annotated[float, Field(gt=0.0, le=1e6)] = 1.0
    """Share of the prompts, against the sum of all weights."""
    name: Annotated[str, Field(pattern=r"^[^/\s]+$")] | None = None
    """In metrics, and in the column `dataset` that rewards get. Absent: of the file, or the last part of a hub name."""
    dataset_config: str | None = None
    """As data.dataset_config."""
    dataset_split: str | None = None
    """As data.dataset_split."""
    max_rows: PositiveInt | None = None
    """As data.max_rows."""
    columns: dict[str, str] | None = None
    """As data.columns."""
    prompt_template: str | None = None
    """As data.prompt_template."""
    system_prompt: str | None = None
    """As data.system_prompt."""
    task_arguments: dict[str, Any] | None = None
    """As data.task_arguments."""

    @property
    def label(self) -> str:
        """Its name."""
        path = PurePath(self.dataset.removeprefix(TASKS))
        return self.name or (path.stem if path.suffix in (".jsonl", ".json", ".parquet") else path.name)

    @model_validator(mode="after")
    def _columns_can_be_had(self) -> Self:
        check_columns(self.columns or {})
        if self.prompt_template is not None:
            template_columns(self.prompt_template)
        return self


class DataSection(Section):
    dataset: PathText = ""
    """Where prompts come from: a JSONL, JSON or Parquet file, a folder saved by `datasets`, a name on the hub, or
    `reasoning_gym:TASK`."""
    dataset_config: str | None = None
    """Configuration of a hub dataset, for example `main` of openai/gsm8k."""
    dataset_split: str = "train"
    """Split to train on."""
    max_rows: PositiveInt | None = None
    """Take the first so many rows; of a hub dataset no more are downloaded. A streaming one needs it. Absent: all."""
    prompt_column: str = "prompt"
    """Column with the prompt: a string, or a list of chat messages."""
    columns: dict[str, str] = Field(default={})
    """New names of columns, as in {prompt: question, answer: solution}: what rewards take as `answer` is `solution`."""
    prompt_template: str | None = None
    """Text of the prompt with the names of columns in braces: `What is {a} + {b}?`. {{ and }} are braces."""
    mix: tuple[MixedDataset, ...] = ()
    """Several datasets in place of one, each with a weight: [{dataset: a.jsonl, weight: 0.7}, {dataset: b.jsonl}]."""
    system_prompt: str | None = None
    """Put before every prompt as a system message; string prompts become chats."""
    task_arguments: dict[str, Any] = Field(default={})
    """Of a reasoning_gym task: what its configuration takes, as {min_animals: 3}; `size` and `seed` among them."""
    shuffle_dataset: bool = True
    """Shuffle rows anew in every epoch, seeded by run.seed."""
    max_prompt_length: PositiveInt | None = None
    """Most tokens of a prompt. Absent: what the model, or engines.max_model_len, leaves beside a completion."""
    long_prompts: Literal["skip", "keep_tail"] = "skip"
    """A longer prompt is left out, counted and named (`skip`), or its last user message loses its beginning
    (`keep_tail`), and is left out only if that is not enough."""
    chat_template_kwargs: dict[str, Any] = Field(default={})
    """Passed to the tokenizer's chat template."""

    @model_validator(mode="after")
    def _columns_can_be_had(self) -> Self:
        check_columns(self.columns)
        if self.prompt_template is not None:
            template_columns(self.prompt_template)
        return self

    @model_validator(mode="after")
    def _mix_is_one(self) -> Self:
        if self.mix and self.dataset:
            raise ValueError(f"data.dataset={self.dataset} and data.mix both name datasets; leave one of them out")
        named = [dataset for dataset in (self.dataset, *(entry.dataset for entry in self.mix)) if dataset]
        given = [self.task_arguments, *(entry.task_arguments for entry in self.mix)]
        # None is named yet where a trainer will be given it.
        if any(given) and named and not any(dataset.startswith(TASKS) for dataset in named):
            raise ValueError(
                "data.task_arguments are for tasks, and no dataset is one; name one, as "
                f"data.dataset={TASKS}leg_counting"
            )
        labels = [entry.label for entry in self.mix]
        twice = sorted({label for label in labels if labels.count(label) > 1})
        if twice:
            raise ValueError(f"data.mix has more than one dataset called {', '.join(twice)}; give each a name")
        return self

    @field_serializer("mix")
    def _as_given(self, mix: tuple[MixedDataset, ...]) -> list[dict[str, Any]]:
        """Without what entries leave to the section."""
        return [entry.model_dump(exclude_none=True) for entry in mix]

    def of(self, entry: MixedDataset) -> DataSection:
        """The section, as it is for one dataset of the mix."""
        own = {name: value for name in _OWN if (value := getattr(entry, name)) is not None}
        return self.model_copy(update={**own, "dataset": entry.dataset, "mix": ()})


_OWN = ("dataset_config", "dataset_split", "max_rows", "columns", "prompt_template", "system_prompt", "task_arguments")


def check_columns(columns: Mapping[str, str], setting: str = "data.columns") -> None:
    """Raises ValueError for a column that gets two names."""
    twice = sorted({old for old in columns.values() if list(columns.values()).count(old) > 1})
    if twice:
        raise ValueError(f"{setting} gives {', '.join(map(repr, twice))} more than one name; give it one")


def template_columns(template: str, setting: str = "data.prompt_template") -> list[str]:
    """Columns that a prompt template names, each once. Raises ValueError for anything but names in braces."""
    try:
        parts = list(Formatter().parse(template))
    except ValueError as error:
        raise ValueError(f"{setting}: {error}; a brace that is text is written twice, {{{{ or }}}}") from error
    names: dict[str, None] = {}
    for _, field, spec, conversion in parts:
        if field is None:
            continue
        if not field or spec or conversion or field.isdigit() or set(field) & set(".[]"):
            written = f"{field}{'!' if conversion else ''}{conversion or ''}{':' if spec else ''}{spec or ''}"
            raise ValueError(
                f"{setting}: {{{written}}} is no column; write a name in braces, and a brace that is text twice, "
                "{{ or }}"
            )
        names[field] = None
    return list(names)
