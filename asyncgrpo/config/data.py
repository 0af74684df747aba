"""Section `data`: where prompts come from and in which shape. See docs/data.md."""

from __future__ import annotations

from collections.abc import Mapping
from string import Formatter
from typing import Any, Literal, Self

from pydantic import Field, PositiveInt, model_validator

from asyncgrpo.config.section import PathText, Section


class DataSection(Section):
    dataset: PathText = ""
    """Where prompts come from: a JSONL, JSON or Parquet file, a folder saved by `datasets`, or a name on the hub."""
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
    system_prompt: str | None = None
    """Put before every prompt as a system message; string prompts become chats."""
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


def check_columns(columns: Mapping[str, str]) -> None:
    """Raises ValueError for a column that gets two names."""
    twice = sorted({old for old in columns.values() if list(columns.values()).count(old) > 1})
    if twice:
        raise ValueError(f"data.columns gives {', '.join(map(repr, twice))} more than one name; give it one")


def template_columns(template: str) -> list[str]:
    """Columns that a prompt template names, each once. Raises ValueError for anything but names in braces."""
    try:
        parts = list(Formatter().parse(template))
    except ValueError as error:
        raise ValueError(
            f"data.prompt_template: {error}; a brace that is text is written twice, {{{{ or }}}}"
        ) from error
    names: dict[str, None] = {}
    for _, field, spec, conversion in parts:
        if field is None:
            continue
        if not field or spec or conversion or field.isdigit() or set(field) & set(".[]"):
            written = f"{field}{'!' if conversion else ''}{conversion or ''}{':' if spec else ''}{spec or ''}"
            raise ValueError(
                f"data.prompt_template: {{{written}}} is no column; write a name in braces, and a brace that is text "
                "twice, {{ or }}"
            )
        names[field] = None
    return list(names)
