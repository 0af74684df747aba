"""Sums along fate, length, difficulty and version, by hand."""

import random
import statistics
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from asyncgrpo.buffer.accounting import Accounting
from asyncgrpo.buffer.tally import MOST_CELLS, Axis, Moments, Tally
from asyncgrpo.types import LedgerEntry


def entry(fate: str = "trained", reason: str = "", lengths: tuple[int, ...] = (1,), **changes: object) -> LedgerEntry:
    values = {
        "group_id": 0,
        "prompt_id": "0-0",
        "attempt": 0,
        "start_version": 0,
        "version": 0,
        "samples": len(lengths),
        "tokens": sum(lengths),
        "tokens_max": max(lengths, default=0),
        "reward_mean": 0.0,
    }
    return LedgerEntry(fate=fate, reason=reason, **(values | changes))  # type: ignore[arg-type]


def accounting(*entries: LedgerEntry, longest: int = 100) -> Accounting:
    found = Accounting(longest)
    for one in entries:
        found.add(one)
    return found


def groups(table: dict[str, dict[str, Tally]]) -> dict[str, dict[str, int]]:
    return {name: {fate: tally.groups for fate, tally in fates.items()} for name, fates in table.items()}


def test_sums_by_fate_and_reason() -> None:
    found = accounting(
        entry(lengths=(10, 20), reward_mean=1.0),
        entry(lengths=(30,), reward_mean=0.25),
        entry("dropped", "stale", lengths=(100, 60), reward_mean=0.5),
        entry("dropped", "failed", lengths=(), reward_mean=None),
        entry("reissued", "stale", lengths=(80,), reward_mean=None),
    ).by_fate()
    assert set(found) == {"trained", "dropped:stale", "dropped:failed", "reissued:stale"}
    trained = found["trained"]
    assert (trained.groups, trained.samples, trained.mean_tokens, trained.mean_reward) == (2, 3, 20.0, 0.75)
    assert (found["dropped:stale"].mean_tokens, found["dropped:stale"].mean_reward) == (80.0, 0.5)
    failed = found["dropped:failed"]
    assert (failed.groups, failed.samples, failed.mean_tokens, failed.mean_reward) == (1, 0, None, None)
    assert (found["reissued:stale"].mean_tokens, found["reissued:stale"].mean_reward) == (80.0, None)


def test_lengths_are_those_of_the_longest_sample_in_quarters() -> None:
    found = accounting(
        *(entry(lengths=(1, length)) for length in (1, 25, 26, 50, 51, 75, 76, 100)),
        entry("dropped", "stale", lengths=(99, 1)),
        entry("dropped", "failed", lengths=()),
    )
    assert groups(found.by_length()) == {
        "1-25": {"trained": 2},
        "26-50": {"trained": 2},
        "51-75": {"trained": 2},
        "76-100": {"trained": 2, "dropped:stale": 1},
    }


@pytest.mark.parametrize(
    ("longest", "bins"),
    [(10, {"1-3": 3, "4-5": 2, "6-8": 3, "9-10": 2}), (2, {"1-1": 1, "2-2": 1}), (1, {"1-1": 1})],
)
def test_quarters_of_lengths_that_do_not_divide(longest: int, bins: dict[str, int]) -> None:
    found = accounting(*(entry(lengths=(n,)) for n in range(1, longest + 1)), longest=longest)
    assert groups(found.by_length()) == {name: {"trained": count} for name, count in bins.items()}


def test_difficulty_is_a_quarter_of_the_range_of_mean_rewards() -> None:
    found = accounting(
        entry(reward_mean=-1.0),
        entry("dropped", "uniform", reward_mean=3.0),
        entry(reward_mean=0.1),
        entry(reward_mean=1.1),
        entry(reward_mean=1.9),
        entry(reward_mean=2.5),
        entry(reward_mean=None),
    )
    assert groups(found.by_difficulty()) == {
        "hardest": {"trained": 1},
        "hard": {"trained": 1},
        "easy": {"trained": 2},
        "easiest": {"dropped:uniform": 1, "trained": 1},
    }


def test_versions_each_have_a_bin_until_there_are_many() -> None:
    few = accounting(*(entry(start_version=version) for version in (0, 1, 1, 3)))
    assert groups(few.by_version()) == {"0": {"trained": 1}, "1": {"trained": 2}, "3": {"trained": 1}}
    many = accounting(*(entry(start_version=version) for version in range(200)))
    found = groups(many.by_version())
    assert list(found)[:2] == ["0-3", "4-7"]
    assert len(found) == 50
    assert all(tally == {"trained": 4} for tally in found.values())


def test_trained_against_generated_by_hand() -> None:
    """Trained: rewards 1, 0; not trained: 0, 0, 1, 1, 1, 1 (mean 2/3). All: mean 5/8."""
    found = accounting(
        entry(reward_mean=1.0, lengths=(10,)),
        entry(reward_mean=0.0, lengths=(20,)),
        *(entry("dropped", "stale", reward_mean=reward, lengths=(50, 30)) for reward in (0, 0, 1, 1, 1, 1)),
        entry("dropped", "failed", lengths=(), reward_mean=None),
    ).trained_versus_generated()
    reward = found["reward"]
    assert (reward.trained, reward.generated) == (0.5, pytest.approx(5 / 8))
    assert reward.difference == pytest.approx(-1 / 8)
    others = statistics.variance([0, 0, 1, 1, 1, 1])
    assert reward.standard_error == pytest.approx(6 / 8 * (0.5 / 2 + others / 6) ** 0.5)
    tokens = found["tokens"]
    assert (tokens.trained, tokens.generated, tokens.difference) == (15.0, pytest.approx(33.75), pytest.approx(-18.75))
    assert tokens.standard_error == pytest.approx(6 / 8 * (50 / 2) ** 0.5)


def test_the_standard_error_is_that_of_repeated_runs() -> None:
    """1,500 runs of 30 trained and 20 other groups: the differences scatter as far as the error says."""
    rng = random.Random(1)
    differences, errors = [], []
    for _ in range(1500):
        drawn = [entry(reward_mean=rng.gauss(1.0, 2.0)) for _ in range(30)]
        drawn += [entry("dropped", "stale", reward_mean=rng.gauss(0.0, 0.5)) for _ in range(20)]
        reward = accounting(*drawn).trained_versus_generated()["reward"]
        differences.append(reward.difference)
        errors.append(reward.standard_error)
    assert statistics.mean(differences) == pytest.approx(0.4, abs=0.03)
    assert statistics.stdev(differences) == pytest.approx(statistics.mean(errors), rel=0.07)


def test_what_cannot_be_compared_yet() -> None:
    assert accounting().trained_versus_generated() == {}
    assert accounting(entry("dropped", "stale")).trained_versus_generated() == {}
    alone = accounting(entry(reward_mean=None)).trained_versus_generated()
    assert set(alone) == {"tokens"}
    assert (alone["tokens"].difference, alone["tokens"].standard_error) == (0.0, 0.0)
    one_each = accounting(entry(), entry("dropped", "stale", lengths=(3,))).trained_versus_generated()["tokens"]
    assert (one_each.difference, one_each.standard_error) == (-1.0, None)


@given(
    st.lists(st.floats(-1e6, 1e6, allow_subnormal=False), min_size=1, max_size=300), st.randoms(use_true_random=False)
)
def test_an_axis_forgets_the_order_but_no_group(values: list[float], rng: random.Random) -> None:
    def read(order: list[float]) -> tuple[list[object], list[object]]:
        axis = Axis()
        for value in order:
            axis.add(value, "trained", replace(entry(), reward_mean=1.0))
        assert len(axis.cells()) <= MOST_CELLS
        for low, high, cell in axis.cells():
            assert cell["trained"].groups == sum(low <= value < high for value in values)
        quarters = axis.quarters()
        assert sum(cell["trained"].groups for cell in quarters if cell) == len(values)
        return axis.cells(), quarters

    assert read(values) == read(rng.sample(values, len(values)))


@given(st.lists(st.floats(-1e6, 1e6, allow_subnormal=False), min_size=2, max_size=50))
def test_running_moments_are_those_of_the_list(values: list[float]) -> None:
    moments = Moments()
    for value in values:
        moments.add(value)
    assert moments.mean == pytest.approx(statistics.fmean(values), abs=1e-6)
    assert moments.variance == pytest.approx(statistics.variance(values), rel=1e-6, abs=1e-6)


def test_memory_does_not_grow_with_the_run() -> None:
    rng = random.Random(0)
    found = Accounting(100)
    for number in range(5000):
        found.add(entry(lengths=(rng.randint(1, 100),), reward_mean=rng.gauss(0, 1 + number), start_version=number))
    assert len(found.by_version()) <= MOST_CELLS
    assert len(found._by_difficulty.cells()) <= MOST_CELLS
