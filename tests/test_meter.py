"""Counting tokens: an engine that does not say how many makes a step's count unknown, and does not hold it up."""

import asyncio
import math
from types import SimpleNamespace
from typing import Any

from asyncgrpo.buffer.contract import StalenessContract
from asyncgrpo.errors import EngineRejected
from asyncgrpo.meter import StepMeter
from asyncgrpo.observe.metrics import GENERATION_STATES, LEARNER_STATES
from asyncgrpo.observe.timing import TimeAccount


class Engine:
    """Has sampled `count` tokens. How it answers: well, refused or never."""

    def __init__(self, name: str, others: "list[Engine]") -> None:
        self.name, self.count, self.answers = name, 0, "well"
        self.asked = 0
        self._others = others
        self.waits_for_others = False

    async def generated_tokens(self) -> int:
        self.asked += 1
        if self.answers == "never":
            await asyncio.Event().wait()
        if self.answers == "refused":
            raise EngineRejected("404")
        while self.waits_for_others and not all(other.asked >= self.asked for other in self._others):  # noqa: ASYNC110
            await asyncio.sleep(0)
        return self.count


class Counter:
    def __init__(self) -> None:
        self.value = 0

    def inc(self, amount: int) -> None:
        self.value += amount


class Case:
    def __init__(self, *names: str) -> None:
        self.engines: list[Engine] = []
        self.engines += [Engine(name, self.engines) for name in names]
        self.serving = list(names)
        self.counter = Counter()
        self._contract = StalenessContract(max_staleness=1, groups_per_step=1, total_groups=9)

    def meter(self) -> StepMeter:
        session: Any = SimpleNamespace(
            pool=SimpleNamespace(clients=self.engines, serving=self.serving),
            metrics=SimpleNamespace(
                engines=SimpleNamespace(generated_tokens=self.counter),
                flow=SimpleNamespace(taken=lambda groups: None),
            ),
            learner_time=TimeAccount(LEARNER_STATES),
            generation_time=TimeAccount(GENERATION_STATES),
        )
        return StepMeter(session, self._contract)

    def sample(self, *tokens: int) -> None:
        for engine, count in zip(self.engines, tokens, strict=True):
            engine.count += count


async def step(case: Case, meter: StepMeter, before: tuple[int, ...], during: tuple[int, ...]) -> tuple[float, float]:
    """Tokens of a step, and of them those while it trained."""
    case.sample(*before)
    await meter.training_starts()
    case.sample(*during)
    await meter.training_ends()
    measures = await meter.step_measures()
    return measures.tokens_generated, measures.tokens_generated_while_training


async def test_tokens_of_all_engines_are_summed() -> None:
    case = Case("a", "b")
    case.sample(100, 1000)
    meter = case.meter()
    await meter.start()
    assert await step(case, meter, (1, 20), (3, 40)) == (64, 43)
    assert await step(case, meter, (0, 0), (0, 5)) == (5, 5)
    assert case.counter.value == 69


async def test_engines_are_asked_at_the_same_time() -> None:
    case = Case("a", "b", "c")
    for engine in case.engines:
        engine.waits_for_others = True
    meter = case.meter()
    await meter.start()
    assert await step(case, meter, (1, 1, 1), (1, 1, 1)) == (6, 3)


async def test_what_one_does_not_say_is_unknown_and_counted_later() -> None:
    case = Case("a", "b")
    meter = case.meter()
    await meter.start()
    case.engines[1].answers = "refused"
    generated, while_training = await step(case, meter, (1, 1), (1, 1))
    assert math.isnan(generated)
    assert math.isnan(while_training)
    assert case.counter.value == 2, "those that are known"
    case.engines[1].answers = "well"
    generated, while_training = await step(case, meter, (10, 10), (100, 100))
    assert math.isnan(generated), "it began with an unknown count"
    assert while_training == 200
    assert await step(case, meter, (1, 1), (1, 1)) == (4, 2)
    assert case.counter.value == 2 + 222 + 4


async def test_a_slow_engine_is_waited_for_once() -> None:
    case = Case("a", "b")
    meter = case.meter()
    await meter.start()
    case.engines[1].answers = "never"
    for _ in range(5):
        assert math.isnan((await step(case, meter, (1, 1), (1, 1)))[0])
    assert [engine.asked for engine in case.engines] == [16, 2]


async def test_one_that_gets_no_work_is_not_asked_and_one_that_starts_anew_counts_from_zero() -> None:
    case = Case("a", "b")
    meter = case.meter()
    await meter.start()
    case.sample(0, 50)
    assert await step(case, meter, (1, 0), (1, 0)) == (52, 1)
    case.serving.remove("b")
    case.engines[1].answers = "never"
    assert await step(case, meter, (1, 0), (1, 0)) == (2, 1)
    case.serving.append("b")
    case.engines[1].answers, case.engines[1].count = "well", 7
    assert await step(case, meter, (1, 0), (1, 0)) == (9, 1)
