"""Which prompt comes next: the stream's, or one that comes again because its group failed or grew too old.

Invariant: a prompt that was handed out is, until its group is trained or dropped, either in flight or waits here. One
that can never be generated neither stops the run nor holds up the others: it comes again only after `pause_admissions`
others, and after `max_failures` groups that speak against it its row is quarantined, which means never drawn again. A
group that an outage ended, or that grew too old, does not speak against its prompt.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any, Literal, NamedTuple

from asyncgrpo.errors import DataError
from asyncgrpo.prompts.curriculum import Curriculum
from asyncgrpo.prompts.stream import PromptStream
from asyncgrpo.types import Prompt

__all__ = ["PromptQueue", "Ticket", "Verdict", "ticket_state"]

logger = logging.getLogger(__name__)

Verdict = Literal["reissued", "quarantined"]


class Ticket(NamedTuple):
    """One try at one prompt."""

    prompt: Prompt
    attempt: int
    """How often it was tried before."""
    failures: int = 0
    """Tries of these that speak against the prompt."""


class _Waiting(NamedTuple):
    due: int
    """Admissions after which it comes."""
    ticket: Ticket


class PromptQueue:
    """Hands out each prompt of the stream, and those that come again.

    max_failures: groups of one prompt that may fail by its fault. pause_admissions: other prompts that are handed
    out before one comes again, as long as there are any. curriculum: who of the stream comes; absent: all.
    """

    def __init__(
        self, stream: PromptStream, max_failures: int, pause_admissions: int, curriculum: Curriculum | None = None
    ) -> None:
        self._stream = stream
        self.curriculum = curriculum
        self._max_failures = max_failures
        self._pause = pause_admissions
        self._admissions = 0
        self._waiting: deque[_Waiting] = deque()
        self.quarantined: dict[int, str] = {}
        """Row -> its last error, in the order in which they were given up."""

    @property
    def waiting(self) -> int:
        """Prompts that will come again."""
        return len(self._waiting)

    def next(self) -> Ticket:
        """The next prompt to generate. Raises DataError when every row that has one is quarantined."""
        is_due = self._waiting and self._waiting[0].due <= self._admissions
        is_all_there_is = self._are_all_there_are(self.quarantined)
        if is_all_there_is and not self._waiting:
            raise self._nothing_left()
        ticket = self._waiting.popleft().ticket if is_due or is_all_there_is else Ticket(self._fresh(), 0)
        self._admissions += 1
        return ticket

    def scored(self, prompt: Prompt, rewards: Iterable[float]) -> None:
        """A group of the prompt has its rewards, whatever becomes of it."""
        if self.curriculum is not None:
            self.curriculum.observe(prompt.row, rewards)

    def reissue(self, ticket: Ticket) -> Verdict:
        """The ticket's group ended by no fault of its prompt, which comes again, however often that happens; unless
        another prompt of its row failed too often."""
        return "quarantined" if ticket.prompt.row in self.quarantined else self._again(ticket, ticket.failures)

    def failed(self, ticket: Ticket, error: Exception | str) -> Verdict:
        """The ticket's group failed by its prompt, which comes again, unless it, or another prompt of its row, failed
        too often."""
        row = ticket.prompt.row
        if row in self.quarantined:
            return "quarantined"
        if ticket.failures + 1 < self._max_failures:
            return self._again(ticket, ticket.failures + 1)
        self.quarantined[row] = str(error)
        logger.warning(
            "%s is left out from now on: %d groups of prompt %s failed; the last: %s",
            self._stream.where(row),
            self._max_failures,
            ticket.prompt.prompt_id,
            error,
        )
        return "quarantined"

    def _again(self, ticket: Ticket, failures: int) -> Verdict:
        again = Ticket(ticket.prompt, ticket.attempt + 1, failures)
        self._waiting.append(_Waiting(self._admissions + self._pause, again))
        return "reissued"

    def state(self, in_flight: Iterable[Ticket] = ()) -> dict[str, Any]:
        """What `restore` needs, as JSON has it. Tickets in flight are saved as the first to come after a restore: a try
        more, but no failure more."""
        lost = (ticket._replace(attempt=ticket.attempt + 1) for ticket in in_flight)
        again = [*(_Waiting(0, ticket) for ticket in lost), *self._waiting]
        return {
            "stream": self._stream.state(),
            "admissions": self._admissions,
            "waiting": [[due, *ticket_state(ticket)] for due, ticket in again],
            "quarantined": [[row, error] for row, error in self.quarantined.items()],
            "curriculum": None if self.curriculum is None else self.curriculum.state(),
        }

    def restore(self, state: Mapping[str, Any], *, allow_changed: bool = False) -> None:
        """Continue as the queue that gave `state` would have. Raises as `PromptStream.restore`."""
        self._stream.restore(state["stream"], allow_changed=allow_changed)
        self._admissions = state["admissions"]
        self._waiting = deque(_Waiting(due, self.ticket(ticket)) for due, *ticket in state["waiting"])
        self.quarantined = {row: error for row, error in state["quarantined"]}
        if self.curriculum is not None and state["curriculum"] is not None:
            self.curriculum.restore(state["curriculum"], range(self._stream.rows))

    def ticket(self, state: Sequence[int]) -> Ticket:
        """The ticket that gave `ticket_state`."""
        epoch, row, attempt, failures = state
        return Ticket(self._stream.prompt(epoch, row), attempt, failures)

    def _are_all_there_are(self, *rows: Collection[int]) -> bool:
        """Rows that were given up under another limit of a prompt's length may be none of the stream's any more."""
        usable = self._stream.usable_rows
        if sum(map(len, rows)) < usable:
            return False
        return sum(map(self._stream.is_usable, set().union(*rows))) == usable

    def _fresh(self) -> Prompt:
        """The stream's next prompt of a row that is not quarantined, and whose turn it is."""
        curriculum = self.curriculum
        if curriculum is None:
            return self._stream.next(lambda row: row not in self.quarantined)
        if self._are_all_there_are(curriculum.retired, self.quarantined):
            logger.warning(
                "all prompts are solved: the %d that were retired come again (curriculum.retire_after); there is "
                "little left to learn from them, so give harder ones, or end the run",
                curriculum.take_back(),
            )
        return self._stream.next(lambda row: row not in self.quarantined and curriculum.takes(row))

    def _nothing_left(self) -> DataError:
        row, error = next((row, error) for row, error in self.quarantined.items() if self._stream.is_usable(row))
        return DataError(
            f"all {self._stream.usable_rows} prompts of the dataset are quarantined: {self._max_failures} groups of "
            f"each failed; the first was {self._stream.where(row)}: {error}; mend what it names, or raise "
            "generation.max_prompt_failures"
        )


def ticket_state(ticket: Ticket) -> list[int]:
    """As JSON has it."""
    return [ticket.prompt.epoch, ticket.prompt.row, ticket.attempt, ticket.failures]
