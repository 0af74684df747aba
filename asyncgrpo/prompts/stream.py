"""The order of prompts: endless, seeded, and known from a cursor alone.

Invariant: the prompt at a cursor depends on the rows, the configuration and the cursor, and on nothing that happened
before. A resume that sets the cursor therefore continues with exactly the prompts that would have come.
"""

from __future__ import annotations

import functools
import hashlib
import logging
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import numpy as np

from asyncgrpo.config import RunConfig
from asyncgrpo.errors import DataError
from asyncgrpo.prompts.encoding import encode
from asyncgrpo.prompts.fitting import Fit, without_beginning, without_fewest
from asyncgrpo.prompts.order import MixedOrder, OneOrder, Order
from asyncgrpo.prompts.table import Rows
from asyncgrpo.types import Prompt, PromptText

logger = logging.getLogger(__name__)

CONTRACT_ARGUMENTS = ("prompts", "completions", "completion_ids", "trainer_state", "log_metric", "log_extra")
"""What reward functions are always given; a dataset column of such a name would hide it, so it is left out."""


AHEAD = 32
"""Rows that are read at once: a dataset takes nearly as long for one."""


class Cursor(NamedTuple):
    epoch: int
    position: int
    """In the epoch, of the prompt to come next; of a single dataset, places of rows that are left out count."""


class PromptStream:
    """Prompts of all epochs, one after the other.

    Prompts longer than the limit are left out or shortened (data.long_prompts): all rows are tokenised once at the
    start, so that a dataset without a usable prompt is refused at once and `prompts_per_epoch` is exact. Without a
    limit nothing is tokenised ahead. The limit is data.max_prompt_length, or what engines.max_model_len leaves beside
    the completion.

    Raises DataError if no prompt is short enough, or the tokenizer cannot encode one.
    """

    def __init__(self, rows: Rows, tokenizer: Any, config: RunConfig) -> None:
        self._rows = rows
        self._tokenizer = tokenizer
        self._config = config
        self._columns = reward_columns(rows.column_names, rows.prompt_column)
        self._ahead: dict[int, dict[str, Any]] = {}
        """Rows that come next, by number. Each is handed out once: nobody shall change it under another prompt."""
        self.cursor = Cursor(0, 0)
        self.limit = _limit(config)
        self._fit = self._find_long()
        self._order = self._make_order()
        self.prompt(0, self._first_usable())  # a missing chat template shows now, not in an hour

    @property
    def prompts_per_epoch(self) -> int:
        """Prompts one epoch yields."""
        return self._order.prompts

    @property
    def rows(self) -> int:
        """All rows, those that are left out included."""
        return len(self._rows)

    @property
    def usable_rows(self) -> int:
        """Rows that come at all."""
        return len(self._rows) - len(self._fit.too_long)

    @property
    def skipped_per_epoch(self) -> int:
        """Rows left out because their prompt is longer than the limit."""
        return len(self._fit.too_long)

    def is_usable(self, row: int) -> bool:
        """Its prompt is not longer than the limit."""
        return row not in self._fit.too_long

    @property
    def shortened_per_epoch(self) -> int:
        """Rows whose prompt lost its beginning to the limit."""
        return len(self._fit.shortened)

    @property
    def remarks(self) -> list[str]:
        """What a user should know of the limit: which rows it leaves out, which it shortens."""
        found = []
        for rows, what in ((sorted(self._fit.too_long), "left out"), (sorted(self._fit.shortened), "shortened")):
            if rows:
                found.append(
                    f"{what}: {len(rows)} of {len(self._rows)} prompts have more than {self.limit} tokens: "
                    f"{self._rows.listed(rows)}"
                )
        return found

    def next(self, wanted: Callable[[int], bool] = lambda row: True) -> Prompt:
        """The prompt at the cursor, or the first after it of a wanted row; the cursor moves past it.

        wanted: asked once for every row on the way. It has to want one some day.
        """
        while True:
            cursor = self.cursor
            place = self._order.at(*cursor)
            last = cursor.position + 1 == self._order.length
            self.cursor = Cursor(cursor.epoch + 1, 0) if last else Cursor(cursor.epoch, cursor.position + 1)
            if place is not None and wanted(place.row):
                if place.row not in self._ahead:
                    self._read_ahead(cursor)
                return self._prompt(*place, self._ahead.pop(place.row))

    def peek(self, count: int) -> list[Prompt]:
        """The next prompts, without moving the cursor."""
        before = self.cursor
        prompts = [self.next() for _ in range(count)]
        self.cursor = before
        return prompts

    def prompt(self, epoch: int, row: int) -> Prompt:
        """The prompt of a row in a pass over its dataset, wherever the cursor is."""
        return self._prompt(epoch, row, self._rows[row])

    def _prompt(self, epoch: int, row: int, values: dict[str, Any]) -> Prompt:
        prompt = self._rows.prompt_of(row, values)
        if row in self._fit.shortened:
            prompt = without_beginning(prompt, self._fit.shortened[row])
        return Prompt(
            prompt_id=f"{epoch}-{row}",
            epoch=epoch,
            row=row,
            prompt=prompt,
            token_ids=encode(prompt, self._tokenizer, self._config, self._rows.where(row)),
            columns={name: values[name] for name in self._columns},
            source=self._rows.source_of(row).name if self._rows.mixed else None,
        )

    def _read_ahead(self, cursor: Cursor) -> None:
        """The rows from the cursor on, of its epoch."""
        ends = range(cursor.position, min(cursor.position + AHEAD, self._order.length))
        places = [place for position in ends if (place := self._order.at(cursor.epoch, position)) is not None]
        numbers = list(dict.fromkeys(place.row for place in places))
        self._ahead = dict(zip(numbers, self._rows.read(numbers), strict=True))

    def where(self, row: int) -> str:
        """What messages call a row."""
        return self._rows.where(row)

    def state(self) -> dict[str, Any]:
        """What `restore` needs, as JSON has it."""
        (following,) = self.peek(1)
        return {
            "cursor": list(self.cursor),
            "rows": len(self._rows),
            "digest": self._rows.digest,
            "order": self._order.settings,
            "last_pass": self._order.last_pass(self.cursor.epoch),
            "next_prompt": [following.prompt_id, _digest(following)],
        }

    def restore(self, state: Mapping[str, Any], *, allow_changed: bool = False) -> None:
        """Continue where the stream that gave `state` was.

        Raises DataError when the dataset is another one: it has another number of rows; or, unless `allow_changed`, a
        streaming one has other rows, or the next prompt differs. Under another order of rows a new epoch begins: what
        is left of the old one could not be told.
        """
        if len(self._rows) != state["rows"]:
            raise DataError(
                f"the dataset has {len(self._rows)} rows, but {state['rows']} when the checkpoint was saved: which "
                "prompts come next cannot be told; resume with the dataset of the run"
            )
        if not allow_changed and self._rows.digest != state["digest"]:
            raise DataError(
                f"{self._rows.names} gives other rows than when the checkpoint was saved, though as many; resume with "
                "the dataset of the run, in the same order"
            )
        cursor = Cursor(*state["cursor"])
        if self._order.settings != state["order"]:
            self.cursor = Cursor(self._order.first_epoch_after(state["last_pass"]), 0)
            logger.warning(
                "the order of prompts was %s and is %s: epoch %d begins",
                *(state["order"], self._order.settings, self.cursor.epoch),
            )
            return
        self.cursor = cursor
        (following,) = self.peek(1)
        if not allow_changed and [following.prompt_id, _digest(following)] != state["next_prompt"]:
            raise DataError(
                f"the next prompt ({following.prompt_id}, row {following.row}) is not the one that was to come when "
                "the checkpoint was saved; resume with the dataset, tokenizer and chat template of the run"
            )

    def _make_order(self) -> Order:
        rows, left_out = self._rows, self._fit.too_long
        seed, shuffles = self._config.run.seed, self._config.data.shuffle_dataset
        if not rows.mixed:
            return OneOrder(len(rows), left_out, seed=seed, shuffles=shuffles)
        usable = [[row for row in each if row not in left_out] for each in rows.ranges]
        for source, left in zip(rows.sources, usable, strict=True):
            if not left:
                raise DataError(
                    f"{source.name}: all {len(source.values)} prompts are longer than {self.limit} tokens; raise "
                    "data.max_prompt_length or engines.max_model_len, or take it out of data.mix"
                )
        return MixedOrder(usable, [source.weight for source in rows.sources], seed=seed, shuffles=shuffles)

    def _find_long(self) -> Fit:
        fit, limit = Fit(), self.limit
        if limit is None:
            return fit
        shortest = None
        for row, prompt in enumerate(self._rows.prompts()):
            length = self._length_of(row, prompt)
            shortest = length if shortest is None else min(shortest, length)
            if length <= limit:
                continue
            fewest = None
            if self._config.data.long_prompts == "keep_tail":
                fewest = without_fewest(prompt, functools.partial(self._length_of, row), limit)
            if fewest is None:
                fit.too_long.add(row)
            else:
                fit.shortened[row] = fewest
        if len(fit.too_long) == len(self._rows):
            raise DataError(
                f"all {len(self._rows)} prompts are longer than {limit} tokens (the shortest has {shortest}); "
                "raise data.max_prompt_length or engines.max_model_len"
            )
        return fit

    def _length_of(self, row: int, prompt: PromptText) -> int:
        return len(encode(prompt, self._tokenizer, self._config, self._rows.where(row)))

    def _first_usable(self) -> int:
        return next(row for row in range(len(self._rows)) if row not in self._fit.too_long)


def _digest(prompt: Prompt) -> str:
    return hashlib.sha256(np.asarray(prompt.token_ids, np.int64).tobytes()).hexdigest()


def _limit(config: RunConfig) -> int | None:
    if config.data.max_prompt_length is not None:
        return config.data.max_prompt_length
    if config.engines.max_model_len is not None:
        return config.engines.max_model_len - config.generation.max_completion_length
    return None


def reward_columns(names: list[str], prompt_column: str) -> list[str]:
    """Those that reward functions are given, of a dataset's columns."""
    hidden = [name for name in names if name in CONTRACT_ARGUMENTS and name != prompt_column]
    if hidden:
        logger.warning("dataset columns %s are not passed to reward functions: the names are taken", ", ".join(hidden))
    return [name for name in names if name != prompt_column and name not in CONTRACT_ARGUMENTS]
