"""Takes the steps of a run to one tracker, in a thread of its own.

Invariant: whoever hands over a step never waits, and never sees an error of the tracker. A step that the tracker does
not get is counted, and the first is said.
"""

from __future__ import annotations

import json
import logging
import queue
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace

from asyncgrpo.observe.files import write_text
from asyncgrpo.observe.trackers.tracker import About, Tracker

__all__ = ["MOST_WAITING", "Courier", "Step"]

logger = logging.getLogger(__name__)

MOST_WAITING = 1000
"""Steps kept for a tracker that does not take them."""


@dataclass(frozen=True, slots=True)
class Step:
    step: int
    time: float
    values: Mapping[str, float]


class Courier:
    """Of one tracker. The thread begins with the first step: a run that fails before has nothing to track.

    timeout: seconds that a call of the tracker may take until it is said, and that `close` waits. note: shows a line to
    the user. lost: is told how many steps the tracker did not get.
    """

    def __init__(
        self,
        name: str,
        tracker: Tracker,
        about: About,
        *,
        timeout: float,
        note: Callable[[str], None],
        lost: Callable[[int], None],
        most_waiting: int = MOST_WAITING,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._name, self._tracker, self._about = name, tracker, about
        self._timeout, self._note, self._lost, self._clock = timeout, note, lost, clock
        self._state = about.folder / f"{name}.json"
        self._queue: queue.Queue[Step | None] = queue.Queue(most_waiting)
        self._thread: threading.Thread | None = None
        self._called_at: float | None = None
        self._in_hand = 0  # steps, during a call
        self._said: set[str] = set()

    def step(self, step: Step) -> None:
        """Hand over one step. Returns at once."""
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name=f"tracker {self._name}", daemon=True)
            self._thread.start()
        called_at = self._called_at
        if called_at is not None and self._clock() - called_at > self._timeout:
            self._say("late", f"has not answered for {self._timeout:g} s (observe.tracker_timeout); steps wait for it")
        try:
            self._queue.put_nowait(step)
        except queue.Full:
            self._lose(1, f"is {self._queue.maxsize} steps behind")

    def ask_to_end(self) -> None:
        """No step comes after this. Returns at once."""
        if self._thread is not None:
            with suppress(queue.Full):  # it hangs, and `wait` says so
                self._queue.put_nowait(None)

    def wait(self, seconds: float) -> None:
        """Until all is handed over, at most so long; what then still waits is lost."""
        if self._thread is None:
            return
        self._thread.join(max(seconds, 0.0))
        if self._thread.is_alive():
            waiting = sum(1 for step in list(self._queue.queue) if step is not None)
            self._lose(waiting + self._in_hand, f"did not end within {self._timeout:g} s (observe.tracker_timeout)")

    def _run(self) -> None:
        last = self._last_step()
        is_open = self._call(0, lambda: self._open(is_resumed=last is not None))
        while (step := self._queue.get()) is not None:
            if not is_open:
                self._lost(1)
            elif last is None or step.step > last or self._tracker.replaces:
                last = step.step
                self._call(1, lambda step=step: self._log(step))  # type: ignore[misc]
            else:
                self._say(
                    "again", f"keeps what it has of steps up to {last}, which are trained anew; see metrics.jsonl"
                )
        if is_open:
            self._call(0, self._tracker.close)

    def _open(self, *, is_resumed: bool) -> None:
        self._about.folder.mkdir(exist_ok=True)
        self._tracker.open(replace(self._about, is_resumed=is_resumed))

    def _log(self, step: Step) -> None:
        # First, so that a kill in between costs the tracker a step, and never gives it one twice.
        write_text(self._state, json.dumps({"last_step": step.step}) + "\n")
        self._tracker.log(step.step, step.time, step.values)

    def _last_step(self) -> int | None:
        """That the tracker was given by an earlier start of the run."""
        try:
            return int(json.loads(self._state.read_text())["last_step"])
        except (OSError, ValueError, KeyError, TypeError):
            return None

    def _call(self, steps: int, call: Callable[[], None]) -> bool:
        """Whether it went well. The one boundary at which anything that a tracker's package raises is dealt with."""
        self._called_at, self._in_hand = self._clock(), steps
        try:
            call()
        except Exception as error:
            logger.warning("tracker %s failed", self._name, exc_info=True)
            self._lose(steps, f"failed: {type(error).__name__}: {' '.join(str(error).split())[:300]}")
            return False
        finally:
            self._called_at, self._in_hand = None, 0
        return True

    def _lose(self, steps: int, why: str) -> None:
        self._lost(steps)
        self._say("lost", why)

    def _say(self, kind: str, text: str) -> None:
        if kind not in self._said:
            self._said.add(kind)
            self._note(f"warning: {self._name} {text}; the run goes on")
            logger.warning("tracker %s %s", self._name, text)
