"""One fate for each group, and nothing forgotten."""

import json
import math

import pytest
from buffer_cases import group, sample

from asyncgrpo.buffer.ledger import Ledger, Outcome
from asyncgrpo.types import LedgerEntry


def test_an_entry_says_what_became_of_a_group() -> None:
    ledger = Ledger()
    ledger.admitted(0, "1-7", 0, start_version=3)
    assert ledger.open == [0]
    outcome = Outcome(samples=2, tokens=30, tokens_max=20, reward_mean=0.5, seconds=1.5, cut_samples=1)
    assert ledger.settle(0, "dropped", "stale", version=5, outcome=outcome) == LedgerEntry(
        group_id=0,
        prompt_id="1-7",
        attempt=0,
        fate="dropped",
        reason="stale",
        start_version=3,
        version=5,
        samples=2,
        tokens=30,
        tokens_max=20,
        reward_mean=0.5,
        seconds=1.5,
        cut_samples=1,
        failed_samples=0,
        uses=0,
    )
    assert ledger.open == []
    assert ledger.totals == {"dropped:stale": 1}


@pytest.mark.parametrize("first", ["trained", "dropped", "reissued"])
@pytest.mark.parametrize("second", ["trained", "dropped", "reissued"])
def test_a_second_fate_is_refused(first: str, second: str) -> None:
    reasons = {"trained": "", "dropped": "stale", "reissued": "stale"}
    ledger = Ledger()
    ledger.admitted(0, "0-0", 0, 0)
    ledger.settle(0, first, reasons[first], version=0)
    totals = ledger.totals.copy()
    with pytest.raises(ValueError, match=f"group 0 has a fate already; it cannot be {second}"):
        ledger.settle(0, second, reasons[second], version=0)
    assert ledger.totals == totals


def test_a_group_that_was_never_admitted_has_no_fate() -> None:
    with pytest.raises(ValueError, match="group 4 was never admitted"):
        Ledger().settle(4, "trained", version=0)


@pytest.mark.parametrize(("fate", "reason"), [("trained", "stale"), ("dropped", ""), ("reissued", "")])
def test_only_trained_groups_have_no_reason(fate: str, reason: str) -> None:
    ledger = Ledger()
    ledger.admitted(0, "0-0", 0, 0)
    with pytest.raises(ValueError, match="only a trained group has none"):
        ledger.settle(0, fate, reason, version=0)
    assert ledger.open == [0]


def test_a_group_id_is_admitted_once() -> None:
    ledger = Ledger()
    ledger.admitted(0, "0-0", 0, 0)
    ledger.settle(0, "trained", version=0)
    with pytest.raises(ValueError, match="group 0 was admitted before"):
        ledger.admitted(0, "0-1", 0, 0)


def test_a_prompt_has_one_group_at_a_time_and_its_attempts_follow_each_other() -> None:
    ledger = Ledger()
    ledger.admitted(0, "0-0", 0, 0)
    with pytest.raises(ValueError, match="prompt 0-0 has a group without a fate already"):
        ledger.admitted(1, "0-0", 1, 0)
    ledger.settle(0, "reissued", "failed", version=0)
    assert ledger.waiting == {"0-0": 1}
    for wrong in (0, 2):
        with pytest.raises(ValueError, match=f"attempt {wrong}, but attempt 1 is due"):
            ledger.admitted(1, "0-0", wrong, 0)
    ledger.admitted(1, "0-0", 1, 0)
    assert ledger.waiting == {}
    assert ledger.settle(1, "trained", version=0).attempt == 1
    with pytest.raises(ValueError, match="attempt 2, but attempt 0 is due"):
        ledger.admitted(2, "0-0", 2, 0)
    assert ledger.totals == {"reissued:failed": 1, "trained": 1}


def test_uses_of_a_replayed_group_are_counted_until_it_is_let_go() -> None:
    ledger = Ledger()
    for group_id in range(2):
        ledger.admitted(group_id, f"0-{group_id}", 0, 0)
    assert ledger.settle(0, "trained", version=0, keep=True).uses == 1
    ledger.settle(1, "trained", version=0)
    ledger.used(0)
    ledger.used(0)
    assert (ledger.kept, ledger.uses) == ([0], 4)
    with pytest.raises(ValueError, match="group 1 is not kept"):
        ledger.used(1)
    assert ledger.released(0) == 3
    for gone in (ledger.used, ledger.released):
        with pytest.raises(ValueError, match="group 0 is not kept"):
            gone(0)
    assert ledger.totals == {"trained": 2}  # replay is no second fate


def test_only_trained_groups_are_kept() -> None:
    ledger = Ledger()
    ledger.admitted(0, "0-0", 0, 0)
    with pytest.raises(ValueError, match="group 0 is dropped; only trained groups are kept"):
        ledger.settle(0, "dropped", "stale", version=0, keep=True)


def test_a_restored_ledger_goes_on_where_the_other_stopped() -> None:
    before = Ledger()
    for group_id in range(4):
        before.admitted(group_id, f"0-{group_id}", 0, start_version=1)
    before.settle(0, "trained", version=1, keep=True)
    before.used(0)
    before.settle(1, "reissued", "stale", version=2)
    before.settle(2, "dropped", "stale", version=2)
    ledger = Ledger()
    ledger.restore(json.loads(json.dumps(before.state())))
    assert ledger.state() == before.state()
    assert (ledger.open, ledger.waiting, ledger.kept, ledger.uses) == ([3], {"0-1": 1}, [0], 2)
    with pytest.raises(ValueError, match="group 3 was admitted before"):
        ledger.admitted(3, "0-4", 0, 0)
    with pytest.raises(ValueError, match="prompt 0-3 has a group without a fate already"):
        ledger.admitted(4, "0-3", 0, 0)
    with pytest.raises(ValueError, match="attempt 1 is due"):
        ledger.admitted(4, "0-1", 0, 0)
    ledger.admitted(4, "0-1", 1, 0)
    assert ledger.settle(4, "trained", version=4).attempt == 1
    assert ledger.released(0) == 2
    entry = ledger.settle(3, "trained", version=4)
    assert (entry.prompt_id, entry.start_version) == ("0-3", 1)
    assert ledger.totals == {"trained": 3, "reissued:stale": 1, "dropped:stale": 1}


def test_memory_does_not_grow_with_the_run() -> None:
    ledger = Ledger()
    for group_id in range(1000):
        ledger.admitted(group_id, f"0-{group_id}", 0, 0)
        ledger.settle(group_id, "trained", version=group_id)
    held = (ledger._open, ledger._open_prompts, ledger._reissued, ledger._kept)
    assert [len(part) for part in held] == [0, 0, 0, 0]
    assert ledger.totals == {"trained": 1000}


def test_the_outcome_of_a_group() -> None:
    finished = group(0, sample(1.0, [0, 0, 0]), sample(math.nan, [1]), sample(0.0, [1, 1]), seconds=2.5)
    assert Outcome.of(finished, cut_samples=4, failed_samples=1) == Outcome(
        samples=3, tokens=6, tokens_max=3, reward_mean=0.5, seconds=2.5, cut_samples=4, failed_samples=1
    )
    assert Outcome.of(group(0, sample(math.nan))).reward_mean is None
