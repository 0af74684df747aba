"""Whole runs that swap adapters in their engines: no pause, one version per completion, engines that come and go."""

import asyncio
import json
import os
import signal
from pathlib import Path
from typing import Any

import pytest
from run_cases import LONG, Run, children, lengths, make_job, opened, rows, run_config, staleness
from test_run_engines import check_nothing_was_counted_twice, reached, server_at
from test_run_recovery import PROCESS, Beside, kill_rank
from test_run_resume import FailsAt, check_history, train

from asyncgrpo.errors import ConfigError, RewardError
from asyncgrpo.generation.request import LOAD_ADAPTER, UNLOAD_ADAPTER
from asyncgrpo.testing.fake_adapters import AdapterLimits
from asyncgrpo.testing.fake_engine import FakeEngine
from asyncgrpo.testing.faults import GENERATE, Fault, FaultPlan

LORA: dict[str, Any] = {"lora": {"lora_r": 4}, "weights": {"transport": "lora"}}
LIMITS = AdapterLimits(max_rank=8, max_loras=4)


async def test_a_run_swaps_adapters_without_a_pause(tiny_model: Path, tmp_path: Path) -> None:
    """Completions of LONG tokens are cut through by publishes with merged weights; here none is."""
    before = children()
    settings: dict[str, Any] = {"script": lengths, "token_seconds": 0.015, "adapters": LIMITS}
    async with asyncio.timeout(90), FakeEngine(tiny_model, **settings) as engine:
        config = run_config(tiny_model, tmp_path, [engine.url], training={"max_steps": 5}, **LORA)
        async with opened(make_job(config)) as orchestrator:
            await orchestrator.run()
        loaded, unloaded = engine.calls(LOAD_ADAPTER), engine.calls(UNLOAD_ADAPTER)
        called = {call.path for call in engine.requests}
        answers = engine.answers
    assert children() == before
    assert not called & {"/pause", "/resume", "/start_weight_update", "/update_weights", "/finish_weight_update"}
    versions = [int(call.body["lora_name"].split(":")[1]) for call in loaded]
    assert versions == [-1, 0, 1, 2, 3, 4], "the probe's, and each step's but the last"
    assert [int(call.body["lora_name"].split(":")[1]) for call in unloaded][:2] == [-1, 0]
    assert len({call.body["lora_path"] for call in loaded}) == len(loaded)
    assert all(call.body.keys() == {"lora_name", "lora_path"} for call in loaded), "nothing is replaced in place"
    run = Run(tmp_path)
    assert len(run.steps) == 5
    assert all(len(set(row["versions"])) == 1 for row in run.trained)
    assert {row["versions"][0] for row in run.trained} >= {0, 1, 2}
    assert max(max(staleness(row)) for row in run.trained) == 1
    assert any(len(row["token_ids"]) == LONG for row in run.trained)
    for row in run.trained:
        answer = next(a for key, a in answers.items() if f"-{row['group_id']}-{row['sample']}-" in key)
        assert answer["model"].endswith(f":{row['versions'][0]}")
    assert max(abs(step["policy_kl_nats/behaviour_proximal"]) for step in run.steps if not step["staleness_max"]) < 1e-4
    assert list((tmp_path / "shm").iterdir()) == []
    spans = [json.loads(line) for line in (tmp_path / "run" / "spans.jsonl").read_text().splitlines()]
    swaps = [span for span in spans if (span.get("lane"), span.get("state")) == ("engine-0", "swapping")]
    assert [span["step"] for span in swaps if "step" in span] == [1, 2, 3, 4], "version 0 comes before the first step"
    accounted = orchestrator.session.metrics.engines.activity["engine-0"].time.seconds()
    assert (accounted["swapping"] > 0, accounted["publishing"]) == (True, 0)


@pytest.mark.slow
async def test_a_managed_engine_that_is_killed_comes_back_with_the_current_adapter(
    tiny_model: Path, tmp_path: Path
) -> None:
    before = children()
    engines = {"devices": ["cpu", "cpu"], "health_interval": 0.5, "extra_args": ["--token-seconds", "0.01"]}
    sections = {"generation": {"max_completion_length": 16}, "training": {"max_steps": 2000}, **LORA}
    config = run_config(tiny_model, tmp_path, engines=engines, **sections)
    async with asyncio.timeout(200):
        async with opened(make_job(config, data=rows(short=8, long=0))) as orchestrator:
            pool = orchestrator.session.pool
            running = asyncio.create_task(orchestrator.run())
            await reached(orchestrator, 2)
            server_at(pool.clients[0].url).send_signal(signal.SIGKILL)
            while pool.serving != ["engine-1"]:
                assert not running.done()
                await asyncio.sleep(0.005)
            while len(pool.serving) < 2:
                assert not running.done(), "it was not back before the end"
                await asyncio.sleep(0.005)
            back_at = pool.versions["engine-0"]
            assert back_at is not None
            await reached(orchestrator, orchestrator.steps_done + 4)
            orchestrator.stop.set()
            await running
    assert children() == before
    run = Run(tmp_path)
    check_nothing_was_counted_twice(run, orchestrator, orchestrator.steps_done)
    assert [row for row in run.trained if row["engine"] == "engine-0" and min(row["versions"]) >= back_at]


async def test_a_running_engine_that_lost_its_adapters_is_brought_to_the_current_one(
    tiny_model: Path, tmp_path: Path
) -> None:
    """As one that others started anew between two looks: no token of the bare model is trained."""
    async with asyncio.timeout(90), FakeEngine(tiny_model, script=lengths, adapters=LIMITS) as engine:
        engines = {"health_interval": 0.2}
        config = run_config(tiny_model, tmp_path, [engine.url], engines=engines, training={"max_steps": 12}, **LORA)
        async with opened(make_job(config)) as orchestrator:
            running = asyncio.create_task(orchestrator.run())
            await reached(orchestrator, 2)
            engine.core.adapters.loaded.clear()
            await running
        names = {answer["model"] for answer in engine.answers.values()}
    assert engine.folder not in names
    run = Run(tmp_path)
    assert len(run.steps) == 12
    check_nothing_was_counted_twice(run, orchestrator, 12)


async def test_a_load_that_always_fails_ends_the_run_in_the_engines_words(tiny_model: Path, tmp_path: Path) -> None:
    faults = FaultPlan(Fault("status", on=LOAD_ADAPTER, text="LoRA rank 4 is too large"))
    async with asyncio.timeout(60), FakeEngine(tiny_model, adapters=LIMITS, faults=faults) as engine:
        with pytest.raises(Exception, match=r"publish of version -1 to engine-0 failed: .*LoRA rank 4 is too large"):
            async with opened(make_job(run_config(tiny_model, tmp_path, [engine.url], **LORA))):
                pass
    assert engine.calls(GENERATE) == []


async def test_what_cannot_be_swapped_is_refused_before_anything_starts(tiny_model: Path, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"weights\.transport=lora publishes adapters"):
        make_job(run_config(tiny_model, tmp_path, ["http://127.0.0.1:9"], weights={"transport": "lora"}))
    async with asyncio.timeout(30), FakeEngine(tiny_model) as engine:
        with pytest.raises(ConfigError, match="runs with --enable-lora False, and the run needs it"):
            async with opened(make_job(run_config(tiny_model, tmp_path, [engine.url], **LORA))):
                pass


def test_a_run_that_goes_back_names_its_adapters_anew(tiny_model: Path, tmp_path: Path) -> None:
    """Versions trained again after the learner was killed are other adapters: an engine never takes one for the one
    before, and none of its tokens is trained. The model is that of the recorded rollouts."""
    outcome = train(
        tiny_model, tmp_path, on_start=Beside(tmp_path, (3, kill_rank)), starts_engine=True, learner=PROCESS,
        training={"max_steps": 8}, checkpoint={"save_steps": 1}, **LORA,
    )  # fmt: skip
    assert (outcome.steps, outcome.interrupted) == (8, False)
    assert ".1-" in check_history(tmp_path, 8).incarnation
    assert all(len(set(row["versions"])) == 1 for row in Run(tmp_path).trained)
    assert os.listdir(tmp_path / "shm") == []


def test_a_run_that_was_stopped_goes_on_with_the_adapters_of_its_checkpoint(tiny_model: Path, tmp_path: Path) -> None:
    with pytest.raises(RewardError):
        train(tiny_model, tmp_path, reward=FailsAt(9), starts_engine=True, **LORA)
    assert train(tiny_model, tmp_path, starts_engine=True, **LORA).steps == 6
    check_history(tmp_path, 6)
