"""One measurement for observing.py: a canned run with some of what observes a run, or none of it.

Prints its figures as JSON in the last line.
"""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
import time
from collections.abc import Collection, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import psutil
from canned_run import Load, NoLearner, canned_run, session_of
from shared import Figures, print_figures
from watching import Looks, Mark, reached

from asyncgrpo import stalls
from asyncgrpo.concurrency import run_until
from asyncgrpo.observe.logs import setup_logging
from asyncgrpo.observe.loop_delay import measure_loop_delay
from asyncgrpo.observe.page.handlers import PageHandlers
from asyncgrpo.observe.page.reader import RunReader
from asyncgrpo.observe.run_folder import RunFolder
from asyncgrpo.observe.server import MetricsServer
from asyncgrpo.observe.spans import SAMPLE_SECONDS, SpanLog
from asyncgrpo.observe.timing import TimeAccount
from asyncgrpo.observe.watchdog import Watchdog
from asyncgrpo.orchestrator import Orchestrator
from asyncgrpo.preflight import Job
from asyncgrpo.runtime import run_on_loop
from asyncgrpo.session import Session

PARTS = ("counters", "scrapes", "page", "spans", "logs", "watchdog", "rollouts")
SCRAPE_SECONDS, PAGE_SECONDS = 1.0, 4.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Observed:
    """A load, and the PARTS that are on. hurry: times as many scrapes, looks of a page and samples of the flow."""

    load: Load
    parts: Collection[str]
    hurry: float = 1.0


class NoSpans(SpanLog):
    """Keeps nothing."""

    def __init__(self) -> None:
        super().__init__(Path("/dev/null"), timeout=1.0)

    def add(self, lane: str, state: str, seconds: float, **more: float | str) -> None:
        pass

    def watch(self, account: TimeAccount, lane: str) -> None:
        pass

    async def run(self) -> None:
        await asyncio.Event().wait()


def measure(what: Observed) -> Figures:
    with canned_run(what.load) as (job, folder, urls, engines), ExitStack() as stack:
        if "logs" in what.parts:
            stack.enter_context(setup_logging(folder.log_file, "info"))
        return run_on_loop(run(what, job, folder, urls, engines))


async def run(
    what: Observed, job: Job, folder: RunFolder, urls: Sequence[str], engines: Sequence[psutil.Process]
) -> Figures:
    spans = NoSpans()
    if "spans" in what.parts:
        spans = SpanLog(folder.spans_file, timeout=60.0, sample_seconds=SAMPLE_SECONDS / what.hurry)
    async with session_of(job, folder, urls, learner_seconds=what.load.learner_seconds, spans=spans) as session:
        if "counters" not in what.parts:
            without_counters(session)
        page = PageHandlers(RunReader(folder, getattr(job.tokenizer, "backend_tokenizer", None)), 60.0)
        port = 0 if {"scrapes", "page"} & {*what.parts} else -1
        async with MetricsServer(session.metrics.registry, "127.0.0.1", port, None, page) as server:
            with looked_at(server.url, what):
                return await observe(what, session, engines)


def without_counters(session: Session) -> None:
    """What each group and step is told to /metrics goes nowhere."""
    flow, metrics = session.metrics.flow, session.metrics
    nowhere: Any = lambda *_: None  # noqa: E731
    flow.finished = flow.taken = nowhere  # type: ignore[method-assign]
    metrics.observe_step = nowhere  # type: ignore[method-assign]


@contextmanager
def looked_at(url: str | None, what: Observed) -> Iterator[None]:
    if url is None:
        yield
        return
    every = {
        "--metrics": SCRAPE_SECONDS / what.hurry if "scrapes" in what.parts else 0.0,
        "--page": PAGE_SECONDS / what.hurry if "page" in what.parts else 0.0,
    }
    words = [word for option, seconds in every.items() for word in (option, str(seconds))]
    looker = subprocess.Popen([sys.executable, str(Path(__file__).with_name("looker.py")), url, *words])
    try:
        yield
    finally:
        looker.kill()
        looker.wait()


async def observe(what: Observed, session: Session, engines: Sequence[psutil.Process]) -> Figures:
    """Figures begin when all slots have been trained one and a half times, and end with the last sample."""
    load, orchestrator, learner = what.load, Orchestrator(session), session.learner
    assert isinstance(learner, NoLearner)
    ends: list[float] = []
    orchestrator.on_step = lambda step: ends.append(time.monotonic())
    running = asyncio.ensure_future(everything(what, session, orchestrator))
    await reached(load.in_flight * 3 // 2, learner, running, Looks())
    looks, start, first = Looks(), Mark.now(learner, engines), len(ends)
    await reached(start.samples + load.samples, learner, running, looks, load.seconds)
    end = Mark.now(learner, engines)
    running.cancel()
    await asyncio.wait({running})
    seconds = end.wall - start.wall
    counted = ends[max(first - 1, 0) :]
    if len(counted) < 2:
        raise SystemExit(f"{len(counted)} ends of steps were seen, too few to time one: raise the number of samples")
    steps = np.diff(counted)
    return {
        "parts": [*what.parts],
        "load": asdict(load),
        "samples": end.samples - start.samples,
        "seconds": seconds,
        "steps": len(steps),
        "step_seconds": float(np.median(steps)),
        "step_seconds_mean": float(np.mean(steps)),
        "cpu_seconds_per_sample": (end.cpu - start.cpu) / (end.samples - start.samples),
        "cpu_seconds_per_step": (end.cpu - start.cpu) / (end.samples - start.samples) * 8 * load.groups_per_step,
        "core_ratio": (end.cpu - start.cpu) / seconds,
        "yardstick_seconds": float(np.median(looks.yardsticks)),
        "loop_delay_p99_seconds": float(np.quantile(looks.delays, 0.99)),
        "loop_delay_max_seconds": max(looks.delays),
        "rss_mib": looks.resident[-1] / 2**20,
        "rss_growth_mib": looks.grown() / 2**20,
        "rss_tenths_mib": [round(float(np.median(part)) / 2**20, 1) for part in np.array_split(looks.resident, 10)]
        if len(looks.resident) >= 10
        else [],
    }


async def everything(what: Observed, session: Session, orchestrator: Orchestrator) -> None:
    if "watchdog" not in what.parts:
        await orchestrator.run()
        return
    contract, config = orchestrator.buffer.contract, session.job.config
    with Watchdog(
        lambda: stalls.signs(session, contract),
        lambda: stalls.describe(session, contract, orchestrator.books),
        after=config.stall_report_after,
        path=session.folder.stalls_file,
        note=session.progress.note,
    ):
        await run_until(orchestrator.run(), measure_loop_delay(session.metrics.process.loop_delay.observe))


def main() -> None:
    given = json.loads(sys.argv[1])
    print_figures(measure(Observed(load=Load(**given.pop("load")), **given)))


if __name__ == "__main__":
    main()
