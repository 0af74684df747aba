"""Contract, ledger and prompt queue together: every prompt is handed out once, and its groups end once.

A run as the orchestrator drives it, with random failures, over-stale and uniform groups, and rows that always fail.
The test remembers every event of every prompt and checks its story at the end.
"""

from __future__ import annotations

import random
from collections import Counter, defaultdict
from collections.abc import Callable
from dataclasses import dataclass, field

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from asyncgrpo.buffer.contract import StalenessContract
from asyncgrpo.buffer.ledger import Ledger
from asyncgrpo.errors import DataError
from asyncgrpo.prompts.queue import PromptQueue, Ticket
from asyncgrpo.prompts.stream import Cursor
from asyncgrpo.types import LedgerEntry, Prompt


class Rows:
    """A stream of `count` rows in order, epoch after epoch."""

    def __init__(self, count: int) -> None:
        self.prompts_per_epoch = count
        self.cursor = Cursor(0, 0)
        self.handed_out: list[str] = []

    @property
    def usable_rows(self) -> int:
        return self.prompts_per_epoch

    def where(self, row: int) -> str:
        return f"row {row}"

    def next(self, wanted: Callable[[int], bool]) -> Prompt:
        while True:
            prompt = self.prompt(*self.cursor)
            last = self.cursor.position + 1 == self.prompts_per_epoch
            self.cursor = Cursor(prompt.epoch + 1, 0) if last else Cursor(prompt.epoch, prompt.row + 1)
            self.handed_out.append(prompt.prompt_id)
            if wanted(prompt.row):
                return prompt

    def prompt(self, epoch: int, row: int) -> Prompt:
        return Prompt(prompt_id=f"{epoch}-{row}", epoch=epoch, row=row, prompt="", token_ids=(1,))


@dataclass
class Run:
    contract: StalenessContract
    queue: PromptQueue
    rows: Rows
    bad_rows: frozenset[int]
    rng: random.Random
    steps: int
    max_failures: int
    pause: int

    ledger: Ledger = field(default_factory=Ledger)
    tickets: dict[int, Ticket] = field(default_factory=dict)  # of open groups
    buffered: list[int] = field(default_factory=list)
    unpublished: list[int] = field(default_factory=list)
    admissions: list[Ticket] = field(default_factory=list)
    entries: list[LedgerEntry] = field(default_factory=list)
    at_fault: set[tuple[str, int]] = field(default_factory=set)  # (prompt, attempt) that speaks against the prompt
    failed_at: dict[tuple[str, int], int] = field(default_factory=dict)  # (prompt, attempt due) -> admissions then
    hurried: set[tuple[str, int]] = field(default_factory=set)  # came again when nothing else was left

    def go(self) -> None:
        for _ in range(20_000):
            if self.contract.version == self.steps:
                return self.end()
            self.end_over_stale()
            moves = [self.admit] * self.contract.can_admit()
            moves += [self.finish] * (len(self.tickets) > len(self.buffered))
            moves += [self.publish] * bool(self.unpublished)
            moves += [self.train] * (self.contract.choose() is not None)
            assert moves, "deadlock: nothing can happen and the run is not over"
            self.rng.choice(moves)()
        raise AssertionError("livelock: the run does not end")

    def admit(self) -> None:
        nothing_else = len(self.queue.quarantined) == self.rows.prompts_per_epoch
        ticket = self.queue.next()
        if nothing_else:
            self.hurried.add((ticket.prompt.prompt_id, ticket.attempt))
        group, start = self.contract.admit()
        self.ledger.admitted(group, ticket.prompt.prompt_id, ticket.attempt, start)
        self.tickets[group] = ticket
        self.admissions.append(ticket)

    def finish(self) -> None:
        group = self.rng.choice([group for group in self.tickets if group not in self.buffered])
        ticket = self.tickets[group]
        if ticket.prompt.row in self.bad_rows or self.rng.random() < 0.1:
            self.at_fault.add((ticket.prompt.prompt_id, ticket.attempt))
            return self.settle_again(group, "failed", self.queue.failed(ticket, "error"))
        if self.rng.random() < 0.1:  # an outage
            return self.settle_again(group, "failed", self.queue.reissue(ticket))
        if self.contract.enter(group, is_uniform=self.rng.random() < 0.2):
            self.buffered.append(group)
        else:
            self.settle(group, "dropped", "uniform")

    def end_over_stale(self) -> None:
        for group in self.contract.over_stale_groups():
            self.buffered.remove(group)
            if self.contract.over_stale == "drop_reissue":
                self.settle_again(group, "stale", self.queue.reissue(self.tickets[group]))
            else:
                self.contract.drop(group, "stale")
                self.settle(group, "dropped", "stale")

    def settle_again(self, group: int, reason: str, verdict: str) -> None:
        ticket = self.tickets[group]
        self.contract.drop(group, reason, reissue=verdict == "reissued")
        self.settle(group, "reissued" if verdict == "reissued" else "dropped", reason)
        if verdict == "reissued":
            self.failed_at[ticket.prompt.prompt_id, ticket.attempt + 1] = len(self.admissions)

    def settle(self, group: int, fate: str, reason: str = "") -> None:
        entry = self.ledger.settle(group, fate, reason, version=self.contract.version)  # type: ignore[arg-type]
        ticket = self.tickets.pop(group)
        assert (entry.prompt_id, entry.attempt) == (ticket.prompt.prompt_id, ticket.attempt)
        self.entries.append(entry)

    def publish(self) -> None:
        self.contract.published(self.unpublished.pop(0))

    def train(self) -> None:
        chosen = self.contract.choose()
        assert chosen is not None
        self.contract.take(chosen)
        for group in chosen:
            self.buffered.remove(group)
            self.settle(group, "trained")
        self.unpublished.append(self.contract.consumed())

    def end(self) -> None:
        for group in self.ledger.open:
            self.contract.drop(group, "run_ended")
            self.settle(group, "dropped", "run_ended")

    def stories(self) -> dict[str, list[LedgerEntry]]:
        stories: dict[str, list[LedgerEntry]] = defaultdict(list)
        for entry in self.entries:
            stories[entry.prompt_id].append(entry)
        return stories


@st.composite
def runs(draw: st.DrawFn) -> Run:
    staleness, per_step, steps = draw(st.integers(0, 3)), draw(st.integers(1, 3)), draw(st.integers(1, 10))
    rows = Rows(draw(st.integers(1, 25)))
    max_failures, pause = draw(st.integers(1, 3)), draw(st.integers(0, 5))
    return Run(
        contract=StalenessContract(
            max_staleness=staleness,
            groups_per_step=per_step,
            total_groups=steps * per_step,
            over_stale=draw(st.sampled_from(("wait", "drop", "drop_reissue", "mask"))),  # type: ignore[arg-type]
            refill_budget=draw(st.integers(0, 3)),
        ),
        queue=PromptQueue(rows, max_failures, pause),  # type: ignore[arg-type]
        rows=rows,
        bad_rows=draw(st.frozensets(st.integers(0, rows.prompts_per_epoch - 1), max_size=3)),
        rng=random.Random(draw(st.integers(0, 2**32))),
        steps=steps,
        max_failures=max_failures,
        pause=pause,
    )


def check_story(run: Run, story: list[LedgerEntry]) -> None:
    """Attempts 0, 1, 2, …; all but the last reissued; no more of them by the prompt's fault than may be."""
    assert [entry.attempt for entry in story] == list(range(len(story)))
    assert all(entry.fate == "reissued" for entry in story[:-1])
    at_fault = [entry.attempt for entry in story if (entry.prompt_id, entry.attempt) in run.at_fault]
    assert len(at_fault) <= run.max_failures
    last = story[-1]
    if last.fate == "reissued":
        assert run.ledger.waiting[last.prompt_id] == len(story)
    if last.fate == "dropped" and last.reason == "failed":
        assert int(last.prompt_id.split("-")[1]) in run.queue.quarantined
    if last.fate == "dropped" and last.reason == "stale" and run.contract.over_stale == "drop_reissue":
        assert int(last.prompt_id.split("-")[1]) in run.queue.quarantined


def check_pauses(run: Run) -> None:
    for index, ticket in enumerate(run.admissions):
        due = (ticket.prompt.prompt_id, ticket.attempt)
        if ticket.attempt and due not in run.hurried:
            assert index - run.failed_at[due] >= run.pause


@settings(max_examples=500, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(runs())
def test_every_prompt_is_handed_out_once_and_ends_once(run: Run) -> None:
    try:
        run.go()
    except DataError:  # every row failed too often, by bad luck or because all are bad
        assert len(run.queue.quarantined) == run.rows.prompts_per_epoch
        run.end()
    else:
        assert run.ledger.totals["trained"] == run.steps * run.contract.groups_per_step
    first_tries = [ticket.prompt.prompt_id for ticket in run.admissions if ticket.attempt == 0]
    skipped = Counter(run.rows.handed_out) - Counter(first_tries)
    assert not Counter(first_tries) - Counter(run.rows.handed_out)
    assert {int(name.split("-")[1]) for name in skipped} <= run.queue.quarantined.keys()
    assert len(first_tries) == len(set(first_tries))
    stories = run.stories()
    assert stories.keys() == set(first_tries)
    for story in stories.values():
        check_story(run, story)
    check_pauses(run)
    assert run.ledger.open == [] == list(run.tickets)
    assert run.ledger.totals == run.contract.fates
    assert run.ledger.totals.total() == run.contract.admitted == len(run.entries)
    assert len(run.ledger.waiting) == run.queue.waiting
    trained = [entry for entry in run.entries if entry.fate == "trained"]
    assert not {int(entry.prompt_id.split("-")[1]) for entry in trained} & run.bad_rows


@settings(max_examples=100, deadline=None)
@given(runs(), st.integers(3, 12))
def test_one_row_that_always_fails_does_not_end_the_run(run: Run, rows: int) -> None:
    run.rows.prompts_per_epoch = rows
    run.bad_rows = frozenset({0})
    run.rng.random = lambda: 1.0  # type: ignore[method-assign]  # nothing else fails
    run.contract.over_stale = "wait"
    run.go()
    assert run.ledger.totals["trained"] == run.steps * run.contract.groups_per_step
    assert run.queue.quarantined.keys() <= {0}
    tries = [ticket for ticket in run.admissions if ticket.prompt.row == 0]
    in_flight_at_once = run.contract.slots  # of later epochs, before the row is known to be bad
    assert len(tries) <= run.max_failures * (1 + in_flight_at_once)


@pytest.mark.parametrize("max_failures", [1, 3])
def test_a_run_of_bad_rows_only_ends_with_the_first_error(max_failures: int) -> None:
    rows = Rows(2)
    run = Run(
        contract=StalenessContract(max_staleness=1, groups_per_step=2, total_groups=8),
        queue=PromptQueue(rows, max_failures, 2),  # type: ignore[arg-type]
        rows=rows,
        bad_rows=frozenset({0, 1}),
        rng=random.Random(0),
        steps=4,
        max_failures=max_failures,
        pause=2,
    )
    with pytest.raises(DataError, match=f"all 2 prompts of the dataset are quarantined: {max_failures} groups"):
        run.go()
    assert run.ledger.totals["trained"] == 0
