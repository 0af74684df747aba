"""Curves over steps from metrics.jsonl and evaluation.jsonl, thinned while they are read."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec
import numpy as np

from asyncgrpo.observe.metrics import STEP_FIELDS
from asyncgrpo.observe.page.evaluated import Evaluated
from asyncgrpo.observe.page.tail import LineTail, with_pauses
from asyncgrpo.observe.page.thinning import Thinned
from asyncgrpo.observe.run_folder import RunFolder

__all__ = ["Curves", "meaning_of"]

POINTS = 1024
"""Most points of a curve: a chart is hardly wider in pixels."""
MOST_FIELDS = 600
"""Fields that are kept; what a reward function logs under ever new names is not."""

CHARTED: Sequence[str] = (
    "reward_mean", "reward_mean/", "reward_standard_error", "staleness_tokens/", "staleness_mean", "staleness_max",
    "policy_entropy_nats", "policy_kl_nats/", "generated_tokens_per_second", "trained_tokens_per_second",
    "step_seconds", "waiting_seconds", "training_seconds", "snapshot_seconds", "publish_seconds",
    "generation_idle_ratio", "generated_while_training_ratio", "completion_tokens_mean", "completion_tokens_min",
    "completion_tokens_max", "truncated_ratio", "uniform_groups_ratio", "gradient_norm", "loss",
    "clipped_tokens_ratio/", "importance_weight_effective_ratio", "behaviour_ratio_effective_ratio",
)  # fmt: skip
"""Fields of the page's charts; `name/` stands for all its labels."""
ABSENT_IS_ZERO = "staleness_tokens/"


class Curves:
    """Of one run. `update` before anything else."""

    def __init__(self, folder: RunFolder) -> None:
        self._evaluated = Evaluated(folder)
        self._tail = LineTail(folder.metrics_file)
        self._begin()

    def _begin(self) -> None:
        self._thinned = Thinned(POINTS)
        self.first: dict[str, Any] = {}
        self.newest: dict[str, Any] = {}
        self.unreadable = 0
        """Lines that are no record of a step."""

    @property
    def steps(self) -> int:
        return self._thinned.rows

    @property
    def fields(self) -> list[str]:
        return self._thinned.fields

    def update(self) -> None:
        """Read what was added. Raises OSError."""
        self._evaluated.update()
        if self._tail.has_changed():
            self._begin()
        while lines := self._tail.read():
            records = [record for line in with_pauses(lines) if (record := self._record(line)) is not None]
            if records:
                self.first = self.first or records[0]
                self.newest = records[-1]
                self._thinned.extend(self._columns(records), len(records))

    def series(self, names: Sequence[str] | None = None) -> dict[str, Any]:
        """Curves of the fields with these names; None: those of the page's charts. Unknown ones are left out."""
        wanted = [name for name in self._thinned.fields if (_is_charted(name) if names is None else name in names)]
        fields = {
            name: self._thinned.of(name, absent_is_zero=name.startswith(ABSENT_IS_ZERO))
            for name in wanted
            if name not in ("step", "time")
        }
        axes: dict[str, Any] = {
            name: self._thinned.of(name, digits=13)["mean"] for name in ("step", "time") if name in self._thinned.fields
        }
        return {"rows": self.steps, "width": self._thinned.width, **axes, "fields": fields, **self._evaluated.series()}

    def numbers(self) -> list[dict[str, Any]]:
        """Every field, with its meaning and what it was."""
        rows = []
        for name in self._thinned.fields:
            least, largest = self._thinned.extremes(name)
            rows.append(
                {
                    "name": name,
                    "meaning": meaning_of(name),
                    "first": self.first.get(name),
                    "newest": self.newest.get(name),
                    "min": least,
                    "max": largest,
                }
            )
        return rows

    def _record(self, line: bytes) -> dict[str, Any] | None:
        try:
            record = msgspec.json.decode(line)
            if isinstance(record, dict) and isinstance(record["step"], int):
                return record
        except (ValueError, KeyError):
            pass
        self.unreadable += 1
        return None

    def _columns(self, records: Sequence[Mapping[str, Any]]) -> dict[str, np.ndarray]:
        names = dict.fromkeys(self._thinned.fields)
        for record in records:
            names.update(dict.fromkeys(record))
        kept = list(names)[:MOST_FIELDS]
        return {
            name: values for name in kept if (values := _column([record.get(name) for record in records])) is not None
        }


def meaning_of(name: str) -> str:
    """What STEP_FIELDS says of a field."""
    if name in STEP_FIELDS:
        return STEP_FIELDS[name]
    for pattern, meaning in _PATTERNS:
        if pattern.fullmatch(name):
            return meaning
    return ""


def _pattern(field: str) -> re.Pattern[str]:
    """`name/<label>` with any label; the longest fits first."""
    parts = re.split(r"<[^>]*>", field)
    return re.compile("[^/]*".join(map(re.escape, parts[:-1])) + ".*" + re.escape(parts[-1]))


_PATTERNS = [
    (_pattern(field), meaning)
    for field, meaning in sorted(STEP_FIELDS.items(), key=lambda item: -len(item[0]))
    if "<" in field
]


def _is_charted(name: str) -> bool:
    return name in CHARTED or (f"{name.partition('/')[0]}/" in CHARTED and "/" in name)


def _column(values: list[Any]) -> np.ndarray | None:
    """None if it holds no numbers, as the verdict."""
    if any(isinstance(value, str) for value in values):
        return None
    return np.array([_float(value) for value in values])


def _float(value: Any) -> float:
    """NaN for what is none, as a file that others have edited may hold."""
    try:
        return float(value) if isinstance(value, int | float) else math.nan
    except OverflowError:
        return math.nan
