"""The same contract that the fake engine keeps, against real vLLM servers; and a whole run on one.

Slow by nature: a server takes half a minute to start. Two models, since a tied head is where vLLM's CPU build fails.
"""

import asyncio
import itertools
import json
import subprocess
import sys
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pyarrow.parquet as pq
import pytest
from vllm_cases import CONFIG, Served, resolved, serving

from asyncgrpo.config.loading import load_config
from asyncgrpo.generation.client import EngineClient
from asyncgrpo.launch import run_training
from asyncgrpo.learning.client import LearnerClient
from asyncgrpo.observe.recorder import read_metrics
from asyncgrpo.testing import contract
from asyncgrpo.testing.tiny import addition_rows, make_tiny_model, write_rows
from asyncgrpo.types import Completion
from asyncgrpo.weights.probe import probe
from asyncgrpo.weights.publisher import Publisher
from asyncgrpo.weights.shared_memory import SharedMemoryTransport
from asyncgrpo.weights.snapshots import SnapshotStore

pytestmark = [pytest.mark.vllm, pytest.mark.slow]

Check = Callable[[str, Path], Awaitable[None]]


@pytest.fixture(scope="module", params=["tied qwen2", "untied llama"])
def served(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    tied, architecture = request.param.split()
    folder = make_tiny_model(tmp_path_factory.mktemp("model"), tied=tied == "tied", architecture=architecture)
    config = resolved(folder)
    with serving(config, folder, tmp_path_factory.mktemp("logs")) as engine:
        yield engine


@pytest.mark.parametrize("check", contract.CHECKS, ids=lambda check: check.__name__)
async def test_vllm_keeps_the_contract(check: Check, served: Served) -> None:
    async with asyncio.timeout(180):
        await check(served.spec.url, served.folder)


async def test_probe_agrees_after_large_changes(served: Served, tmp_path: Path) -> None:
    """Perturbed weights and the first ones again, through our plugin: engine and learner within 1e-3 nats."""
    learner = LearnerClient(served.config, tmp_path)
    async with asyncio.timeout(180), EngineClient(served.spec.url, "engine", served.config, "0") as client:
        await learner.start()
        with SnapshotStore("/dev/shm") as store:
            transport = SharedMemoryTransport(store, learner)
            publisher = Publisher(transport, [client], incarnation="0", timeout=60)
            await publisher.connect()
            numbers = itertools.count()

            async def sample(engine: str, prompt: tuple[int, ...]) -> Completion:
                return await client.generate(prompt, f"probe-{next(numbers)}", max_tokens=24)

            prompts = [(20 + i, 13, 23, 31) for i in range(4)]
            agreements = await probe(publisher, learner, sample, ["engine"], prompts, tolerance=1e-3)
        await learner.stop()
    assert [agreement.weights for agreement in agreements] == ["perturbed weights", "version 0"]
    assert max(agreement.max for agreement in agreements) < 1e-3


def test_a_run_trains_on_a_real_server(tmp_path: Path) -> None:
    """Managed engine, learner process, CLI's own path; then vLLM serves the final model with its log-probabilities."""
    folder = make_tiny_model(tmp_path / "model", tied=True, architecture="llama")
    write_rows(tmp_path / "rows.jsonl", addition_rows(16))
    (tmp_path / "rewards.py").write_text(
        "def short(completions, **columns):\n    return [-len(c) for c in completions]\n"
    )
    sections = {
        "rewards": [{"path": f"{tmp_path}/rewards.py:short"}],
        "generation": {"num_generations": 4, "max_completion_length": 24},
        "engines": {**CONFIG["engines"], "max_model_len": 128},
        "training": {"max_steps": 4, "groups_per_step": 2, "learning_rate": 1e-3, "num_iterations": 2},
    }
    steps = trained(folder, tmp_path, **sections)
    assert [step["step"] for step in steps] == [1, 2, 3, 4]
    assert max(step["staleness_max"] for step in steps) <= 1
    assert steps[0]["learner/ratio/first_update_max_deviation"] == 0
    assert steps[0]["learner/ratio/last_update_max_deviation"] > 0
    # An engine that served other weights than it said would show here, as nats.
    assert max(abs(step["policy_kl_nats/behaviour_proximal"]) for step in steps if step["staleness_max"] == 0) < 1e-3
    rows = pq.read_table(tmp_path / "run" / "rollouts" / "step_000004.parquet").to_pylist()
    assert len(rows) == 8
    assert {row["fate"] for row in rows} == {"trained"}

    final = tmp_path / "run" / "final_model"
    with serving(resolved(final), final, tmp_path) as engine:
        asyncio.run(contract.check_logprobs(engine.spec.url, final))


ENVIRONMENT = """
from asyncgrpo.environments import Turn

class Again:
    def step(self, answer):
        return Turn(messages="Once more.", done=answer.turn == 2, reward=-len(answer.text) / 10)
"""


def test_a_run_of_two_turns_trains_on_a_real_server(tmp_path: Path) -> None:
    """Ids and log-probabilities line up over turns: the learner computes those of a second answer behind the first and
    all that was given in between, and finds the engine's."""
    folder = make_tiny_model(tmp_path / "model", tied=False, architecture="qwen2")
    rows = [{"prompt": [{"role": "user", "content": row["prompt"]}]} for row in addition_rows(8)]
    write_rows(tmp_path / "rows.jsonl", rows)
    (tmp_path / "again.py").write_text(ENVIRONMENT)
    sections = {
        "environment": {"path": f"{tmp_path}/again.py:Again"},
        "generation": {"num_generations": 8, "max_completion_length": 160},
        "engines": {**CONFIG["engines"], "max_model_len": 256},
        "buffer": {"max_staleness": 0},
        "training": {"max_steps": 2, "groups_per_step": 2, "learning_rate": 1e-3},
    }
    steps = trained(folder, tmp_path, **sections)
    assert [(step["step"], step["staleness_max"]) for step in steps] == [(1, 0), (2, 0)]
    for step in steps:
        read = pq.read_table(tmp_path / "run" / "rollouts" / f"step_{step['step']:06}.parquet").to_pylist()
        assert sum(not all(row["sampled"]) for row in read) >= 4, "answers that ended, and were asked again"
        assert step["tokens_trained"] == sum(sum(row["sampled"]) for row in read)
        assert abs(step["policy_kl_nats/behaviour_proximal"]) < 1e-3
        assert step["importance_weight_mean"] == pytest.approx(1.0, abs=1e-3)
        assert step["importance_weight_max"] == pytest.approx(1.0, abs=0.02)


def trained(model: Path, folder: Path, **sections: object) -> list[dict[str, Any]]:
    """The step records of a run with an engine and a learner process of its own, by the CLI's path."""
    config = folder / "run.yaml"
    base = {
        "run": {"output_dir": str(folder / "run")},
        "model": {"path": str(model)},
        "data": {"dataset": str(folder / "rows.jsonl")},
        "learner": {"devices": ["cpu"]},
    }
    config.write_text(json.dumps(base | sections))
    before = set(psutil.Process().children(recursive=True))
    assert run_training(load_config(config)) == 0
    assert set(psutil.Process().children(recursive=True)) <= before
    return read_metrics(folder / "run" / "metrics.jsonl")


def test_vllms_processes_sleep_while_they_wait_for_each_other() -> None:
    """On CPUs: what spins there takes a core from the learner. In a process of its own, as the plugin changes vLLM."""
    program = """
import time
from asyncgrpo.weights.vllm_plugin import register
from vllm.distributed.device_communicators.shm_broadcast import SpinCondition

register()
reader = SpinCondition.__new__(SpinCondition)
reader.is_reader, reader.last_read, reader.busy_loop_s = True, time.monotonic(), 1.0
began, worked = time.monotonic(), time.process_time()
while time.monotonic() < began + 0.5:
    reader.wait()
print((time.process_time() - worked) / 0.5)
"""
    ended = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=180, check=True)
    assert float(ended.stdout.splitlines()[-1]) < 0.5  # 1 as vLLM has it
