"""Does what the guards of a run ask for, as far as the run itself can: warn, and pause until somebody has looked."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence

from asyncgrpo.concurrency import first_of
from asyncgrpo.errors import GuardError, RollbackWanted
from asyncgrpo.guards import Alarm, Guards
from asyncgrpo.session import Session

logger = logging.getLogger(__name__)


class Alarms:
    """Of one run."""

    def __init__(self, session: Session, guards: Guards) -> None:
        self._session, self._guards = session, guards
        self._may_go_on = asyncio.Event()
        self._may_go_on.set()

    def end_pause(self) -> bool:
        """Let a paused run go on. False: it is not paused. May be called from a signal handler."""
        was_paused = not self._may_go_on.is_set()
        self._may_go_on.set()
        return was_paused

    async def heed(self, alarms: Sequence[Alarm], stop: asyncio.Event) -> None:
        """Do what the gravest alarm of a step asks for; a pause ends with `end_pause` or `stop`.

        Raises GuardError for the end of the run, RollbackWanted for a way back.
        """
        for alarm in alarms:
            self._session.metrics.process.guard_alarms.labels(alarm.guard).inc()
            logger.warning("%s", alarm.message)
        match alarms[0].action if alarms else "off":
            case "stop":
                raise GuardError(f"{alarms[0].message}; guards.{alarms[0].guard}_action=stop")
            case "rollback":
                raise RollbackWanted(alarms[0].message)
            case "pause":
                await self._pause(alarms[0], stop)

    async def _pause(self, alarm: Alarm, stop: asyncio.Event) -> None:
        progress = self._session.progress
        progress.note(f"paused: {alarm.message}; SIGUSR1 lets the run go on, Ctrl-C ends it")
        self._may_go_on.clear()
        with self._session.learner_time.during("paused"):
            await first_of(self._may_go_on.wait(), stop.wait())
        self._may_go_on.set()
        if not stop.is_set():
            self._guards.forgive()
            progress.note("going on")
