import asyncio
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from kind_cases import injected, make_run, start

from asyncgrpo.ablation.kinds.injected import Injected, run
from asyncgrpo.batches import StepBatches
from asyncgrpo.errors import ConfigError
from asyncgrpo.learning.client import LearnerClient
from asyncgrpo.types import Batch, Group

CLOCK = ("seconds", "learner_seconds")


@pytest.fixture(scope="module")
def settings(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    return start(tmp_path_factory.mktemp("start"))


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


def records_of(settings: dict[str, Any], **more: Any) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = []
    run(make_run(settings, **more), Path("unused"), lambda record: found.append(dict(record)))
    machine = (*CLOCK, "learner_memory_bytes/")
    return [{name: value for name, value in each.items() if not name.startswith(machine)} for each in found]


class Listening(StepBatches):
    """Keeps what it was given and what it made."""

    def __init__(self, made: Injected) -> None:
        super().__init__(made.config, {function.name: function.weight for function in made.rewards})
        self.steps: list[tuple[list[Group], Batch]] = []

    def make(self, groups: Any, version: int) -> Batch:
        batch = super().make(groups, version)
        self.steps.append((list(groups), batch))
        return batch


def trained(settings: dict[str, Any], **more: Any) -> tuple[list[tuple[list[Group], Batch]], list[dict[str, Any]]]:
    made, records = injected(settings, **more), []
    made.batches = listening = Listening(made)
    asyncio.run(made.train(lambda record: records.append(dict(record))))
    return listening.steps, records


@pytest.mark.parametrize("staleness", [0, 1, 3])
def test_every_token_is_exactly_so_late(settings: dict[str, Any], staleness: int) -> None:
    steps, records = trained({**settings, "injected.staleness": staleness}, steps=6)
    assert len(steps) == 6
    for version, (groups, batch) in enumerate(steps):
        assert batch.version == version
        assert set(batch.token_versions.tolist()) == {max(0, version - staleness)}
        assert {group.start_version for group in groups} == {max(0, version - staleness)}
        late = version - max(0, version - staleness)
        assert records[version + 1]["staleness_max"] == records[version + 1]["staleness_mean"] == late
        assert records[version + 1][f"learner/staleness_{late}/ratio/mean"] > 0


@pytest.mark.parametrize("staleness", [0, 2])
def test_behaviour_log_probabilities_are_those_of_the_version_named(settings: dict[str, Any], staleness: int) -> None:
    """Sampled with a cache by another instance; scored here by the learner, as it was then."""
    temperature = {"generation.temperature": 0.7}
    made = injected({**settings, **temperature, "injected.staleness": staleness}, steps=4)
    made.batches = listening = Listening(made)
    scored: list[np.ndarray] = []
    kept: list[dict[str, torch.Tensor]] = []

    def keep_weights(record: dict[str, Any]) -> None:
        kept.append({name: tensor.clone() for name, tensor in made.past.of(made.learner.version).items()})

    asyncio.run(made.train(keep_weights))
    for groups, _ in listening.steps:
        for group in groups:
            with made.learner.exported() as live:
                for name, tensor in live.items():
                    tensor.copy_(kept[group.start_version][name])
            pairs = [(group.prompt.token_ids, sample.completion.token_ids.tolist()) for sample in group.samples]
            for sample, scores in zip(group.samples, made.learner.score(pairs), strict=True):
                np.testing.assert_allclose(sample.completion.behaviour_logprobs, scores, atol=2e-5)
                scored.append(scores)
    assert len(scored) == 4 * 4 * 4
    assert np.concatenate(scored).std() > 0.01


def test_without_staleness_current_over_behaviour_is_one_until_the_first_update(settings: dict[str, Any]) -> None:
    one_update = {"training.num_minibatches": 1}
    fresh = records_of({**settings, **one_update}, steps=4)
    late = records_of({**settings, **one_update, "injected.staleness": 2}, steps=4)
    for record in fresh[1:]:
        assert record["behaviour_ratio_max"] == pytest.approx(1.0, abs=1e-4)
        assert record["policy_kl_nats/behaviour_current"] == pytest.approx(0.0, abs=1e-7)
    assert late[4]["behaviour_ratio_max"] > 1.01
    assert late[4]["policy_kl_nats/behaviour_current"] > 1e-5


def test_the_same_run_gives_the_same_numbers_to_the_last_bit(settings: dict[str, Any]) -> None:
    first, second = (records_of({**settings, "injected.staleness": 1}, steps=4) for _ in range(2))
    assert json.dumps(first) == json.dumps(second)
    assert [record["score"] is not None for record in first] == [True, False, True, False, True]
    assert [record["tokens"] for record in first[:2]] == [0.0, first[1]["tokens_trained"]]
    assert [record["samples"] for record in first] == [0, 16, 32, 48, 64]


def test_arms_of_a_seed_share_prompts_and_draws_and_another_stream_shares_prompts_only(
    settings: dict[str, Any],
) -> None:
    plain, _ = trained(settings)
    other_arm, _ = trained({**settings, "injected.staleness": 2, "training.learning_rate": 1e-4})
    again, _ = trained(settings, stream=1)
    other_seed, _ = trained(settings, seed=1)

    def prompts(steps: list[tuple[list[Group], Batch]]) -> list[str]:
        return [group.prompt.prompt_id for groups, _ in steps for group in groups]

    assert prompts(plain) == prompts(other_arm) == prompts(again) != prompts(other_seed)
    first = [steps[0][1].completion_tokens.tolist() for steps in (plain, other_arm, again)]
    assert first[0] == first[1] != first[2]


def test_staleness_drawn_from_a_recorded_histogram(settings: dict[str, Any], tmp_path: Path) -> None:
    recorded = tmp_path / "metrics.jsonl"
    lines = [{"step": 1, "staleness_tokens/0": 10}, {"step": 2, "staleness_tokens/0": 20, "staleness_tokens/2": 30}]
    recorded.write_text("".join(json.dumps(line) + "\n" for line in lines))
    drawn = {"injected.staleness.histogram": str(recorded)}
    steps, _ = trained({**settings, **drawn}, steps=12)
    late = [
        version - group.start_version for version, (groups, _) in enumerate(steps) if version > 1 for group in groups
    ]
    assert set(late) == {0, 2}
    assert 0.2 < late.count(2) / len(late) < 0.8
    for version, (groups, batch) in enumerate(steps):
        expected = np.repeat([group.start_version for group in groups], [4] * 4)
        own = np.repeat(expected, batch.completion_lengths)
        assert batch.token_versions.tolist() == own.tolist()
        assert version - 2 <= own.min()


def test_what_it_trains_is_what_the_product_trains_on_the_same_groups(settings: dict[str, Any], tmp_path: Path) -> None:
    """At k = 0 this is synchronous training: the product's client and batches, given these groups, say the same."""
    steps, records = trained(settings, steps=3)
    config = make_run(settings).config()
    assert config.buffer.max_staleness == 1
    synchronous = config.model_copy(update={"buffer": config.buffer.model_copy(update={"max_staleness": 0})})

    async def product() -> list[dict[str, float]]:
        client, batches = LearnerClient(synchronous, tmp_path), StepBatches(synchronous, {"right_digits": 1.0})
        await client.start()
        try:
            return [
                dict((await client.train(batches.make(groups, version))).metrics)
                for version, (groups, _) in enumerate(steps)
            ]
        finally:
            await client.stop()

    for record, metrics in zip(records[1:], asyncio.run(product()), strict=True):
        assert record["loss"] == metrics["loss"]
        assert record["gradient_norm"] == metrics["grad_norm"] > 0
        assert record["learner/staleness_0/ratio/mean"] == metrics["staleness_0/ratio/mean"]


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"buffer.filter_uniform_groups": True}, "buffer.filter_uniform_groups"),
        ({"generation.num_extra_generations": 1}, "generation.num_extra_generations"),
        ({"evaluation.dataset": ""}, "evaluation.dataset"),
    ],
)
def test_what_needs_engines_is_refused(settings: dict[str, Any], change: dict[str, Any], named: str) -> None:
    with pytest.raises(ConfigError, match=named):
        injected({**settings, **change})


def test_it_learns(settings: dict[str, Any]) -> None:
    rewards = [record["reward"] for record in records_of({**settings, "training.learning_rate": 1e-2}, steps=60)[1:]]
    assert np.mean(rewards[-15:]) > np.mean(rewards[:15]) + 0.04
