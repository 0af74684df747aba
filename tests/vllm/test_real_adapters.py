"""Adapters swapped in real vLLM servers: the contract that the fake engine keeps, the probe, and a whole run."""

import asyncio
import itertools
import json
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pyarrow.parquet as pq
import pytest
from vllm_cases import CONFIG, Served, resolved, serving

from asyncgrpo.config.loading import load_config
from asyncgrpo.generation.client import EngineClient
from asyncgrpo.generation.verify import verify_settings
from asyncgrpo.launch import run_training
from asyncgrpo.learning.client import LearnerClient
from asyncgrpo.observe.recorder import read_metrics
from asyncgrpo.testing import contract
from asyncgrpo.testing.contract_adapters import ADAPTER_CHECKS
from asyncgrpo.testing.tiny import addition_rows, make_tiny_model, write_rows
from asyncgrpo.types import Completion
from asyncgrpo.weights.adapters import LoraTransport
from asyncgrpo.weights.probe import probe
from asyncgrpo.weights.publisher import Publisher
from asyncgrpo.weights.snapshots import SnapshotStore

pytestmark = [pytest.mark.vllm, pytest.mark.slow]

Check = Callable[[str, Path], Awaitable[None]]
LORA = {"lora": {"lora_r": 8, "lora_alpha": 16}, "weights": {"transport": "lora"}}


@pytest.fixture(scope="module", params=["tied qwen2", "untied llama"])
def served(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    tied, architecture = request.param.split()
    folder = make_tiny_model(tmp_path_factory.mktemp("model"), tied=tied == "tied", architecture=architecture)
    with serving(resolved(folder, **LORA), folder, tmp_path_factory.mktemp("logs")) as engine:
        yield engine


@pytest.mark.parametrize("check", ADAPTER_CHECKS, ids=lambda check: check.__name__)
async def test_vllm_keeps_the_contract_about_adapters(check: Check, served: Served) -> None:
    async with asyncio.timeout(180):
        await check(served.spec.url, served.folder)


async def test_the_engine_says_that_it_swaps_adapters(served: Served) -> None:
    async with asyncio.timeout(60), EngineClient(served.spec.url, "engine", served.config, "0") as client:
        await verify_settings([client], served.config, None)
        info = await client.server_info()
    assert info["vllm_config"]["lora_config"]["max_loras"] == 3
    assert info["vllm_env"]["VLLM_ALLOW_RUNTIME_LORA_UPDATING"] is True


async def test_probe_agrees_after_large_changes_of_the_adapters(served: Served, tmp_path: Path) -> None:
    learner = LearnerClient(served.config, tmp_path)
    async with asyncio.timeout(180), EngineClient(served.spec.url, "engine", served.config, "0") as client:
        await learner.start()
        with SnapshotStore("/dev/shm") as store:
            publisher = Publisher(LoraTransport(store, learner), [client], incarnation="0", timeout=60)
            await publisher.connect()
            numbers = itertools.count()

            async def sample(engine: str, prompt: tuple[int, ...]) -> Completion:
                return await client.generate(prompt, f"probe-{next(numbers)}", max_tokens=24)

            prompts = [(20 + i, 13, 23, 31) for i in range(4)]
            agreements = await probe(publisher, learner, sample, ["engine"], prompts, tolerance=1e-3)
            await client.adapters.unload("0:0")
        await learner.stop()
    assert [agreement.weights for agreement in agreements] == ["perturbed weights", "version 0"]
    assert max(agreement.max for agreement in agreements) < 1e-3


def test_a_run_swaps_adapters_in_a_real_server(tmp_path: Path) -> None:
    """As a run with merged weights, but that every completion has one version, and that no engine was ever paused; vLLM
    serves the final model, merged, with its log-probabilities."""
    folder = make_tiny_model(tmp_path / "model", tied=True, architecture="llama")
    write_rows(tmp_path / "rows.jsonl", addition_rows(16))
    (tmp_path / "rewards.py").write_text(
        "def short(completions, **columns):\n    return [-len(c) for c in completions]\n"
    )
    sections: dict[str, Any] = {
        "run": {"output_dir": str(tmp_path / "run")},
        "model": {"path": str(folder)},
        "lora": {"lora_r": 8, "lora_alpha": 16},
        "data": {"dataset": str(tmp_path / "rows.jsonl")},
        "rewards": [{"path": f"{tmp_path}/rewards.py:short"}],
        "generation": {"num_generations": 4, "max_completion_length": 24},
        "engines": {**CONFIG["engines"], "max_model_len": 128},
        "learner": {"devices": ["cpu"]},
        "weights": {"transport": "lora"},
        "training": {"max_steps": 6, "groups_per_step": 2, "learning_rate": 1e-2},
    }
    config = tmp_path / "run.yaml"
    config.write_text(json.dumps(sections))
    before = set(psutil.Process().children(recursive=True))
    assert run_training(load_config(config)) == 0
    assert set(psutil.Process().children(recursive=True)) <= before
    steps = read_metrics(tmp_path / "run" / "metrics.jsonl")
    assert [step["step"] for step in steps] == [1, 2, 3, 4, 5, 6]
    # An engine that sampled by another adapter than it said would show here, as nats.
    assert max(abs(step["policy_kl_nats/behaviour_proximal"]) for step in steps if step["staleness_max"] == 0) < 1e-3
    rows = [
        row
        for file in sorted((tmp_path / "run" / "rollouts").glob("step_*.parquet"))
        for row in pq.read_table(file).to_pylist()
    ]
    assert all(len(set(row["versions"])) == 1 for row in rows)
    assert max(row["versions"][0] for row in rows) >= 4
    log = (tmp_path / "run" / "logs" / "engine-0.log").read_text()
    assert "Removed LoRA adapter" in log

    final = tmp_path / "run" / "final_model"
    with serving(resolved(final), final, tmp_path) as engine:
        asyncio.run(contract.check_logprobs(engine.spec.url, final))
