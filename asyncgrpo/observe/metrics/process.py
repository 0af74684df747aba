"""Families of the orchestrator's own process, and of what warns: guards, logs, trackers."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import get_args

from prometheus_client import ProcessCollector

from asyncgrpo.config.guards import GUARDS
from asyncgrpo.config.sections import Tracker
from asyncgrpo.observe.metrics.making import Maker

__all__ = ["LOG_LEVELS", "ProcessMetrics"]

TRACKERS: Sequence[Tracker] = get_args(Tracker)
LOG_LEVELS = ("debug", "info", "warning", "error", "critical")
DELAYS = (0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 1, 3, 10)


class ProcessMetrics:
    def __init__(self, make: Maker, stall_seconds: float) -> None:
        """stall_seconds: without progress, after which a run counts as stalled."""
        ProcessCollector(namespace="asyncgrpo", registry=make.registry)
        self._progress = make.gauge(
            "last_progress_timestamp_seconds",
            "When a step, group or publish last got on, or a guard had the run pause, since 1970",
        )
        self.progressed()
        make.gauge("stall_threshold_seconds", "Without progress for so long, the run has stalled").set(stall_seconds)
        self.loop_delay = make.histogram("event_loop_delay_seconds", "By how much a timer was late", DELAYS)
        self.disk_free = make.gauge("disk_free_bytes", "Free where the run folder is, as of the last step")
        self.log_messages = make.counter("log_messages", "Lines logged", level=LOG_LEVELS)
        self.guard_alarms = make.counter("guard_alarms", "Alarms of guards", guard=GUARDS)
        self.tracker_steps_lost = make.counter(
            "tracker_steps_lost", "Steps that a tracker did not get: it failed or hung", tracker=TRACKERS
        )

    def progressed(self) -> None:
        self._progress.set(time.time())

    def watch_progress(self, read: Callable[[], float]) -> None:
        """read: when anything last got on, in seconds since 1970."""
        self._progress.set_function(read)
