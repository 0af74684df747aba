"""Prompts that come again, when, and for how long."""

import json
from typing import Any

import pytest

from asyncgrpo.config import RunConfig
from asyncgrpo.errors import DataError, EngineUnavailable
from asyncgrpo.prompts import PromptStream, load_rows
from asyncgrpo.prompts.queue import PromptQueue, Ticket
from asyncgrpo.testing.tiny import make_tokenizer

TOKENIZER = make_tokenizer()
ERROR = EngineUnavailable("the engine said no")


def queue(rows: int = 20, max_failures: int = 3, pause: int = 4, limit: int | None = None) -> PromptQueue:
    config = RunConfig.model_validate({"data": {"shuffle_dataset": False, "max_prompt_length": limit}})
    data = [{"prompt": "x" * (row + 1)} for row in range(rows)]
    return PromptQueue(PromptStream(load_rows(config, data), TOKENIZER, config), max_failures, pause)


def names(prompts: PromptQueue, count: int) -> list[str]:
    """`"{epoch}-{row}"` of the next prompts, with `*` for every try before."""
    tickets = [prompts.next() for _ in range(count)]
    return [ticket.prompt.prompt_id + "*" * ticket.attempt for ticket in tickets]


def test_without_failures_it_is_the_stream() -> None:
    assert names(queue(rows=3), 5) == ["0-0", "0-1", "0-2", "1-0", "1-1"]


@pytest.mark.parametrize("pause", [0, 1, 4])
def test_a_failed_prompt_comes_again_after_the_pause(pause: int) -> None:
    prompts = queue(pause=pause)
    first = prompts.next()
    assert prompts.failed(first, ERROR) == "reissued"
    assert prompts.waiting == 1
    assert names(prompts, 6) == [f"0-{row}" for row in range(1, 7)][:pause] + ["0-0*"] + [
        f"0-{row}" for row in range(1 + pause, 6)
    ]
    assert prompts.waiting == 0


def test_a_bad_prompt_takes_one_in_p_admissions_and_then_none() -> None:
    prompts = queue(rows=100, pause=4, max_failures=3)
    bad, tries = 0, []
    for number in range(40):
        ticket = prompts.next()
        if ticket.prompt.row == bad:
            tries.append(number)
            assert prompts.failed(ticket, ERROR) == ("quarantined" if len(tries) == 3 else "reissued")
    assert tries == [0, 5, 10]
    assert prompts.quarantined == {0: "the engine said no"}


def test_a_quarantined_row_is_skipped_in_later_epochs(caplog: pytest.LogCaptureFixture) -> None:
    prompts = queue(rows=3, max_failures=1)
    prompts.next()
    assert prompts.failed(prompts.next(), ERROR) == "quarantined"
    assert names(prompts, 5) == ["0-2", "1-0", "1-2", "2-0", "2-2"]
    assert "train_dataset: row 1 is left out from now on: 1 groups of prompt 0-1 failed" in caplog.text


def test_quarantined_rows_keep_their_last_error_in_order() -> None:
    prompts = queue(rows=4, max_failures=2, pause=0)
    tickets = [prompts.next() for _ in range(3)]
    assert [prompts.failed(ticket, "first") for ticket in tickets] == ["reissued"] * 3
    again = [prompts.next() for _ in range(3)]
    for ticket in reversed(again):
        prompts.failed(ticket, f"last of {ticket.prompt.row}")
    assert list(prompts.quarantined.items()) == [(2, "last of 2"), (1, "last of 1"), (0, "last of 0")]


def test_a_prompt_that_is_not_to_blame_comes_again_however_often() -> None:
    prompts = queue(max_failures=2, pause=0)
    for attempt in range(9):
        again = prompts.next()
        assert (again.prompt.prompt_id, again.attempt, again.failures) == ("0-0", attempt, 0)
        assert prompts.reissue(again) == "reissued"
    assert prompts.failed(prompts.next(), "a") == "reissued"
    assert prompts.reissue(prompts.next()) == "reissued"
    last = prompts.next()
    assert (last.attempt, last.failures) == (11, 1)
    assert prompts.failed(last, "b") == "quarantined"
    assert prompts.quarantined == {0: "b"}
    assert prompts.reissue(last) == "quarantined", "as other prompts of its row"


def test_other_prompts_of_a_quarantined_row_are_not_tried_once_more() -> None:
    """In a small dataset a row is in flight in several epochs at once."""
    prompts = queue(rows=2, max_failures=2, pause=100)
    row_0 = [ticket for ticket in (prompts.next() for _ in range(6)) if ticket.prompt.row == 0]
    assert prompts.failed(row_0[0], "a") == "reissued"
    assert prompts.failed(Ticket(row_0[0].prompt, 1, 1), "b") == "quarantined"
    assert prompts.failed(row_0[1], "c") == "quarantined"
    assert prompts.quarantined == {0: "b"}


def test_waiting_prompts_come_when_nothing_else_is_left() -> None:
    prompts = queue(rows=2, max_failures=2, pause=100)
    good, bad = prompts.next(), prompts.next()
    assert prompts.failed(good, "slow") == "reissued"
    assert prompts.failed(Ticket(bad.prompt, 1, 1), "bad") == "quarantined"
    assert names(prompts, 1) == ["1-0"]  # row 0 of the next epoch is still something else
    assert prompts.failed(Ticket(good.prompt, 1, 1), "worse") == "quarantined"
    assert names(prompts, 1) == ["0-0*"]


def test_when_every_row_is_quarantined_the_first_error_is_named() -> None:
    prompts = queue(rows=3, max_failures=1, limit=2)  # the third row is too long
    for message in ("first", "second"):
        prompts.failed(prompts.next(), message)
    with pytest.raises(
        DataError, match=r"all 2 prompts .* each failed; the first was train_dataset: row 0: first; mend"
    ):
        prompts.next()


@pytest.mark.parametrize("limit", [2, 3])
def test_rows_that_were_quarantined_before_they_became_too_long_do_not_count(limit: int) -> None:
    begun = queue(rows=4, max_failures=1)
    tickets = [begun.next() for _ in range(4)]
    for ticket in (tickets[3], tickets[0], tickets[1]):
        begun.failed(ticket, f"row {ticket.prompt.row}")
    prompts = queue(rows=4, max_failures=1, limit=limit)
    prompts.restore(json.loads(json.dumps(begun.state())))
    if limit == 3:  # row 2 is left
        ticket = prompts.next()
        assert ticket.prompt.row == 2
        prompts.failed(ticket, "row 2")
    with pytest.raises(DataError, match=rf"all {limit} prompts .* the first was train_dataset: row 0: row 0; mend"):
        prompts.next()


def drive(prompts: PromptQueue, count: int) -> list[str]:
    """Rows 2 and 5 always fail."""
    seen = []
    for _ in range(count):
        ticket = prompts.next()
        seen.append(ticket.prompt.prompt_id + "*" * ticket.attempt)
        if ticket.prompt.row in (2, 5):
            prompts.failed(ticket, f"row {ticket.prompt.row}")
    return seen


@pytest.mark.parametrize("taken", range(0, 30, 3))
def test_a_restored_queue_goes_on_as_the_other_would_have(taken: int) -> None:
    whole = queue(rows=7)
    expected = drive(whole, taken + 30)[taken:]
    begun = queue(rows=7)
    drive(begun, taken)
    state: dict[str, Any] = json.loads(json.dumps(begun.state()))
    resumed = queue(rows=7)
    resumed.restore(state)
    assert resumed.quarantined == begun.quarantined
    assert drive(resumed, 30) == expected
    assert resumed.state() == whole.state()


def test_prompts_in_flight_are_the_first_after_a_restore_and_none_is_lost() -> None:
    begun = queue()
    tickets = [begun.next() for _ in range(4)]
    begun.failed(tickets[1], ERROR)
    state = json.loads(json.dumps(begun.state(in_flight=[tickets[0], tickets[2]])))
    resumed = queue()
    resumed.restore(state)
    assert names(resumed, 6) == ["0-0*", "0-2*", "0-4", "0-5", "0-1*", "0-6"]


def test_a_start_of_the_run_is_a_try_but_no_failure_of_a_prompt() -> None:
    prompts = queue(max_failures=2, pause=0)
    ticket = prompts.next()
    for start in range(1, 4):
        state = json.loads(json.dumps(prompts.state(in_flight=[ticket])))
        prompts = queue(max_failures=2, pause=0)
        prompts.restore(state)
        ticket = prompts.next()
        assert (ticket.prompt.prompt_id, ticket.attempt, ticket.failures) == ("0-0", start, 0)
    assert prompts.failed(ticket, ERROR) == "reissued"
    ticket = prompts.next()
    assert (ticket.attempt, ticket.failures) == (4, 1)
    assert prompts.failed(ticket, ERROR) == "quarantined"
