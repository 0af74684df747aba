"""Whole runs on a fake engine that scores with a true model: what is on disk is what was on the wire, and what was
trained; staleness keeps its bound; generation goes on while the learner computes.
"""

import asyncio
import dataclasses
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from run_cases import FAKE_ENGINE, LONG, SHORT, Run, children, lengths, make_job, opened, rows, run_config, staleness

from asyncgrpo.errors import RunFolderError
from asyncgrpo.launch import run_job
from asyncgrpo.learning.client import LearnerClient
from asyncgrpo.observe.run_folder import RunFolder
from asyncgrpo.orchestrator import Orchestrator
from asyncgrpo.testing.fake_engine import FakeEngine
from asyncgrpo.testing.faults import GENERATE
from asyncgrpo.types import Batch, StepReport


class RecordingLearner:
    """Passes batches on, and keeps what the learner was given and what the arrays held afterwards."""

    def __init__(self, learner: LearnerClient) -> None:
        self._learner = learner
        self.given: list[Batch] = []
        self.behaviour_before: list[np.ndarray] = []

    async def train(self, batch: Batch) -> StepReport:
        self.given.append(batch)
        self.behaviour_before.append(batch.behaviour_logprobs.copy())
        return await self._learner.train(batch)

    async def save(self, directory: Path) -> int:
        return await self._learner.save(directory)

    async def watch(self) -> None:
        await self._learner.watch()


@dataclass(frozen=True)
class Evidence:
    run: Run
    engine: FakeEngine
    learner: RecordingLearner
    groups: Counter[str]
    """Fates by the contract's own count."""


async def train(model: Path, folder: Path, data: Any = None, token_seconds: float = 0.0, **sections: Any) -> Evidence:
    async with asyncio.timeout(90), FakeEngine(model, script=lengths, token_seconds=token_seconds) as engine:
        job = make_job(run_config(model, folder, [engine.url], **sections), data=data)
        async with opened(job) as orchestrator:
            learner = RecordingLearner(orchestrator.session.learner)
            orchestrator = Orchestrator(dataclasses.replace(orchestrator.session, learner=learner))
            await orchestrator.run()
            contract = orchestrator.buffer.contract
            assert (contract.in_flight, contract.buffered) == (0, 0)
        assert engine.core.requests == [], "requests in flight at the end are cancelled"
        assert list((folder / "shm").iterdir()) == [], "the snapshot folder is gone"
        return Evidence(Run(folder), engine, learner, contract.fates)


@pytest.fixture(scope="module")
def stale(tiny_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Evidence]:
    """max_staleness 1; every second step's completions are so slow that a publish falls into them."""
    before = children()
    yield asyncio.run(
        train(
            tiny_model,
            tmp_path_factory.mktemp("stale"),
            token_seconds=0.015,
            learner={"token_budget": 1},  # a slow learner
            training={"max_steps": 5},
            buffer={"max_staleness": 1},
        )
    )
    assert children() == before, "no process is left"


@pytest.fixture(scope="module")
def synchronous(tiny_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Evidence:
    """max_staleness 0, two passes over each step's samples, three prompts for steps of eight."""
    return asyncio.run(
        train(
            tiny_model,
            tmp_path_factory.mktemp("synchronous"),
            data=rows(short=3, long=0),
            training={"max_steps": 4, "groups_per_step": 8, "num_iterations": 2},
            generation={"num_generations": 2},
            buffer={"max_staleness": 0},
        )
    )


@pytest.fixture(params=["stale", "synchronous"])
def either(request: pytest.FixtureRequest, stale: Evidence, synchronous: Evidence) -> Evidence:
    return stale if request.param == "stale" else synchronous


def test_every_trained_token_is_what_the_engine_sent(either: Evidence) -> None:
    """Ids, versions and log-probabilities, byte for byte, of every sample in every step's file."""
    run_id = next(call.body["request_id"] for call in either.engine.calls(GENERATE)).split("-")[0]
    for row in either.run.trained:
        request = f"{run_id}-{row['group_id']}-{row['sample']}-"
        choice = next(answer for key, answer in either.engine.answers.items() if key.startswith(request))["choices"][0]
        assert row["token_ids"] == choice["token_ids"]
        sent = np.array([entry["logprob"] for entry in choice["logprobs"]["content"]], dtype=np.float32)
        assert np.array(row["behaviour_logprobs"], dtype=np.float32).tobytes() == sent.tobytes()
        spans = [
            (int(span["version"].split(":")[1]), span["end"] - span["start"]) for span in choice["weight_versions"]
        ]
        assert row["versions"] == [version for version, length in spans for _ in range(length)]
        assert len(row["token_ids"]) == (SHORT if row["prompt"].startswith("s") else LONG)


def test_the_learner_was_given_what_is_on_disk_and_left_it_alone(either: Evidence) -> None:
    assert len(either.learner.given) == len(either.run.steps)
    for step, (batch, before) in enumerate(
        zip(either.learner.given, either.learner.behaviour_before, strict=True), start=1
    ):
        samples = either.run.of_step(step)
        assert batch.version == step - 1
        flat = [value for row in samples for value in row["behaviour_logprobs"]]
        assert before.tobytes() == np.array(flat, dtype=np.float32).tobytes()
        assert batch.behaviour_logprobs.tobytes() == before.tobytes(), "training wrote to behaviour log-probabilities"
        assert batch.completion_tokens.tolist() == [token for row in samples for token in row["token_ids"]]
        assert batch.token_versions.tolist() == [version for row in samples for version in row["versions"]]
        assert batch.advantages.tolist() == [row["advantage"] for row in samples]


def test_step_records_agree_with_the_samples(either: Evidence) -> None:
    for record in either.run.steps:
        samples = either.run.of_step(record["step"])
        tokens = [token for row in samples for token in staleness(row)]
        rewards = [row["reward"] for row in samples]
        assert record["samples"] == len(samples) == len(either.learner.given[0])
        assert record["groups"] == len({row["group_id"] for row in samples})
        assert record["tokens_trained"] == len(tokens)
        assert record["reward_mean"] == pytest.approx(np.mean(rewards))
        assert record["reward_stddev"] == pytest.approx(np.std(rewards, ddof=1))
        assert record["staleness_mean"] == pytest.approx(np.mean(tokens))
        assert record["staleness_max"] == max(tokens)
        mixed = [len(set(row["versions"])) > 1 for row in samples]
        assert record["mixed_version_samples_ratio"] == pytest.approx(np.mean(mixed))
        assert {row["version"] for row in samples} == {record["version"]} == {record["step"] - 1}
    generated = sum(record["tokens_generated"] for record in either.run.steps)
    assert sum(record["tokens_trained"] for record in either.run.steps) <= generated
    assert generated <= either.engine.core.generated_tokens


def test_rewards_and_advantages_of_a_group(either: Evidence) -> None:
    by_group: dict[int, list[dict[str, Any]]] = {}
    for row in either.run.trained:
        assert row["reward"] == pytest.approx(0.01 * np.mean(row["token_ids"]))
        by_group.setdefault(row["group_id"], []).append(row)
    for samples in by_group.values():
        assert len({row["prompt_id"] for row in samples}) == len({row["engine"] for row in samples}) == 1
        rewards, advantages = [row["reward"] for row in samples], [row["advantage"] for row in samples]
        assert np.argsort(rewards).tolist() == np.argsort(advantages).tolist()
        assert sum(advantages) == pytest.approx(0.0, abs=1e-5)


def test_no_request_id_is_used_twice(either: Evidence) -> None:
    ids = [call.body["request_id"] for call in either.engine.calls(GENERATE)]
    assert len(ids) == len(set(ids))


def test_every_group_has_one_fate(either: Evidence) -> None:
    steps = len(either.run.steps)
    trained = Counter(row["group_id"] for row in either.run.trained)
    assert len(trained) == steps * either.run.steps[0]["groups"] == either.groups["trained"]
    assert set(trained.values()) == {len(either.run.of_step(1)) // either.run.steps[0]["groups"]}
    assert either.groups.total() == either.groups["trained"], "nothing was dropped: no group too many was admitted"


def test_staleness_is_bounded_and_not_zero(stale: Evidence) -> None:
    tokens = [token for row in stale.run.trained for token in staleness(row)]
    assert max(tokens) == 1
    assert min(tokens) == 0
    assert np.mean(tokens) > 0.1
    assert all(row["start_version"] <= min(row["versions"]) for row in stale.run.trained)


def test_a_completion_that_spans_a_publish_is_trained_with_both_versions(stale: Evidence) -> None:
    spanning = [row for row in stale.run.of_step(2) if set(row["versions"]) == {0, 1}]
    assert len(spanning) == 16
    for row in spanning:
        assert row["versions"] == sorted(row["versions"])
        assert set(staleness(row)) == {0, 1}
        assert row["staleness_max"] == 1
    assert stale.run.steps[1]["mixed_version_samples_ratio"] == 1.0


def test_no_publish_aborts_what_is_in_flight(stale: Evidence) -> None:
    """Bug report E9: under load each one aborted every completion."""
    spanning = [row for row in stale.run.trained if len(set(row["versions"])) > 1]
    assert len(spanning) >= 32, "publishes did fall into completions"
    assert stale.engine.core.finished["abort"] == 0
    asked = Counter(call.body["request_id"].rpartition("-")[0] for call in stale.engine.calls(GENERATE))
    del asked[next(name for name in asked if name.endswith("-probe"))]
    assert set(asked.values()) == {1}, "none was asked for again"


def test_engines_generate_while_the_learner_computes(stale: Evidence) -> None:
    overlapped = [record["tokens_generated_while_training"] for record in stale.run.steps]
    assert overlapped[0] > 16, "all 16 completions of the next step went on"
    assert overlapped[2] > 16
    assert stale.run.steps[-1]["training_seconds"] > 0


def test_synchronous_training_is_never_stale(synchronous: Evidence) -> None:
    assert {token for row in synchronous.run.trained for token in staleness(row)} == {0}
    assert [record["tokens_generated_while_training"] for record in synchronous.run.steps] == [0] * 4
    assert all(row["start_version"] == row["version"] for row in synchronous.run.trained)


def test_the_ratio_is_1_at_the_first_update_and_not_at_the_last(synchronous: Evidence) -> None:
    for record in synchronous.run.steps:
        assert record["optimiser_updates"] == 2
        assert record["learner/ratio/first_update_max_deviation"] == 0.0
        assert record["learner/ratio/last_update_max_deviation"] > 1e-4


def test_what_is_not_stale_needs_no_correction(stale: Evidence, synchronous: Evidence) -> None:
    for record in synchronous.run.steps:
        assert record["importance_weight_mean"] == pytest.approx(1.0, abs=1e-3)
        assert record["policy_kl_nats/behaviour_proximal"] < 1e-6
    assert stale.run.steps[2]["policy_kl_nats/behaviour_proximal"] > 1e-5


def test_prompts_go_around(synchronous: Evidence) -> None:
    """Four steps of eight groups from three prompts: eleven epochs, each prompt once in each but the last."""
    prompts = Counter({row["prompt_id"] for row in synchronous.run.trained})
    assert prompts.keys() == {f"{epoch}-{row}" for epoch in range(11) for row in range(3)} - {"10-2"}


def test_a_folder_in_use_or_full_is_refused(tiny_model: Path, tmp_path: Path) -> None:
    job = make_job(run_config(tiny_model, tmp_path, ["http://127.0.0.1:1"]))
    with (
        RunFolder.create(tmp_path / "run"),
        pytest.raises(RunFolderError, match=r"run folder .*/run (is in use|exists)"),
    ):
        run_job(job, config_text="", engine_module=FAKE_ENGINE)
    (tmp_path / "run" / "metrics.jsonl").write_text("")
    (tmp_path / "run" / "summary.json").write_text("{}")  # it had come to its end
    with pytest.raises(RunFolderError, match=r"run folder .*/run exists; choose another run.output_dir"):
        make_job(job.config)
