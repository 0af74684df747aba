"""All rows of a run, by number: of one dataset, or of several, one after the other."""

from __future__ import annotations

import bisect
import hashlib
import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from asyncgrpo.prompts.encoding import with_system_prompt
from asyncgrpo.prompts.fitting import listed
from asyncgrpo.types import PromptText

__all__ = ["SOURCE_COLUMN", "Rows", "Source"]

SOURCE_COLUMN = "dataset"
"""Column with the name of a row's dataset, where several are mixed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """One dataset that has been checked."""

    name: str
    values: Any
    """A `datasets.Dataset`."""
    system_prompt: str | None
    digest: str | None = None
    """Of all values, where the source may give other rows at another time."""
    weight: float = 1.0


class Rows:
    """Of one dataset or more. mixed: name each row's dataset in a column, also if there is only one."""

    def __init__(self, sources: Sequence[Source], prompt_column: str, *, mixed: bool) -> None:
        self.sources, self.prompt_column, self.mixed = tuple(sources), prompt_column, mixed
        self._ends = list(itertools.accumulate(len(source.values) for source in sources))
        names = (name for source in sources for name in source.values.column_names)
        self.column_names = list(dict.fromkeys([*names, *([SOURCE_COLUMN] if mixed else [])]))

    def __len__(self) -> int:
        return self._ends[-1]

    def __getitem__(self, row: int) -> dict[str, Any]:
        return self.read([row])[0]

    def __iter__(self) -> Iterator[dict[str, Any]]:
        return (self[row] for row in range(len(self)))

    def __str__(self) -> str:
        return ", ".join(f"{source.name}: {len(source.values)} rows" for source in self.sources)

    @property
    def names(self) -> str:
        return ", ".join(source.name for source in self.sources)

    @property
    def digest(self) -> str | None:
        """Of the values of those that have one."""
        digests = [source.digest or "" for source in self.sources]
        return hashlib.sha256(" ".join(digests).encode()).hexdigest() if any(digests) else None

    @property
    def ranges(self) -> list[range]:
        """Rows of each dataset."""
        return [range(end - len(source.values), end) for source, end in zip(self.sources, self._ends, strict=True)]

    def read(self, rows: Sequence[int]) -> list[dict[str, Any]]:
        """Several at once: a dataset takes nearly as long for one. A column that a dataset lacks is None."""
        found: list[dict[str, Any]] = [{} for _ in rows]
        wanted: dict[int, list[tuple[int, int]]] = {}
        for place, row in enumerate(rows):
            number, within = self._find(row)
            wanted.setdefault(number, []).append((place, within))
        empty = dict.fromkeys(self.column_names)
        for number, places in wanted.items():
            source = self.sources[number]
            columns = source.values[[within for _, within in places]]
            more = {SOURCE_COLUMN: source.name} if self.mixed else {}
            for (place, _), values in zip(places, zip(*columns.values(), strict=True), strict=True):
                found[place] = {**empty, **dict(zip(columns, values, strict=True)), **more}
        return found

    def prompts(self) -> Iterator[PromptText]:
        """Of all rows in order, as `prompt_of`."""
        for source in self.sources:
            for prompt in source.values[self.prompt_column]:
                yield with_system_prompt(prompt, source.system_prompt)

    def prompt_of(self, row: int, values: dict[str, Any]) -> PromptText:
        """As it is trained: with the system prompt."""
        return with_system_prompt(values[self.prompt_column], self.source_of(row).system_prompt)

    def source_of(self, row: int) -> Source:
        return self.sources[self._find(row)[0]]

    def where(self, row: int) -> str:
        """What messages call it."""
        number, within = self._find(row)
        return f"{self.sources[number].name}: row {within}"

    def listed(self, rows: Sequence[int]) -> str:
        """Several, in few words."""
        by_source: dict[int, list[int]] = {}
        for number, within in sorted(self._find(row) for row in rows):
            by_source.setdefault(number, []).append(within)
        return "; ".join(f"{listed(within)} of {self.sources[number].name}" for number, within in by_source.items())

    def _find(self, row: int) -> tuple[int, int]:
        """The dataset of a row, and its number there."""
        number = bisect.bisect_right(self._ends, row)
        return number, row - (self._ends[number - 1] if number else 0)
