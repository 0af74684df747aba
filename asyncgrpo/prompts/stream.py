"""The order of prompts: endless, seeded, and known from a cursor alone.

Invariant: the prompt at a cursor depends on the rows, the configuration and the cursor, and on nothing that happened
before. A resume that sets the cursor therefore continues with exactly the prompts that would have come.
"""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np

from asyncgrpo.config import RunConfig
from asyncgrpo.errors import DataError
from asyncgrpo.prompts.encoding import encode, with_system_prompt
from asyncgrpo.types import Prompt

logger = logging.getLogger(__name__)

CONTRACT_ARGUMENTS = ("prompts", "completions", "completion_ids")
"""What reward functions are always given; a dataset column of such a name would hide it, so it is left out."""


AHEAD = 32
"""Rows that are read at once: a dataset takes nearly as long for one."""


class Cursor(NamedTuple):
    epoch: int
    position: int
    """Place in the epoch's order of the row to be looked at next, skipped ones included."""


class PromptStream:
    """Prompts of all epochs, one after the other.

    Prompts longer than the limit are never cut but skipped: all rows are tokenised once at the start, so that a
    dataset without a usable prompt is refused at once and `prompts_per_epoch` is exact. Without a limit nothing is
    tokenised ahead. The limit is data.max_prompt_length, or what engines.max_model_len leaves beside the completion.

    Raises DataError if no prompt is short enough, or the tokenizer cannot encode one.
    """

    def __init__(self, rows: Any, tokenizer: Any, config: RunConfig) -> None:
        self._rows = rows
        self._tokenizer = tokenizer
        self._config = config
        self._columns = reward_columns(rows.column_names, config.data.prompt_column)
        self._order: np.ndarray | None = None
        self._order_epoch = -1
        self._ahead: dict[int, dict[str, Any]] = {}
        """Rows that come next, by number. Each is handed out once: nobody shall change it under another prompt."""
        self.cursor = Cursor(0, 0)
        self.limit = _limit(config)
        self._too_long = self._find_too_long()
        self.prompt(0, self._first_usable())  # a missing chat template shows now, not in an hour

    @property
    def prompts_per_epoch(self) -> int:
        """Prompts one epoch yields."""
        return len(self._rows) - len(self._too_long)

    @property
    def skipped_per_epoch(self) -> int:
        """Rows left out because their prompt is longer than the limit."""
        return len(self._too_long)

    def is_usable(self, row: int) -> bool:
        """Its prompt is not longer than the limit."""
        return row not in self._too_long

    def next(self) -> Prompt:
        """The prompt at the cursor, which moves on."""
        while True:
            cursor = self.cursor
            row = int(self._order_of(cursor.epoch)[cursor.position])
            last = cursor.position + 1 == len(self._rows)
            self.cursor = Cursor(cursor.epoch + 1, 0) if last else Cursor(cursor.epoch, cursor.position + 1)
            if row not in self._too_long:
                if row not in self._ahead:
                    self._read_ahead(cursor)
                return self._prompt(cursor.epoch, row, self._ahead.pop(row))

    def peek(self, count: int) -> list[Prompt]:
        """The next prompts, without moving the cursor."""
        before = self.cursor
        prompts = [self.next() for _ in range(count)]
        self.cursor = before
        return prompts

    def prompt(self, epoch: int, row: int) -> Prompt:
        """The prompt of a row in an epoch, wherever the cursor is."""
        return self._prompt(epoch, row, self._rows[row])

    def _prompt(self, epoch: int, row: int, values: Mapping[str, Any]) -> Prompt:
        prompt = with_system_prompt(values[self._config.data.prompt_column], self._config.data.system_prompt)
        return Prompt(
            prompt_id=f"{epoch}-{row}",
            epoch=epoch,
            row=row,
            prompt=prompt,
            token_ids=encode(prompt, self._tokenizer, self._config, row),
            columns={name: values[name] for name in self._columns},
        )

    def _read_ahead(self, cursor: Cursor) -> None:
        """The rows from the cursor on, of its epoch."""
        numbers = self._order_of(cursor.epoch)[cursor.position : cursor.position + AHEAD].tolist()
        columns = self._rows[numbers]
        rows = (dict(zip(columns, values, strict=True)) for values in zip(*columns.values(), strict=True))
        self._ahead = dict(zip(numbers, rows, strict=True))

    def state(self) -> dict[str, Any]:
        """What `restore` needs, as JSON has it."""
        (following,) = self.peek(1)
        return {
            "cursor": list(self.cursor),
            "rows": len(self._rows),
            "order": self._order_settings(),
            "next_prompt": [following.prompt_id, _digest(following)],
        }

    def restore(self, state: Mapping[str, Any], *, allow_changed: bool = False) -> None:
        """Continue where the stream that gave `state` was.

        Raises DataError when the dataset is another one: it has another number of rows, or the next prompt differs; the
        latter is taken as it comes with `allow_changed`. Under another order of rows a new epoch begins: what is left
        of the old one could not be told.
        """
        if len(self._rows) != state["rows"]:
            raise DataError(
                f"the dataset has {len(self._rows)} rows, but {state['rows']} when the checkpoint was saved: which "
                "prompts come next cannot be told; resume with the dataset of the run"
            )
        cursor = Cursor(*state["cursor"])
        if self._order_settings() != state["order"]:
            self.cursor = Cursor(cursor.epoch + 1, 0)
            logger.warning(
                "the order of prompts was %s and is %s: epoch %d begins",
                *(state["order"], self._order_settings(), self.cursor.epoch),
            )
            return
        self.cursor = cursor
        (following,) = self.peek(1)
        if not allow_changed and [following.prompt_id, _digest(following)] != state["next_prompt"]:
            raise DataError(
                f"the next prompt ({following.prompt_id}, row {following.row}) is not the one that was to come when "
                "the checkpoint was saved; resume with the dataset, tokenizer and chat template of the run"
            )

    def _order_settings(self) -> list[Any]:
        shuffles = self._config.data.shuffle_dataset
        return [shuffles, self._config.run.seed if shuffles else None]

    def _order_of(self, epoch: int) -> np.ndarray:
        if self._order is None or self._order_epoch != epoch:
            count = len(self._rows)
            if self._config.data.shuffle_dataset:
                self._order = np.random.default_rng([self._config.run.seed, epoch]).permutation(count)
            else:
                self._order = np.arange(count)
            self._order_epoch = epoch
        return self._order

    def _find_too_long(self) -> frozenset[int]:
        if self.limit is None:
            return frozenset()
        data = self._config.data
        lengths = [
            len(encode(with_system_prompt(prompt, data.system_prompt), self._tokenizer, self._config, row))
            for row, prompt in enumerate(self._rows[data.prompt_column])
        ]
        too_long = frozenset(row for row, length in enumerate(lengths) if length > self.limit)
        if len(too_long) == len(lengths):
            raise DataError(
                f"all {len(lengths)} prompts are longer than {self.limit} tokens (the shortest has {min(lengths)}); "
                "raise data.max_prompt_length or engines.max_model_len"
            )
        if too_long:
            logger.warning(
                "%d of %d prompts have more than %d tokens: skipped", len(too_long), len(lengths), self.limit
            )
        return too_long

    def _first_usable(self) -> int:
        return next(row for row in range(len(self._rows)) if row not in self._too_long)


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
