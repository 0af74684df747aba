"""`on_error: drop_sample`: a completion without a reward is left out of its group, and never scored as anything."""

import asyncio
import logging
import threading
from typing import Any

import pytest
from reward_scoring import COMPLETIONS, TEXTS, prompt

from asyncgrpo.errors import GroupUnscored, RewardError
from asyncgrpo.rewards import score_group
from asyncgrpo.rewards.functions import RewardFunction
from asyncgrpo.rewards.notes import GroupNotes
from asyncgrpo.types import Sample


def judge(call: Any, on_error: Any = "drop_sample", **settings: Any) -> RewardFunction:
    return RewardFunction("judge", 1.0, settings.pop("timeout", 5.0), call, on_error, **settings)


async def scored(*functions: RewardFunction, notes: GroupNotes | None = None) -> list[Sample]:
    async with asyncio.timeout(10):
        return await score_group(functions, prompt(answer=4), COMPLETIONS, TEXTS, notes)


async def test_called_per_sample_one_that_raises_or_is_late_costs_itself_only(caplog: pytest.LogCaptureFixture) -> None:
    seen: list[Any] = []
    released = threading.Event()

    def flaky(prompts: Any, completions: Any, completion_ids: Any, answer: Any) -> list[float]:
        seen.append((prompts, completions, completion_ids, answer))
        if completions == ["bb"]:
            raise ConnectionError("judge is down")
        return [len(completions[0])]

    async def slow(completions: Any) -> list[float]:
        if completions == ["a"]:
            await asyncio.sleep(5)
        return [float(len(completions[0]))]

    notes = GroupNotes()
    with caplog.at_level(logging.WARNING, "asyncgrpo.rewards.calling"):
        samples = await scored(judge(flaky, per_sample=True), notes=notes)
    assert [(sample.text, sample.reward) for sample in samples] == [("a", 1.0), ("ccc", 3.0)]
    assert [sample.completion for sample in samples] == [COMPLETIONS[0], COMPLETIONS[2]]
    assert sorted(seen) == [(["say"], [text], [list(range(n))], [4]) for n, text in enumerate(TEXTS, 1)]
    assert notes.missing == 1
    assert "prompt 0-7, sample 1: ConnectionError: judge is down (" in caplog.text
    samples = await scored(judge(slow, per_sample=True, timeout=0.2))
    assert [sample.text for sample in samples] == ["bb", "ccc"]
    released.set()


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), "one", ValueError("no answer")])
async def test_in_a_list_what_is_no_reward_costs_its_sample_only(bad: Any) -> None:
    def mixed(**_: Any) -> list[Any]:
        return [1.0, bad, 3.0]

    samples = await scored(judge(mixed), RewardFunction("other", 1.0, 5.0, lambda **_: [0.5, 0.5, None]))
    assert [(sample.text, sample.reward) for sample in samples] == [("a", 1.5), ("ccc", 3.0)]
    assert samples[1].rewards == {"judge": 3.0, "other": None}
    for on_error, kind in (("drop_group", GroupUnscored), ("stop", RewardError)):
        with pytest.raises(RewardError, match=r"returned .* completion 1") as caught:
            await scored(judge(mixed, on_error))
        assert type(caught.value) is kind


async def test_gathered_exceptions_of_an_async_function_are_failed_samples() -> None:
    async def one(text: str) -> float:
        if text == "a":
            raise TimeoutError("slow")
        return 1.0

    async def gathered(completions: Any) -> list[Any]:
        return await asyncio.gather(*map(one, completions), return_exceptions=True)

    assert [sample.text for sample in await scored(judge(gathered))] == ["bb", "ccc"]


async def test_a_group_of_which_fewer_than_two_are_left_is_dropped() -> None:
    with pytest.raises(GroupUnscored) as caught:
        await scored(judge(lambda **_: [1.0, float("nan"), float("nan")]))
    assert str(caught.value) == (
        "reward function 'judge', prompt 0-7: returned nan for completion 1; where a function does not apply, return "
        "None; 1 of 3 samples left (on_error drop_sample), where a group needs 2"
    )


@pytest.mark.parametrize("fault", ["raises", "is late", "returns one"])
async def test_a_call_for_the_whole_group_that_fails_drops_it(fault: str) -> None:
    async def whole(completions: Any) -> list[float]:
        if fault == "raises":
            raise KeyError("gone")
        await asyncio.sleep(5 if fault == "is late" else 0)
        return [1.0]

    with pytest.raises(GroupUnscored, match="0 of 3 samples left"):
        await scored(judge(whole, timeout=0.2))


async def test_samples_that_different_functions_cannot_score_are_all_left_out() -> None:
    first = judge(lambda **_: [float("nan"), 1.0, 1.0])
    second = RewardFunction("second", 1.0, 5.0, lambda **_: [1.0, float("nan"), 1.0], "drop_sample")
    notes = GroupNotes()
    with pytest.raises(GroupUnscored, match="1 of 3 samples left"):
        await scored(first, second, notes=notes)
    assert notes.missing == 2


async def test_a_sum_that_is_too_large_costs_its_sample_only() -> None:
    samples = await scored(judge(lambda **_: [1.0, 1e300, 2.0]))
    assert [sample.reward for sample in samples] == [1.0, 2.0]


async def test_of_samples_called_apart_one_that_fails_drops_the_group_or_ends_the_run() -> None:
    def flaky(completions: Any) -> list[float]:
        if completions == ["bb"]:
            raise KeyError("gone")
        return [1.0]

    for on_error, kind in (("drop_group", GroupUnscored), ("stop", RewardError)):
        with pytest.raises(RewardError, match="'judge', prompt 0-7, sample 1: KeyError: 'gone'") as caught:
            await scored(judge(flaky, on_error, per_sample=True))
        assert type(caught.value) is kind
