"""What becomes of every group and prompt of a run: who comes next, who comes again, and the ledger of their fates.

Invariant: a group that is admitted here meets exactly one fate, the same in the contract and in the ledger.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any, NamedTuple

from asyncgrpo.buffer.accounting import Accounting
from asyncgrpo.buffer.buffer import Untrained
from asyncgrpo.buffer.contract import StalenessContract
from asyncgrpo.buffer.ledger import NOTHING, Ledger, Outcome
from asyncgrpo.buffer.tally import Tally
from asyncgrpo.errors import AsyncGRPOError
from asyncgrpo.observe.ledger_file import append_entries, append_uses
from asyncgrpo.preflight import Job
from asyncgrpo.prompts.curriculum import Curriculum
from asyncgrpo.prompts.queue import PromptQueue, Ticket, ticket_state
from asyncgrpo.types import Fate, Group, LedgerEntry


class News(NamedTuple):
    """Fates, and steps that trained groups which left replay, to be written down."""

    entries: list[LedgerEntry]
    uses: list[tuple[int, int]]

    def append_to(self, path: Path) -> None:
        """Add them to the ledger's file; from any thread."""
        append_entries(path, self.entries)
        for group_id, count in self.uses:
            append_uses(path, group_id, count)


class Books:
    """Of one run. The contract says when; this says what for, and writes it down."""

    def __init__(self, job: Job, contract: StalenessContract) -> None:
        config = job.config
        self._contract, self._stream = contract, job.prompts
        self._prompts = PromptQueue(
            job.prompts,
            config.generation.max_prompt_failures,
            pause_admissions=config.fresh_groups,
            curriculum=Curriculum(config.curriculum) if config.curriculum.kind == "pass_rate" else None,
        )
        self._ledger = Ledger()
        self._accounting = Accounting(config.generation.max_completion_length)
        self._tickets: dict[int, Ticket] = {}  # of groups without a fate
        self._outcomes: dict[int, Outcome] = {}  # of those that have finished
        self._entries: list[LedgerEntry] = []  # not written yet
        self._uses: list[tuple[int, int]] = []

    @property
    def quarantined(self) -> Mapping[int, str]:
        """Rows of the dataset that are not tried any more, each with its last error."""
        return self._prompts.quarantined

    def admitted(self, group_id: int, start_version: int) -> Ticket:
        """The prompt for a group that has a slot. Raises DataError when every prompt is quarantined."""
        ticket = self._prompts.next()
        self._ledger.admitted(group_id, ticket.prompt.prompt_id, ticket.attempt, start_version)
        self._tickets[group_id] = ticket
        return ticket

    def named(self, group_ids: Iterable[int]) -> str:
        """Groups in flight with their prompts, for the user to find: `3 (prompt 0-7), 5 (prompt 0-9)`. From any
        thread."""
        tickets = ((group_id, self._tickets.get(group_id)) for group_id in group_ids)  # absent just before and after
        return ", ".join(f"{group_id} (prompt {ticket.prompt.prompt_id})" for group_id, ticket in tickets if ticket)

    def finished(self, group: Group, cut_samples: int, failed_samples: int) -> None:
        """A group is about to enter the buffer."""
        self._prompts.scored(group.prompt, [sample.reward for sample in group.samples])
        self._outcomes[group.group_id] = Outcome.of(group, cut_samples, failed_samples)

    def failed(self, group_id: int, reason: str, error: AsyncGRPOError, *, by_prompt: bool) -> bool:
        """A group in flight failed. by_prompt: it speaks against its prompt. True: that comes again."""
        ticket = self._tickets[group_id]
        again = (self._prompts.failed(ticket, error) if by_prompt else self._prompts.reissue(ticket)) == "reissued"
        self._settle(group_id, "reissued" if again else "dropped", reason)
        return again

    def reissue(self, group: Group, reason: str) -> bool:
        """A finished group is not to be trained. True: its prompt comes again. False: `untrained` hears of its drop."""
        if self._prompts.reissue(self._tickets[group.group_id]) == "quarantined":
            return False
        self._settle(group.group_id, "reissued", reason)
        return True

    def untrained(self, groups: Iterable[Untrained]) -> None:
        """Finished groups that ended untrained; the reissued ones among them are known."""
        for group, fate in groups:
            kind, _, reason = fate.partition(":")
            if kind == "dropped":
                self._settle(group.group_id, "dropped", reason)

    def trained(self, groups: Sequence[Group], kept: Collection[int]) -> None:
        """A step trained these. kept: ids of those that may be replayed."""
        for group in groups:
            self._settle(group.group_id, "trained", keep=group.group_id in kept)

    def replayed(self, group_ids: Iterable[int]) -> None:
        """A step trained these once more."""
        for group_id in group_ids:
            self._ledger.used(group_id)

    def let_go(self, group_ids: Iterable[int]) -> None:
        """These will not be replayed again."""
        self._uses += [(group_id, self._ledger.released(group_id)) for group_id in group_ids]

    def run_ended(self) -> None:
        """What is still open will not be trained."""
        for group_id in self._ledger.open:
            self._settle(group_id, "dropped", "run_ended")

    def fields(self) -> dict[str, float]:
        """Fields of the step record: what was trained against all that finished."""
        found: dict[str, float] = {
            "quarantined_prompts": len(self.quarantined),
            "prompts_too_long": self._stream.skipped_per_epoch,
            "prompts_shortened": self._stream.shortened_per_epoch,
        }
        if self._prompts.curriculum is not None:
            found |= {f"curriculum_prompts/{where}": n for where, n in self._prompts.curriculum.counts().items()}
        for name, difference in self._accounting.trained_versus_generated().items():
            found[f"trained_less_generated/{name}"] = difference.difference
            error = difference.standard_error
            found[f"trained_less_generated_error/{name}"] = float("nan") if error is None else error
        return found

    def collect(self) -> News:
        """What became known since the last call."""
        news = News(self._entries, self._uses)
        self._entries, self._uses = [], []
        return news

    def tables(self) -> dict[str, Any]:
        """Sums over all groups by fate, and by fate along length, difficulty and version; and quarantined rows."""
        accounting = self._accounting
        along = {
            "by_length": accounting.by_length(),
            "by_difficulty": accounting.by_difficulty(),
            "by_version": accounting.by_version(),
        }
        return {
            "by_fate": _plain(accounting.by_fate()),
            **{name: {cell: _plain(tallies) for cell, tallies in table.items()} for name, table in along.items()},
            "quarantined": {str(row): error for row, error in self.quarantined.items()},
        }

    def state(self, in_flight: Collection[int]) -> dict[str, Any]:
        """What `restore` needs, as JSON has it. in_flight: groups that will not be there after a restore."""
        return {
            "prompts": self._prompts.state(self._tickets[group_id] for group_id in sorted(in_flight)),
            "ledger": self._ledger.state(),
            "accounting": self._accounting.state(),
            "tickets": [[i, *ticket_state(ticket)] for i, ticket in self._tickets.items() if i not in in_flight],
            "outcomes": [[i, asdict(outcome)] for i, outcome in self._outcomes.items() if i not in in_flight],
            "entries": [asdict(entry) for entry in self._entries],
            "uses": [list(each) for each in self._uses],
        }

    def restore(self, state: Mapping[str, Any], *, allow_changed: bool = False) -> None:
        """Go on as the books that gave `state` would have, over a contract that was restored before. Groups that were
        in flight have the fate `reissued:resumed`, here and in the contract. Raises as `PromptStream.restore`."""
        self._prompts.restore(state["prompts"], allow_changed=allow_changed)
        self._ledger.restore(state["ledger"])
        self._accounting.restore(state["accounting"])
        self._tickets = {group_id: self._prompts.ticket(ticket) for group_id, *ticket in state["tickets"]}
        self._outcomes = {group_id: Outcome(**outcome) for group_id, outcome in state["outcomes"]}
        self._entries = [LedgerEntry(**entry) for entry in state["entries"]]
        self._uses = [(group_id, count) for group_id, count in state["uses"]]
        for group_id in sorted(self._contract.blocking()):
            self._contract.drop(group_id, "resumed", reissue=True)
            self._close(group_id, "reissued", "resumed")

    def _settle(self, group_id: int, fate: Fate, reason: str = "", *, keep: bool = False) -> None:
        del self._tickets[group_id]
        self._close(group_id, fate, reason, keep=keep)

    def _close(self, group_id: int, fate: Fate, reason: str, *, keep: bool = False) -> None:
        outcome = self._outcomes.pop(group_id, NOTHING)
        entry = self._ledger.settle(group_id, fate, reason, version=self._contract.version, outcome=outcome, keep=keep)
        self._entries.append(entry)
        self._accounting.add(entry)


def _plain(tallies: Mapping[str, Tally]) -> dict[str, dict[str, float]]:
    return {fate: asdict(tally) for fate, tally in tallies.items()}
