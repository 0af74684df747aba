"""One measurement for orchestrator.py: the run of canned_run.py. Prints its figures as JSON in the last line."""

from __future__ import annotations

import asyncio
import cProfile
import io
import json
import pstats
import sys
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import psutil
from canned_run import Load, NoLearner, canned_run, session_of
from shared import Figures, print_figures
from watching import Looks, Mark, reached

from asyncgrpo.observe.run_folder import RunFolder
from asyncgrpo.orchestrator import Orchestrator
from asyncgrpo.preflight import Job
from asyncgrpo.runtime import run_on_loop
from asyncgrpo.session import Session


def measure(load: Load) -> Figures:
    with canned_run(load) as (job, folder, urls, engines):
        return run_on_loop(run(load, job, folder, urls, engines))


async def run(
    load: Load, job: Job, folder: RunFolder, urls: Sequence[str], engines: Sequence[psutil.Process]
) -> Figures:
    async with session_of(job, folder, urls, learner_seconds=load.learner_seconds) as session:
        return await observe(load, session, engines)


async def observe(load: Load, session: Session, engines: Sequence[psutil.Process]) -> Figures:
    """Figures begin when all slots have been trained once, at least a tenth of the samples, and end with the last."""
    orchestrator, learner = Orchestrator(session), session.learner
    assert isinstance(learner, NoLearner)
    running = asyncio.ensure_future(orchestrator.run())
    await reached(max(load.in_flight, load.samples // 10), learner, running, Looks())
    looks, start = Looks(), Mark.now(learner, engines)
    profiler = cProfile.Profile()
    if load.profile:
        profiler.enable()
    await reached(start.samples + load.samples, learner, running, looks, load.seconds)
    end = Mark.now(learner, engines)
    profiler.disable()
    running.cancel()
    await asyncio.wait({running})
    if load.profile:
        write_profile(profiler, load.profile)
    return figures(load, start, end, looks)


def figures(load: Load, start: Mark, end: Mark, looks: Looks) -> Figures:
    seconds, cpu, samples = end.wall - start.wall, end.cpu - start.cpu, end.samples - start.samples
    return {
        "in_flight": load.in_flight,
        "samples": samples,
        "seconds": seconds,
        "completions_per_second": samples / seconds,
        "cpu_seconds_per_sample": cpu / samples,
        "core_ratio": cpu / seconds,
        "engines_core_ratio": (end.engines_cpu - start.engines_cpu) / seconds,
        "yardstick_seconds": float(np.median(looks.yardsticks)),
        "loop_delay_p50_seconds": float(np.quantile(looks.delays, 0.5)),
        "loop_delay_p99_seconds": float(np.quantile(looks.delays, 0.99)),
        "loop_delay_max_seconds": max(looks.delays),
        "rss_growth_mib": looks.grown() / 2**20,
    }


def write_profile(profiler: cProfile.Profile, path: str) -> None:
    text = io.StringIO()
    for order in ("tottime", "cumtime"):
        pstats.Stats(profiler, stream=text).sort_stats(order).print_stats(45)
    Path(path).write_text(text.getvalue())


def main() -> None:
    load = Load(**json.loads(sys.argv[1]))
    print_figures(measure(load))


if __name__ == "__main__":
    main()
