"""All rows of a run, by number."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from asyncgrpo.prompts.encoding import with_system_prompt
from asyncgrpo.prompts.fitting import listed
from asyncgrpo.types import PromptText

__all__ = ["Rows"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Rows:
    """Of one dataset that has been checked."""

    name: str
    """Of the dataset, for messages."""
    values: Any
    """A `datasets.Dataset`."""
    prompt_column: str
    system_prompt: str | None
    digest: str | None = None
    """Of all values, where the source may give other rows at another time."""

    def __len__(self) -> int:
        return len(self.values)

    def __getitem__(self, row: int) -> dict[str, Any]:
        values: dict[str, Any] = self.values[row]
        return values

    def __iter__(self) -> Iterator[dict[str, Any]]:
        return (self[row] for row in range(len(self)))

    @property
    def column_names(self) -> list[str]:
        names: list[str] = self.values.column_names
        return names

    def read(self, rows: Sequence[int]) -> list[dict[str, Any]]:
        """Several at once: a dataset takes nearly as long for one."""
        columns = self.values[list(rows)]
        return [dict(zip(columns, values, strict=True)) for values in zip(*columns.values(), strict=True)]

    def prompts(self) -> Iterator[PromptText]:
        """Of all rows in order, as `prompt_of`."""
        return (with_system_prompt(prompt, self.system_prompt) for prompt in self.values[self.prompt_column])

    def prompt_of(self, values: dict[str, Any]) -> PromptText:
        """As it is trained: with the system prompt."""
        return with_system_prompt(values[self.prompt_column], self.system_prompt)

    def where(self, row: int) -> str:
        """What errors call it."""
        return f"{self.name}: row {row}"

    def listed(self, rows: Sequence[int]) -> str:
        """Several, in order, in few words."""
        return f"{listed(rows)} of {self.name}"
