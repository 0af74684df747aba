"""Built-in rewards inside of a run: told what they were not, and called as every function is."""

import asyncio

import pytest
from reward_scoring import COMPLETIONS, prompt

from asyncgrpo.errors import ConfigError, RewardError
from asyncgrpo.rewards import bound, from_callables, score_group
from asyncgrpo.rewards.builtin import Accuracy, NumberMatch, Repetition, SoftOverlong
from asyncgrpo.types import Sample

HANGS = r"\boxed{10^{10^{10}}}"


def test_a_run_tells_built_in_rewards_what_they_were_not_told() -> None:
    given = from_callables([SoftOverlong(soft_punish_cache=10), NumberMatch(), lambda completions: [0.0]])
    first, second, third = bound(given, max_completion_length=40)
    assert first.call(completion_ids=[[1] * 35]) == [-0.5]
    assert (second, third) == (given[1], given[2])
    with pytest.raises(ConfigError, match="more than max_completion_length=8"):
        bound(given, max_completion_length=8)


async def scored(texts: list[str], *rewards: object, **columns: object) -> list[Sample]:
    functions = bound(from_callables(list(rewards)), max_completion_length=8)  # type: ignore[arg-type]
    async with asyncio.timeout(120):
        return await score_group(functions, prompt(**columns), COMPLETIONS, texts)


async def test_each_gets_its_column_and_a_sample_without_a_verdict_is_not_scored_by_that_one() -> None:
    await scored(["", "", ""], Accuracy(deadline=60.0, workers=1), solution="1")  # its worker runs
    samples = await scored(
        [r"\boxed{\frac{1}{3}}", HANGS, r"\boxed{1}"],
        Accuracy(deadline=2.0, workers=1),
        Repetition(ngram_size=1),
        solution=r"\frac{1}{3}",
        other=3,
    )
    assert [sample.rewards["accuracy"] for sample in samples] == [1.0, None, 0.0]
    assert [sample.reward for sample in samples] == [1.0, 0.0, 0.0]


async def test_a_lost_answer_can_fail_the_call_which_names_function_and_prompt() -> None:
    with pytest.raises(RewardError, match=r"reward function 'accuracy', prompt 0-7: RuntimeError: 3 answers"):
        await scored([HANGS] * 3, Accuracy(deadline=0.5, workers=1, on_lost="error"), solution="5")
