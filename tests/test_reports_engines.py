"""Whole runs on engines that fail as public reports of other systems tell. docs/bug_reports.md says which is whose.

What one module alone can show is tested with that module.
"""

import asyncio
import dataclasses
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from run_cases import Run, children, lengths, make_job, opened, rows, run_config

from asyncgrpo.testing.fake_engine import FakeEngine
from asyncgrpo.testing.faults import FINISH, START, UPDATE, Fault, FaultPlan, Kind

SHORT_ONLY = rows(short=6, long=0)


@pytest.mark.parametrize("route", ["/pause", START, UPDATE, FINISH, "/resume"])
@pytest.mark.parametrize("kind", ["disconnect", "lost_answer"])
async def test_a_publish_whose_connection_drops_once_is_done_all_the_same(
    kind: Kind, route: str, tiny_model: Path, tmp_path: Path
) -> None:
    """Whether the engine has acted on the call or not, nobody knows."""
    dropped = Fault(kind, on=route, nth=(2,))  # after those of the probe
    async with asyncio.timeout(60), FakeEngine(tiny_model, script=lengths, faults=FaultPlan(dropped)) as engine:
        synchronous = {"training": {"max_steps": 2}, "buffer": {"max_staleness": 0}}
        config = run_config(tiny_model, tmp_path, [engine.url], **synchronous)
        async with opened(make_job(config, data=SHORT_ONLY)) as orchestrator:
            await orchestrator.run()
            assert orchestrator.buffer.contract.fates == {"trained": 8}
        assert (engine.core.version.partition(":")[2], engine.core.paused) == ("1", None)
        assert len(engine.calls("/init_weight_transfer_engine")) == 1, "it was not left out and brought back"
        mended = route == FINISH  # what may still be open is finished before the load is repeated
        assert len(engine.calls(route)) == 2 + 1 + (2 if mended else 1)
    first, second = Run(tmp_path).steps
    assert (first["staleness_max"], second["staleness_max"]) == (0, 0)
    assert second["policy_kl_nats/behaviour_proximal"] < 1e-6, "the weights are those that the version names"


async def test_a_collector_that_breaks_ends_the_run_with_its_error(tiny_model: Path, tmp_path: Path) -> None:
    """Not an engine's failure, which is counted and borne, but one that nobody expects: no step waits for what
    cannot come."""

    class Broken:
        def decode(self, token_ids: Sequence[int], **_: Any) -> str:
            raise ZeroDivisionError("in the middle of a rollout")

    before = children()
    async with asyncio.timeout(60), FakeEngine(tiny_model, script=lengths) as engine:
        config = run_config(tiny_model, tmp_path, [engine.url], weights={"probe": False})
        job = dataclasses.replace(make_job(config, data=SHORT_ONLY), tokenizer=Broken())
        with pytest.raises(ZeroDivisionError, match="in the middle of a rollout"):
            async with opened(job) as orchestrator, asyncio.timeout(20):
                await orchestrator.run()
        assert engine.core.requests == []
    assert children() == before
