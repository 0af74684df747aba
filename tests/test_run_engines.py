"""Runs on several engines, one of which ends in the middle: the run goes on, and nothing is counted twice."""

import asyncio
import signal
from collections import Counter
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import psutil
import pytest
from run_cases import Run, children, lengths, make_job, opened, rows, run_config

from asyncgrpo.orchestrator import Orchestrator
from asyncgrpo.testing.fake_engine import FakeEngine
from asyncgrpo.testing.faults import GENERATE, UPDATE, Fault, FaultPlan

pytestmark = pytest.mark.slow

SHORT_ONLY = rows(short=8, long=0)
SLOW = {"extra_args": ["--token-seconds", "0.01"]}
BRIEF = {"max_completion_length": 16}


def server_at(url: str) -> psutil.Process:
    """The process behind a managed engine, below its guardian."""
    port = url.rpartition(":")[2]
    servers = [
        child
        for child in psutil.Process().children(recursive=True)
        if child.cmdline()[-1:] != [] and "asyncgrpo.guardian" not in child.cmdline() and port in child.cmdline()
    ]
    (server,) = servers
    return server


def check_nothing_was_counted_twice(run: Run, orchestrator: Orchestrator, steps: int) -> None:
    """Every trained sample once, every step whole, every group with one fate."""
    assert len(run.steps) == steps
    config = orchestrator.config
    groups = Counter(row["group_id"] for row in run.trained)
    assert len(groups) == steps * config.training.groups_per_step
    assert set(groups.values()) == {config.generation.num_generations}
    assert max(row["staleness_max"] for row in run.trained) <= config.buffer.max_staleness
    contract = orchestrator.buffer.contract
    assert contract.fates["trained"] == len(groups)
    assert sum(contract.fates.values()) == contract.admitted


async def reached(orchestrator: Orchestrator, step: int) -> None:
    while orchestrator.steps_done < step:  # noqa: ASYNC110
        await asyncio.sleep(0.01)


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSTOP])
async def test_a_managed_engine_that_is_killed_or_hangs_comes_back_at_the_current_version(
    number: signal.Signals, tiny_model: Path, tmp_path: Path
) -> None:
    before = children()
    engines = {"devices": ["cpu", "cpu"], "health_interval": 0.5, "control_timeout": 5.0, **SLOW}
    config = run_config(tiny_model, tmp_path, engines=engines, generation=BRIEF, training={"max_steps": 2000})
    async with asyncio.timeout(200):
        async with opened(make_job(config, data=SHORT_ONLY)) as orchestrator:
            pool = orchestrator.session.pool
            running = asyncio.create_task(orchestrator.run())
            await reached(orchestrator, 2)
            killed = server_at(pool.clients[0].url)
            killed.send_signal(number)
            while pool.serving != ["engine-1"]:
                assert not running.done()
                await asyncio.sleep(0.005)
            at_death = orchestrator.steps_done
            while len(pool.serving) < 2:
                assert not running.done(), "it was not back before the end"
                await asyncio.sleep(0.005)
            back_at = pool.versions["engine-0"]
            assert back_at is not None
            assert back_at >= at_death
            assert server_at(pool.clients[0].url).pid != killed.pid
            await reached(orchestrator, orchestrator.steps_done + 4)
            activity = orchestrator.session.metrics.engines.activity
            assert activity["engine-0"].time.seconds()["away"] > 0
            assert activity["engine-0"].requests["answered"] > 0
            assert activity["engine-1"].time.seconds()["away"] == 0
            assert [each.is_serving for each in activity.values()] == [True, True]
            orchestrator.stop.set()
            await running
    assert children() == before
    run = Run(tmp_path)
    check_nothing_was_counted_twice(run, orchestrator, orchestrator.steps_done)
    late = [row for row in run.trained if row["engine"] == "engine-0" and min(row["versions"]) >= back_at]
    assert late, "it generates again"
    versions = [min(row["versions"]) for row in run.trained if row["engine"] == "engine-0"]
    assert not [version for version in versions if at_death + 1 < version < back_at], "those it never served"
    assert list((tmp_path / "shm").iterdir()) == []


@pytest.mark.parametrize("route", [GENERATE, UPDATE])
async def test_managed_and_running_engines_are_mixed_and_either_may_go(
    route: str, tiny_model: Path, tmp_path: Path
) -> None:
    """The running one dies for good, while it generates or in the middle of a publish; the one we started goes on."""
    before, steps = children(), 6
    faults = FaultPlan(Fault("die", on=route, nth=(40 if route == GENERATE else 3,)))
    async with asyncio.timeout(200), FakeEngine(tiny_model, script=lengths, faults=faults) as engine:
        engines: dict[str, Any] = {"devices": ["cpu"], "urls": [engine.url], **SLOW}
        config = run_config(tiny_model, tmp_path, engines=engines, generation=BRIEF, training={"max_steps": steps})
        async with opened(make_job(config, data=SHORT_ONLY)) as orchestrator:
            assert [client.name for client in orchestrator.session.pool.clients] == ["engine-0", "engine-1"]
            assert orchestrator.session.pool.clients[1].url == engine.url
            await orchestrator.run()
            assert orchestrator.session.pool.serving == ["engine-0"]
        ids = [call.body["request_id"] for call in engine.calls(GENERATE)]
        assert len(set(ids)) == len(ids)
        assert len(engine.answers) > 0
    assert children() == before
    check_nothing_was_counted_twice(Run(tmp_path), orchestrator, steps)


async def test_both_engines_gone_end_the_run_and_say_why(tiny_model: Path, tmp_path: Path) -> None:
    before = children()
    engines = {"devices": ["cpu", "cpu"], "max_restarts": 0, **SLOW}
    config = run_config(tiny_model, tmp_path, engines=engines, generation=BRIEF, training={"max_steps": 500})
    async with asyncio.timeout(200):
        with pytest.raises(Exception, match=r"no engine is left\nengine-\d: engine-\d ended with ") as caught:
            async with opened(make_job(config, data=SHORT_ONLY)) as orchestrator:
                running = asyncio.create_task(orchestrator.run())
                await reached(orchestrator, 1)
                for server in [server_at(client.url) for client in orchestrator.session.pool.clients]:
                    server.kill()
                await running
    assert type(caught.value).__name__ == "EngineError"
    assert children() == before
    assert list((tmp_path / "shm").iterdir()) == []


@pytest.mark.parametrize("health_interval", [0.1, 60.0])
async def test_a_running_engine_that_is_started_anew_by_others_is_taken_back(
    health_interval: float, tiny_model: Path, tmp_path: Path
) -> None:
    """It comes back at the same address with garbage for weights, under the name that the probe's had; found by a look
    or, where looks are rare, by what it answers."""
    async with asyncio.timeout(200), AsyncExitStack() as stack:
        first, other = [
            await stack.enter_async_context(FakeEngine(tiny_model, script=lengths, token_seconds=0.01))
            for _ in range(2)
        ]
        config = run_config(
            tiny_model,
            tmp_path,
            [first.url, other.url],
            generation=BRIEF,
            training={"max_steps": 500, "learning_rate": 1e-6},
            engines={"health_interval": health_interval},
        )
        async with opened(make_job(config, data=SHORT_ONLY)) as orchestrator:
            session = orchestrator.session
            running = asyncio.create_task(orchestrator.run())
            await reached(orchestrator, 2)
            first.close_sockets()
            await asyncio.sleep(0.05)
            first.close_sockets()  # of connections that were about to be accepted
            anew = FakeEngine(tiny_model, script=lengths, token_seconds=0.01, port=first.port)
            anew.model.scramble()
            await stack.enter_async_context(anew)
            anew.core.version = f"{session.folder.incarnation}:-1"
            for _ in range(2):  # a publish may mend it before an answer of the garbage comes, which ends it once more
                while anew.core.version.endswith(":-1") or "engine-0" not in session.pool.serving:
                    assert not running.done(), await running
                    await asyncio.sleep(0.01)
                back_at = session.pool.versions["engine-0"]
                assert back_at is not None
                await reached(orchestrator, orchestrator.steps_done + 4)
            assert session.pool.serving == ["engine-0", "engine-1"]
            orchestrator.stop.set()
            await running
    run = Run(tmp_path)
    check_nothing_was_counted_twice(run, orchestrator, orchestrator.steps_done)
    assert {row["engine"] for row in run.trained} == {"engine-0", "engine-1"}
    late = [row for row in run.trained if row["engine"] == "engine-0" and min(row["versions"]) >= back_at]
    assert late, "it generates again"
    assert min(version for row in run.trained for version in row["versions"]) >= 0
    divergence = [step["policy_kl_nats/behaviour_current"] for step in run.steps]
    assert max(divergence) < 1e-3, "tokens are of the weights that they are named after"
    ids = [call.body["request_id"] for engine in (first, other, anew) for call in engine.calls(GENERATE)]
    assert len(set(ids)) == len(ids)
