"""What is noted of a run while it goes on: time, memory, how late the event loop is, how fast the machine is."""

from __future__ import annotations

import asyncio
import math
import random
import time
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import psutil
from canned_engine import VOCAB, answer
from canned_run import NoLearner

from asyncgrpo.generation.response import Request, parse_completion

TICK_SECONDS = 0.005
"""How often the event loop's delay is measured."""
YARDSTICK_SECONDS = 0.25
"""How often the machine's speed and the memory are."""


@dataclass(frozen=True, slots=True)
class Mark:
    """Where a run stands."""

    wall: float
    cpu: float
    """Of all threads of this process."""
    engines_cpu: float
    samples: int

    @classmethod
    def now(cls, learner: NoLearner, engines: Sequence[psutil.Process]) -> Mark:
        times = [engine.cpu_times() for engine in engines]
        return cls(time.monotonic(), time.process_time(), sum(t.user + t.system for t in times), learner.trained)


@dataclass(slots=True)
class Looks:
    """What is noted while a run goes on. Seconds and bytes."""

    delays: list[float] = field(default_factory=list)
    yardsticks: list[float] = field(default_factory=list)
    resident: list[int] = field(default_factory=list)

    def look(self) -> None:
        self.yardsticks.append(yardstick())
        self.resident.append(resident_bytes())

    def grown(self) -> float:
        """Bytes from the first quarter's median to the last's: how many answers are half read varies all the time."""
        quarter = max(1, len(self.resident) // 4)
        return float(np.median(self.resident[-quarter:]) - np.median(self.resident[:quarter]))


async def reached(
    samples: int, learner: NoLearner, running: asyncio.Future[None], looks: Looks, seconds: float = math.inf
) -> None:
    """Wait until so many have been trained, or as long, but for one step at least. Note meanwhile how late the event
    loop is, and how fast the machine."""
    started, before = time.monotonic(), learner.trained
    measured = started
    while learner.trained < samples and (time.monotonic() - started < seconds or learner.trained == before):
        if running.done():
            running.result()
            raise RuntimeError("the run ended early")
        due = time.monotonic() + TICK_SECONDS
        await asyncio.sleep(TICK_SECONDS)
        looks.delays.append(time.monotonic() - due)
        if time.monotonic() - measured > YARDSTICK_SECONDS:
            looks.look()
            measured = time.monotonic()
    looks.look()  # a short one has no other


def yardstick() -> float:
    """CPU seconds of work that is always the same, and a part of what is measured: to parse one answer."""
    started = time.thread_time()
    parse_completion(_ANSWER, _REQUEST, 0.0)
    return time.thread_time() - started


_ANSWER = b"run:1".join(answer(512, VOCAB, random.Random(0)))
_REQUEST = Request(engine="e", incarnation="run", max_tokens=512, vocab_size=250, started_at=0.0)


def resident_bytes() -> int:
    return int(psutil.Process().memory_info().rss)
