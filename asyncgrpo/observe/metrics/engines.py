"""Families of the engines: what each does, what becomes of requests, publishes and engines."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import Literal, get_args

from asyncgrpo.observe.activity import EngineActivity
from asyncgrpo.observe.metrics.collectors import EngineRequests, EngineSeconds
from asyncgrpo.observe.metrics.making import PREFIX, Maker
from asyncgrpo.types import EjectionReason

__all__ = ["EngineMetrics"]

EJECTION_REASONS: Sequence[EjectionReason] = get_args(EjectionReason)
_Read = Literal["open_requests", "is_serving"]


class EngineMetrics:
    def __init__(self, make: Maker, engines: Sequence[str], clock: Callable[[], float] = time.monotonic) -> None:
        self.activity = {engine: EngineActivity(clock) for engine in engines}
        """For each engine's client to tell what it does."""
        seconds = EngineSeconds(f"{PREFIX}engine_seconds", "Engine's time by state", self.activity)
        requests = EngineRequests(f"{PREFIX}generation_requests", "Requests that ended, by how", self.activity)
        make.registry.register(seconds)
        make.registry.register(requests)
        in_flight = make.gauge("generation_requests_in_flight", "Open requests", engine=engines)
        serving = make.gauge("engine_serving", "Whether it gets work", engine=engines)
        for engine, activity in self.activity.items():
            in_flight.labels(engine).set_function(partial(getattr, activity, "open_requests"))
            serving.labels(engine).set_function(partial(getattr, activity, "is_serving"))
        self.generated_tokens = make.counter("generated_tokens", "Completion tokens the engines produced")
        self._ejections = make.counter(
            "engine_ejections", "Times an engine was left without work", engine=engines, reason=EJECTION_REASONS
        )
        self._restarts = make.counter("engine_restarts", "Times it was started anew", engine=engines)
        self._recoveries = make.counter("engine_recoveries", "Times it served again", engine=engines)
        self._policy_version = make.gauge("policy_version", "Policy version held", holder=("learner", *engines))
        self._publish_duration = make.histogram("publish_duration_seconds", "Until a version was on every engine")
        self._published_bytes = make.counter("published_bytes", "Size of the versions published")

    def trained(self, version: int) -> None:
        """The learner has it."""
        self._policy_version.labels("learner").set(version)

    def served(self, engine: str, version: int) -> None:
        """It serves a version from now on."""
        self._policy_version.labels(engine).set(version)
        self.activity[engine].served()

    def left(self, engine: str, reason: EjectionReason) -> None:
        self._ejections.labels(engine, reason).inc()
        self.activity[engine].left()

    def restarting(self, engine: str) -> None:
        self._restarts.labels(engine).inc()

    def recovered(self, engine: str) -> None:
        self._recoveries.labels(engine).inc()

    def published(self, size: int, seconds: float) -> None:
        """A version of so many bytes is on every engine."""
        self._published_bytes.inc(size)
        self._publish_duration.observe(seconds)
