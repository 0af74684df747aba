"""A curriculum is a function of what was observed; with it there is always a next prompt, and no prompt is lost."""

import json
import random
from collections.abc import Collection
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from asyncgrpo.config.curriculum import CurriculumSection
from asyncgrpo.config.loading import load_config
from asyncgrpo.errors import ConfigError, DataError
from asyncgrpo.prompts.curriculum import Curriculum
from asyncgrpo.prompts.order import MixedOrder, OneOrder, Order
from asyncgrpo.prompts.queue import PromptQueue, Ticket
from asyncgrpo.types import Prompt

NAN = float("nan")


def curriculum(**settings: Any) -> Curriculum:
    return Curriculum(CurriculumSection(kind="pass_rate", **settings))


def turns(of: Curriculum, row: int, count: int) -> list[bool]:
    return [of.takes(row) for _ in range(count)]


def test_the_pass_rate_is_over_the_last_visits_and_scored_samples() -> None:
    found = curriculum(pass_reward=0.5, retire_after=2)
    assert found.rate(3) is None
    found.observe(3, [0.5, 0.4, NAN, 2.0, -1.0])
    assert found.rate(3) == 0.5
    found.observe(3, [NAN, NAN])
    assert found.rate(3) == 0.5
    found.observe(3, [1.0, 1.0])
    assert found.rate(3) == 0.75
    found.observe(3, [0.0])
    assert found.rate(3) == 0.5, "the first visit is forgotten"


def test_prompts_between_low_and_high_come_in_every_epoch() -> None:
    found = curriculum()
    for row, rewards in enumerate(([0, 0, 0, 0, 1], [0, 1, 1, 1, 1], [])):
        found.observe(row, rewards)
        assert turns(found, row, 9) == [True] * 9
    assert found.counts() == {"within": 2, "outside": 0, "retired": 0}


@pytest.mark.parametrize("rewards", [[0, 0, 0, 0, 0, 1], [1, 1, 1, 1, 1, 0]])
def test_other_prompts_rest_between_visits(rewards: list[float]) -> None:
    found = curriculum(rest_epochs=2)
    found.observe(0, rewards)
    assert turns(found, 0, 7) == [False, False, True, False, False, True, False]
    found.observe(0, [0, 1, 1] if rewards[0] == 0 else [0, 1, 0])
    assert found.takes(0)
    assert found.counts()["outside"] == 0


def test_a_prompt_is_retired_by_full_passes_in_a_row() -> None:
    found = curriculum(retire_after=2, rest_epochs=0)
    for rewards in ([1, 1], [1, 0], [1, 1]):
        found.observe(0, rewards)
        assert found.takes(0)
    found.observe(0, [1, 1])
    assert turns(found, 0, 20) == [False] * 20
    assert found.counts() == {"within": 0, "outside": 0, "retired": 1}
    assert found.take_back() == 1
    assert (found.takes(0), found.rate(0), found.retired) == (True, None, set())


def test_retiring_can_be_turned_off() -> None:
    found = curriculum(retire_after=None, rest_epochs=1)
    for _ in range(9):
        found.observe(0, [1, 1])
    assert (found.retired, turns(found, 0, 4)) == (set(), [False, True, False, True])


class Stream:
    """Rows without a dataset: 0, 1, … of one, or of two."""

    def __init__(self, order: Order, count: int, without: Collection[int] = ()) -> None:
        self.order, self.rows, self.usable_rows, self.place = order, count, count - len(without), 0
        self.without = without

    def is_usable(self, row: int) -> bool:
        return row not in self.without

    def prompt(self, epoch: int, row: int) -> Prompt:
        return Prompt(prompt_id=f"{epoch}-{row}", epoch=epoch, row=row, prompt="x", token_ids=(1,))

    def next(self, wanted: Any) -> Prompt:
        for _ in range(100_000):
            found = self.order.at(*divmod(self.place, self.order.length))
            self.place += 1
            if found is not None and wanted(found.row):
                return self.prompt(*found)
        raise AssertionError("an endless loop")

    def where(self, row: int) -> str:
        return f"row {row}"

    def state(self) -> int:
        return self.place

    def restore(self, state: int, *, allow_changed: bool) -> None:
        self.place = state


def queue(rows: int, mixed: bool, without: Collection[int] = (), **settings: Any) -> PromptQueue:
    order: Order = OneOrder(rows, without, seed=0, shuffles=True)
    if mixed and rows > 1:
        order = MixedOrder([range(1), range(1, rows)], [1.0, 3.0], seed=0, shuffles=True)
    return PromptQueue(Stream(order, rows, without), 2, 1, curriculum(**settings))  # type: ignore[arg-type]


def reward_of(row: int, rng: random.Random) -> list[float]:
    """Some rows are always solved, some never, others now and then."""
    chance = (1.0, 0.0, 0.5, 0.95)[row % 4]
    return [float(rng.random() < chance) for _ in range(3)]


SETTINGS = {"rest_epochs": st.integers(0, 3), "retire_after": st.sampled_from([None, 1, 2])}


@settings(deadline=None, max_examples=60)
@given(st.integers(1, 9), st.booleans(), st.integers(0, 99), st.fixed_dictionaries(SETTINGS))
def test_there_is_always_a_next_prompt_and_none_is_lost(
    rows: int, mixed: bool, seed: int, chosen: dict[str, Any]
) -> None:
    prompts, rng = queue(rows, mixed, **chosen), random.Random(seed)
    last_seen, turn_limit = dict.fromkeys(range(rows), 0), (chosen["rest_epochs"] + 1) * rows * (rows + 1)
    open_tickets: list[Ticket] = []
    for number in range(300):
        ticket = prompts.next()
        last_seen[ticket.prompt.row] = number
        open_tickets.append(ticket)
        if rng.random() < 0.7:  # groups finish in any order
            done = open_tickets.pop(rng.randrange(len(open_tickets)))
            prompts.scored(done.prompt, reward_of(done.prompt.row, rng))
        assert prompts.curriculum is not None
        for row in set(range(rows)) - prompts.curriculum.retired:
            assert number - last_seen[row] <= 2 * turn_limit + rows


@settings(deadline=None, max_examples=40)
@given(st.integers(1, 9), st.booleans(), st.integers(0, 60), st.integers(0, 9), st.fixed_dictionaries(SETTINGS))
def test_a_restored_queue_goes_on_as_the_other(
    rows: int, mixed: bool, taken: int, seed: int, chosen: dict[str, Any]
) -> None:
    def drive(prompts: PromptQueue, rng: random.Random, count: int) -> list[str]:
        seen = []
        for _ in range(count):
            ticket = prompts.next()
            seen.append(ticket.prompt.prompt_id)
            prompts.scored(ticket.prompt, reward_of(ticket.prompt.row, rng))
        return seen

    begun, resumed, rng = queue(rows, mixed, **chosen), queue(rows, mixed, **chosen), random.Random(seed)
    drive(begun, rng, taken)
    resumed.restore(json.loads(json.dumps(begun.state())))
    after = rng.getstate()
    expected = drive(begun, rng, 50)
    rng.setstate(after)
    assert drive(resumed, rng, 50) == expected
    assert resumed.state() == begun.state()


def test_when_all_are_solved_all_come_again(caplog: pytest.LogCaptureFixture) -> None:
    prompts = queue(3, False, retire_after=1)
    for expected in ({0, 1, 2}, {0, 1, 2}):
        found = [prompts.next() for _ in range(3)]
        assert {ticket.prompt.row for ticket in found} == expected
        for ticket in found:
            prompts.scored(ticket.prompt, [1.0])
    assert "all prompts are solved: the 3 that were retired come again" in caplog.text


def test_quarantined_prompts_do_not_come_again_with_the_others() -> None:
    prompts = queue(2, False, retire_after=1)
    tickets = sorted((prompts.next() for _ in range(2)), key=lambda ticket: ticket.prompt.row)
    prompts.scored(tickets[0].prompt, [1.0])
    assert prompts.failed(Ticket(tickets[1].prompt, 1, 1), "bad") == "quarantined"
    assert [prompts.next().prompt.row for _ in range(3)] == [0, 0, 0]


def test_rows_that_were_given_up_before_they_became_too_long_do_not_count() -> None:
    begun = queue(4, False, retire_after=1)
    tickets = {ticket.prompt.row: ticket for ticket in (begun.next() for _ in range(4))}
    begun.failed(tickets[0]._replace(failures=1), "bad")
    begun.failed(tickets[3]._replace(failures=1), "bad")
    begun.scored(tickets[2].prompt, [1.0])
    prompts = queue(4, False, without=(2, 3), retire_after=1)  # row 1 is left
    prompts.restore(json.loads(json.dumps(begun.state())))
    for _ in range(2):
        ticket = prompts.next()
        assert ticket.prompt.row == 1
        prompts.scored(ticket.prompt, [1.0])  # retired, and taken back as the only one
    prompts.failed(ticket._replace(failures=1), "bad")
    with pytest.raises(DataError, match=r"all 2 prompts of the dataset are quarantined: .* the first was row 0: bad"):
        prompts.next()


def test_other_settings_judge_what_was_observed_anew() -> None:
    before = curriculum(retire_after=3)
    for rewards in ([0, 0], [1, 1], [0, 1]):
        before.observe(5, rewards)
    state = json.loads(json.dumps(before.state()))
    after = curriculum(retire_after=1, low=0.6, high=0.7)
    after.restore(state, range(6))
    assert (after.rate(5), after.counts()["outside"]) == (0.5, 1)
    after.restore(state, range(5))
    assert after.counts() == {"within": 0, "outside": 0, "retired": 0}


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (["low=0.9", "kind=pass_rate"], "curriculum.low=0.9 is above curriculum.high=0.8; no prompt is between them"),
        (["low=0.1"], "curriculum.low has no effect with curriculum.kind=none; set kind to pass_rate"),
        (["high=1.5", "kind=pass_rate"], "curriculum.high = 1.5 (command line): expected at most 1"),
    ],
)
def test_settings_that_cannot_be(overrides: list[str], message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        load_config(None, [f"--curriculum.{override}" for override in overrides])
    assert message in str(caught.value)
