"""The check that costs a minute: start the engines and the learner as a run would, generate, publish, compare."""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import Sequence
from pathlib import Path

from asyncgrpo.cli.checks.check import Check
from asyncgrpo.config import RunConfig
from asyncgrpo.errors import AsyncGRPOError


def engines_and_publish(config: RunConfig) -> Check:
    """vLLM starts, generates, and computes with what is published."""
    name = "engines, learner, publish"
    with tempfile.TemporaryDirectory(prefix="asyncgrpo-doctor-") as scratch:
        try:
            agreements = asyncio.run(_trial(config, str(Path(scratch) / "run")))
        except AsyncGRPOError as error:
            return Check(name, "fail", str(error), "the message above names the remedy")
    return Check(name, "ok", "; ".join(agreements))


async def _trial(config: RunConfig, folder: str) -> Sequence[str]:
    """What the probe of a run's start finds, in a folder that is thrown away."""
    from asyncgrpo.observe.progress import Progress
    from asyncgrpo.observe.run_folder import RunFolder
    from asyncgrpo.preflight import prepare
    from asyncgrpo.session import open_session, prove_weights

    elsewhere = config.run.model_copy(update={"output_dir": folder, "resume": "never"})
    proven = config.weights.model_copy(update={"probe": True})
    job = prepare(config.model_copy(update={"run": elsewhere, "weights": proven}))
    with RunFolder.create(folder) as run_folder, Progress(job.total_steps) as progress:
        async with open_session(job, run_folder, progress) as session:
            with progress.phase("generating and publishing"):
                agreements = await prove_weights(session)
            for error in session.pool.gone.values():  # a run would go on without it, and try it again
                raise error
            return [str(agreement) for agreement in agreements]
