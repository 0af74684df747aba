import pytest

from asyncgrpo.generation.comeback import REFUSALS, Comeback


def waits(comeback: Comeback, now: float = 0.0, most: int = 99) -> list[float]:
    """Of tries that all fail, each at once."""
    found: list[float] = []
    while len(found) < most and comeback.is_expected(now):
        found.append(comeback.next_try(now))
        now += found[-1]
        comeback.failed()
    return found


def test_waits_double_up_to_a_minute() -> None:
    comeback = Comeback(max_tries=9, patience=float("inf"))
    comeback.ejected(0.0)
    assert waits(comeback) == [1, 2, 4, 8, 16, 32, 60, 60, 60]
    assert comeback.tries == 9


def test_tries_are_counted_over_the_whole_run() -> None:
    comeback = Comeback(max_tries=3, patience=float("inf"))
    comeback.ejected(0.0)
    assert waits(comeback, most=2) == [1, 2]
    comeback.served(3.0)
    comeback.ejected(1000.0)
    assert waits(comeback, 1000.0) == [1]


def test_an_engine_without_tries_is_not_expected() -> None:
    comeback = Comeback(max_tries=0, patience=float("inf"))
    comeback.ejected(0.0)
    assert not comeback.is_expected(0.0)


@pytest.mark.parametrize(("served_for", "wait"), [(59.0, 4.0), (60.0, 1.0)])
def test_only_one_that_has_served_for_a_while_begins_with_a_short_wait(served_for: float, wait: float) -> None:
    comeback = Comeback(max_tries=None, patience=600.0)
    comeback.ejected(100.0)
    assert waits(comeback, 100.0, most=2) == [1, 2]
    comeback.served(103.0)
    comeback.ejected(103.0 + served_for)
    assert comeback.next_try(103.0 + served_for) == wait


def test_patience_counts_from_the_ejection_and_the_last_try_is_at_its_end() -> None:
    comeback = Comeback(max_tries=None, patience=10.0)
    comeback.ejected(50.0)
    assert waits(comeback, 50.0) == [1, 2, 4, 3]
    comeback.served(60.0)
    comeback.ejected(200.0)
    assert waits(comeback, 200.0) == [1, 2, 4, 3]


def test_what_is_not_expected_any_more_may_be_tried_at_long_intervals() -> None:
    comeback = Comeback(max_tries=None, patience=10.0)
    comeback.ejected(0.0)
    waits(comeback)
    assert [comeback.next_try(11.0) for _ in range(4)] == [16, 32, 60, 60]
    comeback.served(200.0)
    comeback.ejected(300.0)
    assert comeback.is_expected(309.0), "patience begins anew"
    assert not comeback.is_expected(310.0)


@pytest.mark.parametrize("max_tries", [None, 9])
def test_refusals_in_a_row_end_it_until_it_was_away(max_tries: int | None) -> None:
    comeback = Comeback(max_tries=max_tries, patience=600.0)
    comeback.ejected(0.0)
    seen = []
    for _ in range(REFUSALS):
        seen.append(comeback.is_expected(1.0))
        comeback.refused()
    assert (seen, comeback.is_expected(1.0), comeback.has_refused) == ([True, True, True], False, True)
    comeback.failed()
    assert (comeback.is_expected(1.0), comeback.has_refused) == (True, False)


@pytest.mark.parametrize("event", ["failed", "served"])
def test_refusals_are_counted_in_a_row(event: str) -> None:
    comeback = Comeback(max_tries=None, patience=600.0)
    comeback.ejected(0.0)
    comeback.refused()
    comeback.refused()
    comeback.failed() if event == "failed" else comeback.served(1.0)
    comeback.ejected(2.0)
    comeback.refused()
    comeback.refused()
    assert comeback.is_expected(3.0)
