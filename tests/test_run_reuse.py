"""Whole runs that reissue, refill, replay, mask or publish rarely: what the ledger, the files and the engine say."""

import asyncio
import json
import random
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
from run_cases import Run, first_token, make_job, mean_token, opened, rows, run_config, staleness

from asyncgrpo.observe.ledger_file import read_ledger
from asyncgrpo.testing.fake_engine import FakeEngine
from asyncgrpo.testing.faults import GENERATE, Fault, FaultPlan
from asyncgrpo.types import LedgerEntry


def short(prompt: tuple[int, ...], rng: random.Random) -> Sequence[int]:
    return [rng.randrange(100, 250) for _ in range(rng.randrange(2, 8))]


def slow_first(prompt: tuple[int, ...], rng: random.Random) -> Sequence[int]:
    return [rng.randrange(100, 250) for _ in range(75 if prompt[0] == first_token("l") else 2)]


def length_or_nothing(completion_ids: Sequence[Sequence[int]], prompts: Sequence[str], **_: Any) -> list[float]:
    """0 for every completion of an even prompt: a uniform group."""
    return [
        len(ids) + ids[0] / 1000 if int(prompt[1:]) % 2 else 0.0
        for ids, prompt in zip(completion_ids, prompts, strict=True)
    ]


class Trained:
    """What a run came to."""

    def __init__(self, folder: Path, fates: Mapping[str, int], engine: FakeEngine) -> None:
        self.run, self.fates, self.engine = Run(folder), Counter(fates), engine
        self.ledger: list[LedgerEntry] = read_ledger(folder / "run" / "ledger.jsonl")
        self.tables = json.loads((folder / "run" / "accounting.json").read_text())
        # Nothing is lost and nothing twice, in whatever way it went.
        assert [entry.group_id for entry in sorted(self.ledger, key=lambda e: e.group_id)] == list(
            range(len(self.ledger))
        )
        said = Counter(f"{entry.fate}:{entry.reason}".removesuffix(":") for entry in self.ledger)
        assert said == self.fates
        assert {fate: tally["groups"] for fate, tally in self.tables["by_fate"].items()} == said


async def train(
    model: Path,
    folder: Path,
    *faults: Fault,
    data: Any = None,
    script: Any = short,
    reward: Any = mean_token,
    token_seconds: float = 0.0,
    **sections: dict[str, Any],
) -> Trained:
    async with (
        asyncio.timeout(60),
        FakeEngine(model, script=script, token_seconds=token_seconds, faults=FaultPlan(*faults)) as engine,
    ):
        config = run_config(model, folder, [engine.url], **sections)
        async with opened(make_job(config, data=data, reward=reward)) as orchestrator:
            await orchestrator.run()
            fates = orchestrator.buffer.contract.fates
        assert engine.core.requests == []
    return Trained(folder, fates, engine)


async def test_an_over_stale_prompt_comes_again_until_it_is_given_up(tiny_model: Path, tmp_path: Path) -> None:
    """One prompt is always too slow for the others: it does not clog the run, and is quarantined in the end."""
    data = [*rows(short=0, long=1), *rows(short=40, long=0)]
    sections = {"training": {"max_steps": 14}, "generation": {"num_generations": 2, "max_prompt_failures": 2}}
    result = await train(
        tiny_model, tmp_path, data=data, script=slow_first, token_seconds=0.01,
        buffer={"over_stale": "drop_reissue"}, **sections,
    )  # fmt: skip
    tries = [entry for entry in result.ledger if entry.prompt_id == "0-0"]
    assert [(entry.attempt, entry.fate, entry.reason) for entry in tries][:1] == [(0, "reissued", "stale")]
    assert result.fates["trained"] == 56
    assert max(row["staleness_max"] for row in result.run.trained) <= 1


async def test_a_prompt_that_always_fails_is_quarantined(tiny_model: Path, tmp_path: Path) -> None:
    first = first_token("l")
    fault = Fault("status", status=400, text="cannot", match=lambda body: body["token_ids"][0] == first)
    data = [*rows(short=0, long=1), *rows(short=16, long=0)]
    result = await train(
        tiny_model, tmp_path, fault, data=data, weights={"probe": False}, training={"max_steps": 8},
        generation={"max_prompt_failures": 2, "num_generations": 2},
    )  # fmt: skip
    tries = [(entry.attempt, entry.fate, entry.reason) for entry in result.ledger if entry.prompt_id.endswith("-0")]
    assert tries == [(0, "reissued", "failed"), (1, "dropped", "failed")]  # and none in later epochs
    assert result.run.steps[-1]["quarantined_prompts"] == 1
    assert "cannot" in result.tables["quarantined"]["0"]
    assert result.fates["trained"] == 32


async def test_uniform_groups_are_replaced_up_to_the_budget(tiny_model: Path, tmp_path: Path) -> None:
    result = await train(
        tiny_model, tmp_path, reward=length_or_nothing,
        data=[{"prompt": f"s{number}"} for number in range(64)],
        buffer={"filter_uniform_groups": True, "refill_budget": 2.0},
        training={"max_steps": 5},
    )  # fmt: skip
    assert result.fates["trained"] == 20
    assert result.fates["dropped:uniform"] >= 8
    assert all(step["uniform_groups_ratio"] == 0 for step in result.run.steps)
    dropped = [row for row in result.run.samples if row["fate"] == "dropped:uniform"]
    assert dropped and {row["reward"] for row in dropped} == {0.0}
    assert result.run.steps[-1]["trained_less_generated/reward"] > 0  # what filtering does to what is trained


async def test_a_budget_of_nothing_trains_uniform_groups(tiny_model: Path, tmp_path: Path) -> None:
    result = await train(
        tiny_model, tmp_path, reward=lambda completions, **_: [1.0] * len(completions),
        buffer={"filter_uniform_groups": True, "refill_budget": 0.5}, training={"max_steps": 3},
    )  # fmt: skip
    assert result.fates["trained"] == 12  # all are uniform: two of a step are replaced, the rest are trained
    assert 0 < result.fates["dropped:uniform"] <= 2 * 4


async def test_replayed_groups_are_trained_beside_fresh_ones(tiny_model: Path, tmp_path: Path) -> None:
    result = await train(
        tiny_model, tmp_path, training={"max_steps": 6},
        replay={"replay_fraction": 0.5, "replay_max_uses": 2, "replay_max_age": 8},
    )  # fmt: skip
    steps = result.run.steps
    assert result.fates["trained"] == 12  # two fresh groups a step; replayed ones have their fate already
    assert [step["replayed_groups"] for step in steps] == [0, 2, 2, 2, 2, 2]
    assert [step["groups"] for step in steps] == [2] * 6
    assert steps[-1]["reuse_mean"] > 1.5
    assert max(entry.uses for entry in result.ledger) == 2
    assert sum(len(row["token_ids"]) for row in result.run.trained) == sum(step["tokens_trained"] for step in steps)


async def test_masked_tokens_leave_their_group_in_the_step(tiny_model: Path, tmp_path: Path) -> None:
    data = [*rows(short=0, long=1), *rows(short=40, long=0)]
    result = await train(
        tiny_model, tmp_path, data=data, script=slow_first, token_seconds=0.01, buffer={"over_stale": "mask"},
        training={"max_steps": 12}, generation={"num_generations": 2},
    )  # fmt: skip
    slow = [row for row in result.run.trained if row["prompt"] == "l0"]
    assert slow and max(staleness(slow[0])) > 1 >= min(staleness(slow[0]))
    assert result.fates == {"trained": 48}


@pytest.mark.parametrize(("interval", "max_staleness"), [(2, 1), (3, 4)])
async def test_versions_may_be_published_rarely(
    interval: int, max_staleness: int, tiny_model: Path, tmp_path: Path
) -> None:
    result = await train(
        tiny_model, tmp_path, weights={"publish_interval": interval}, buffer={"max_staleness": max_staleness},
        training={"max_steps": 7},
    )  # fmt: skip
    assert result.fates == {"trained": 28}
    versions = {version for row in result.run.trained for version in row["versions"]}
    assert len(versions) > 1
    assert all(version % interval == 0 for version in versions)
    assert max(row["staleness_max"] for row in result.run.trained) <= max_staleness


@pytest.mark.parametrize("in_flight", ["keep", "abort_resume", "finish"])
async def test_requests_under_way_at_a_publish(in_flight: str, tiny_model: Path, tmp_path: Path) -> None:
    """Completions outlast steps. Whatever is done with them, every one is whole and every token says its version."""

    def long_and_short(prompt: tuple[int, ...], rng: random.Random) -> Sequence[int]:
        return [rng.randrange(100, 250) for _ in range(40 if prompt[0] == first_token("l") else 3)]

    result = await train(
        tiny_model, tmp_path, script=long_and_short, token_seconds=0.01, weights={"in_flight": in_flight},
        buffer={"max_staleness": 2}, training={"max_steps": 6, "groups_per_step": 2},
        generation={"num_generations": 2}, data=rows(short=3, long=1),
    )  # fmt: skip
    mixed = [row for row in result.run.trained if len(set(row["versions"])) > 1]
    assert bool(mixed) == (in_flight != "finish")
    assert all(row["versions"] == sorted(row["versions"]) for row in result.run.trained)
    asked = len(result.engine.calls(GENERATE))
    samples = 2 * len(result.ledger)
    assert asked > samples + 8 if in_flight == "abort_resume" else asked <= samples + 8  # 8 by the probe
    whole = {len(row["token_ids"]) for row in result.run.trained if row["prompt"].startswith("l")}
    assert whole == {40} or in_flight == "abort_resume"  # a script begins anew with every request
