"""Section `data`: where prompts come from and in which shape. See docs/data.md."""

from __future__ import annotations

from typing import Any

from pydantic import Field, PositiveInt

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
    system_prompt: str | None = None
    """Put before every prompt as a system message; string prompts become chats."""
    shuffle_dataset: bool = True
    """Shuffle rows anew in every epoch, seeded by run.seed."""
    max_prompt_length: PositiveInt | None = None
    """Prompts with more tokens are skipped and counted; none are cut."""
    chat_template_kwargs: dict[str, Any] = Field(default={})
    """Passed to the tokenizer's chat template."""
