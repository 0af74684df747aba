"""What reward functions see of the run, and what they say besides rewards: `trainer_state`, `log_metric`, `log_extra`.

Invariant: what a call says counts once the call has succeeded, for its own group and no other. What it says later, from
a thread that outlived its deadline, counts nowhere.
"""

from __future__ import annotations

import json
import logging
import math
import re
import threading
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from asyncgrpo.types import Prompt
from asyncgrpo.user_code.texts import brief

logger = logging.getLogger(__name__)

FailureReason = Literal["late", "raised", "value"]
"""A call took longer than its timeout; it raised, or gave an exception in the place of a reward; or gave none."""

MOST_METRICS = 64
"""Names that a run's functions may log metrics under: each is a series for as long as the run lasts."""
MOST_COLUMNS = 16
"""Columns that one call may log."""
LONGEST_EXTRA = 2000
"""Characters of a value's JSON."""
_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_./-]{0,63}")


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainerState:
    """Where the run was when the scoring of a group began."""

    global_step: int = 0
    """Steps trained."""
    max_steps: int = 1
    """Steps the run is to train; at least 1, so that it can be divided by."""
    version: int = 0
    """Policy version the engines served when the group was admitted: no token of it is older."""
    epoch: int = 0
    """Pass over the dataset that the prompt is of, from 0."""


class CallNotes:
    """Of one call. Its two functions may be called from any thread, also one that the call has started."""

    def __init__(self, count: int) -> None:
        self._count, self._lock = count, threading.Lock()
        self.metrics: list[tuple[str, float]] = []
        self.extras: dict[str, list[Any]] = {}
        """Values of a column, one per completion of the call."""

    def log_metric(self, name: str, value: float) -> None:
        """Record a number; the step that trains the group reports the mean of what was logged under the name.

        Raises ValueError for a name or a value that cannot be one. A value that is not finite is left out.
        """
        _check_name("log_metric", name)
        try:
            number = float(value)
        except Exception as error:  # the value is the user's, and may be anything
            raise ValueError(f"log_metric: {name!r} is {brief(value)}, expected a number") from error
        if math.isfinite(number):
            with self._lock:
                self.metrics.append((name, number))

    def log_extra(self, column: str, values: Sequence[Any]) -> None:
        """Keep a value per completion beside the samples on disk. Longer ones than LONGEST_EXTRA are cut, as text.

        Raises ValueError for another number of values, for what JSON cannot hold, and for more than MOST_COLUMNS.
        """
        _check_name("log_extra", column)
        listed = values.tolist() if hasattr(values, "tolist") else values
        if not isinstance(listed, list | tuple) or len(listed) != self._count:
            said = f"{len(listed)} values" if isinstance(listed, list | tuple) else brief(values)
            raise ValueError(f"log_extra: column {column!r} got {said}, expected a list of {self._count}")
        kept = [_plain(column, index, value) for index, value in enumerate(listed)]
        with self._lock:
            if column not in self.extras and len(self.extras) >= MOST_COLUMNS:
                raise ValueError(f"log_extra: {column!r} is one column too many; a call may log {MOST_COLUMNS}")
            self.extras[column] = kept

    def seen(self) -> CallNotes:
        """A copy that nothing is added to any more."""
        copy = CallNotes(self._count)
        with self._lock:
            copy.metrics, copy.extras = list(self.metrics), dict(self.extras)
        return copy


@dataclass(slots=True)
class GroupNotes:
    """Of one group while it is scored; `score_group` fills it."""

    state: TrainerState = field(default_factory=TrainerState)
    on_failure: Callable[[str, FailureReason], None] = lambda function, reason: None
    """Told the function of every call, or completion, that got no reward by a fault."""
    admits: Callable[[str], bool] = lambda name: True
    """Whether a metric of this name is recorded."""
    missing: int = 0
    """Samples left out for want of a reward."""
    metrics: dict[str, tuple[float, int]] = field(default_factory=dict)
    """Sum and number of the values logged, by name."""
    extras: dict[int, dict[str, Any]] = field(default_factory=dict)
    """Columns of a sample, by its place in the group."""

    def take(self, call: CallNotes, first: int) -> None:
        """A call has succeeded, whose completions begin with number `first` of the group."""
        for name, value in call.metrics:
            if self.admits(name):
                total, count = self.metrics.get(name, (0.0, 0))
                self.metrics[name] = total + value, count + 1
        for column, values in call.extras.items():
            for index, value in enumerate(values, start=first):
                self.extras.setdefault(index, {})[column] = value

    def merge(self, other: GroupNotes) -> None:
        """Add what another function of the group has logged; of columns of one name the later stays."""
        for name, (total, count) in other.metrics.items():
            before, number = self.metrics.get(name, (0.0, 0))
            self.metrics[name] = before + total, number + count
        for index, columns in other.extras.items():
            self.extras.setdefault(index, {}).update(columns)


class RunNotes:
    """Of one run: how many names there are, and how often functions failed.

    on_failure: told at once; `fields` tells the same by step.
    """

    def __init__(self, max_steps: int, on_failure: Callable[[str, FailureReason], None]) -> None:
        self._max_steps, self._on_failure = max_steps, on_failure
        self._names: set[str] = set()
        self._is_full = False
        self._failures: Counter[tuple[str, FailureReason]] = Counter()

    def of_group(self, prompt: Prompt, start_version: int, steps_done: int) -> GroupNotes:
        """For a group that is about to be scored."""
        state = TrainerState(
            global_step=steps_done, max_steps=self._max_steps, version=start_version, epoch=prompt.epoch
        )
        return GroupNotes(state=state, on_failure=self._failed, admits=self._admits)

    def fields(self) -> dict[str, float]:
        """Of the step record: failures since the last call."""
        failures, self._failures = self._failures, Counter()
        return {f"reward_failures/{function}/{reason}": count for (function, reason), count in failures.items()}

    def _failed(self, function: str, reason: FailureReason) -> None:
        self._failures[function, reason] += 1
        self._on_failure(function, reason)

    def _admits(self, name: str) -> bool:
        if name in self._names or len(self._names) < MOST_METRICS:
            self._names.add(name)
            return True
        if not self._is_full:
            self._is_full = True
            logger.warning("log_metric: %d names are in use; %r and further ones are left out", MOST_METRICS, name)
        return False


def _check_name(function: str, name: object) -> None:
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        raise ValueError(
            f"{function}: {brief(name)} is no name; give up to 64 letters, digits and _ . / -, the first a letter, a "
            "digit or _"
        )


def _plain(column: str, index: int, value: Any) -> Any:
    """What JSON makes of it, so that nobody changes it afterwards."""
    if hasattr(value, "item") and not isinstance(value, int | float | str):
        value = value.item()  # a scalar of NumPy or torch
    if isinstance(value, float) and not math.isfinite(value):
        return None
    try:
        text = json.dumps(value, allow_nan=False, ensure_ascii=False)
    except (TypeError, ValueError, RecursionError) as error:
        raise ValueError(
            f"log_extra: column {column!r} has {brief(value)} for completion {index}; give text, numbers, lists, "
            "mappings or None"
        ) from error
    if len(text) > LONGEST_EXTRA:
        return (value if isinstance(value, str) else text)[:LONGEST_EXTRA] + "…"
    return json.loads(text)
