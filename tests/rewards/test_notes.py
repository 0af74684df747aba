"""What functions are told of the run, and what they log of a group beside its rewards."""

import asyncio
import logging
import re
import threading
from collections.abc import Callable
from dataclasses import FrozenInstanceError, replace
from typing import Any

import numpy as np
import pytest
from reward_scoring import COMPLETIONS, TEXTS, prompt, refusal

from asyncgrpo.errors import GroupUnscored
from asyncgrpo.rewards import from_callables, score_group
from asyncgrpo.rewards.functions import RewardFunction
from asyncgrpo.rewards.notes import LONGEST_EXTRA, MOST_COLUMNS, MOST_METRICS, GroupNotes, RunNotes, TrainerState
from asyncgrpo.types import Sample

Failures = list[tuple[str, str]]


async def noted(*functions: Any, notes: GroupNotes | None = None, **settings: Any) -> tuple[GroupNotes, list[Sample]]:
    built = [replace(each, **settings) for each in from_callables(list(functions), timeout=5.0)]
    notes = GroupNotes() if notes is None else notes
    async with asyncio.timeout(10):
        return notes, await score_group(built, prompt(), COMPLETIONS, TEXTS, notes)


async def test_functions_see_where_the_run_is_and_cannot_change_it() -> None:
    seen: list[TrainerState] = []

    def shaped(completions: Any, trainer_state: TrainerState) -> list[float]:
        seen.append(trainer_state)
        trainer_state.global_step = 9  # type: ignore[misc]
        return [0.0] * 3

    run = RunNotes(40, lambda function, reason: None)
    notes = run.of_group(replace(prompt(), epoch=2), start_version=6, steps_done=7)
    with pytest.raises(Exception, match="FrozenInstanceError") as caught:
        await noted(shaped, notes=notes)
    assert isinstance(caught.value.__cause__, FrozenInstanceError)
    assert seen == [TrainerState(global_step=7, max_steps=40, version=6, epoch=2)]


async def test_metrics_of_several_functions_and_threads_are_summed_and_counted() -> None:
    def threaded(completions: Any, log_metric: Callable[[str, float], None]) -> list[float]:
        threads = [threading.Thread(target=log_metric, args=("tries", n)) for n in (1, 2, 3)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        return [0.0] * 3

    async def judge(completions: Any, log_metric: Callable[[str, float], None], **_: Any) -> list[float]:
        log_metric("tries", np.float32(4))
        log_metric("judge/seconds", 0.5)
        log_metric("judge/nothing", float("nan"))
        return [0.0] * 3

    notes, _ = await noted(threaded, judge)
    assert notes.metrics == {"tries": (10.0, 4), "judge/seconds": (0.5, 1)}


async def test_extras_belong_to_their_samples_and_are_copies() -> None:
    thoughts = [["a"], {"b": 1}, None]

    def first(completions: Any, log_extra: Callable[..., None]) -> list[float]:
        log_extra("thought", thoughts)
        log_extra("score", np.array([1.5, float("nan"), 2.5]))
        log_extra("both", ["first"] * 3)
        return [0.0] * 3

    async def second(completions: Any, log_extra: Callable[..., None]) -> list[float]:
        log_extra("both", ("second", "x" * 3000, ["y" * 3000]))
        return [0.0] * 3

    _, samples = await noted(first, second)
    thoughts[0].append("later")  # type: ignore[union-attr]
    assert samples[0].extra == {"thought": ["a"], "score": 1.5, "both": "second"}
    assert samples[1].extra == {"thought": {"b": 1}, "score": None, "both": "x" * LONGEST_EXTRA + "…"}
    assert samples[2].extra["both"] == '["' + "y" * (LONGEST_EXTRA - 2) + "…"


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda metric, extra: metric("a b", 1.0), r"log_metric: the str 'a b' is no name; give up to 64 letters"),
        (lambda metric, extra: metric(3, 1.0), "log_metric: the int 3 is no name"),
        (lambda metric, extra: metric("x" * 65, 1.0), "is no name"),
        (lambda metric, extra: metric("m", "high"), "log_metric: 'm' is the str 'high', expected a number"),
        (lambda metric, extra: extra("", [1, 2, 3]), "log_extra: the str '' is no name"),
        (lambda metric, extra: extra("c", [1, 2]), "log_extra: column 'c' got 2 values, expected a list of 3"),
        (lambda metric, extra: extra("c", "abc"), "column 'c' got the str 'abc', expected a list of 3"),
        (
            lambda metric, extra: extra("c", [1, object(), 3]),
            "column 'c' has the object .* 1; give text",
        ),
        (lambda metric, extra: extra("c", [1, 2, [float("nan")]]), "for completion 2"),
        (
            lambda metric, extra: [extra(f"c{n}", [1, 2, 3]) for n in range(MOST_COLUMNS + 1)],
            f"'c{MOST_COLUMNS}' is one column too many; a call may log {MOST_COLUMNS}",
        ),
    ],
)
async def test_what_cannot_be_logged_fails_the_call_by_name(call: Callable[..., Any], message: str) -> None:
    def wrong(completions: Any, log_metric: Any, log_extra: Any) -> list[float]:
        call(log_metric, log_extra)
        return [0.0] * 3

    answer = await refusal(wrong)
    assert answer.startswith("reward function 'wrong', prompt 0-7: ValueError: ")
    assert re.search(message, answer)


async def test_a_run_has_a_bounded_number_of_metric_names(caplog: pytest.LogCaptureFixture) -> None:
    def chatty(completions: Any, log_metric: Callable[[str, float], None]) -> list[float]:
        for number in range(MOST_METRICS + 5):
            log_metric(f"m{number}", 1.0)
        return [0.0] * 3

    run = RunNotes(1, lambda function, reason: None)
    with caplog.at_level(logging.WARNING, "asyncgrpo.rewards.notes"):
        for _ in range(2):
            notes, _ = await noted(chatty, notes=run.of_group(prompt(), 0, 0))
    assert list(notes.metrics) == [f"m{number}" for number in range(MOST_METRICS)]
    assert [record.message for record in caplog.records] == [
        f"log_metric: {MOST_METRICS} names are in use; 'm{MOST_METRICS}' and further ones are left out"
    ]


async def test_what_a_failed_or_late_call_logged_counts_nowhere() -> None:
    released, logged = threading.Event(), threading.Event()

    def late(completions: Any, log_metric: Any, log_extra: Any) -> list[float]:
        log_metric("late", 1.0)
        released.wait(5)
        log_metric("later", 1.0)
        log_extra("later", [1])
        logged.set()
        return [0.0]

    def last_fails(completions: Any, log_metric: Any, log_extra: Any) -> list[float]:
        log_metric("length", len(completions[0]))
        log_extra("text", completions)
        if completions == ["ccc"]:
            raise ValueError("no")
        return [0.0]

    settings: dict[str, Any] = {"per_sample": True, "on_error": "drop_sample"}
    notes, samples = await noted(last_fails, **settings)
    assert notes.metrics == {"length": (3.0, 2)}
    assert [sample.extra for sample in samples] == [{"text": "a"}, {"text": "bb"}]
    notes = GroupNotes()
    with pytest.raises(GroupUnscored):
        await noted(late, notes=notes, timeout=0.1, **settings)
    released.set()
    assert await asyncio.to_thread(logged.wait, 5)
    assert notes.metrics == {} and notes.extras == {}


async def test_failures_are_counted_by_function_and_reason_and_told_once() -> None:
    heard: Failures = []
    run = RunNotes(1, lambda function, reason: heard.append((function, reason)))

    def raises(**_: Any) -> Any:
        raise ValueError("no")

    functions = [
        RewardFunction("raises", 1.0, 5.0, raises, "drop_group"),
        RewardFunction("mixed", 1.0, 5.0, lambda **_: [ValueError("a"), float("nan"), 1.0], "drop_sample"),
        RewardFunction("short", 1.0, 5.0, lambda **_: [1.0], "drop_sample"),
    ]
    for function in functions:
        with pytest.raises(GroupUnscored):
            await score_group([function], prompt(), COMPLETIONS, TEXTS, run.of_group(prompt(), 0, 0))
    assert heard == [("raises", "raised"), ("mixed", "raised"), ("mixed", "value"), ("short", "value")]
    assert run.fields() == {f"reward_failures/{function}/{reason}": 1 for function, reason in heard}
    assert run.fields() == {}
