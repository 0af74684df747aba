"""What learner and engines did in a window of time, from spans.jsonl.

A lane with few spans in the window has them one by one; one with many has, for each of SLOTS equal parts of the window,
the share of it that each state took. Either way the seconds of a state are what was recorded.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Mapping
from typing import Any

import msgspec
import numpy as np

from asyncgrpo.observe.page.tail import LineTail, with_pauses
from asyncgrpo.observe.page.thinning import plain
from asyncgrpo.observe.run_folder import RunFolder
from asyncgrpo.observe.spans import former

__all__ = ["Timeline"]

MOST_SPANS = 1200
SLOTS = 400
STEPS_SHOWN = 8
"""Steps of the window that is proposed: few enough to see each publish."""
FIRST_SECONDS = 1.0
"""A whole run is shown as at least so long: in its first moments there is one sample."""
FLOWS = ("in_flight", "buffered", "slots_held")


class _Lane:
    """Spans in the order of their ends, which is that of their beginnings: one state follows the other."""

    def __init__(self) -> None:
        self.starts, self.ends = array("d"), array("d")
        self.states, self.numbers = array("H"), array("q")

    def add(self, start: float, end: float, state: int, number: int) -> None:
        if self.ends and start < self.ends[-1]:  # a clock that was set back
            start = min(self.ends[-1], end)
        if not self.ends or end >= self.ends[-1]:
            self.starts.append(start)
            self.ends.append(end)
            self.states.append(state)
            self.numbers.append(number)

    def within(self, start: float, end: float) -> range:
        return range(bisect_right(self.ends, start), bisect_left(self.starts, end))


class Timeline:
    """Of one run. `update` before anything else."""

    def __init__(self, folder: RunFolder) -> None:
        self._path = folder.spans_file
        self._begin()

    def _begin(self) -> None:
        self._lanes: dict[str, _Lane] = {"learner": _Lane()}
        self._states: dict[str, int] = {}
        self._at = array("d")
        self._flows = {name: array("d") for name in FLOWS}
        self._requests: dict[str, array[float]] = {}
        self._learner_now: str | None = None
        self._former = LineTail(former(self._path))
        self._tail = LineTail(self._path)

    def update(self) -> None:
        """Read what was added. Raises OSError."""
        if self._tail.has_changed():  # it was put aside, as a full one
            self._begin()
        while lines := self._former.read() or self._tail.read():
            for line in with_pauses(lines):
                self._take(line)

    def window(self, start: float | None = None, end: float | None = None) -> dict[str, Any]:
        """Absent ends are those of the record. Times of lanes and flow are seconds after `from`."""
        bounds = self._bounds()
        if bounds is None:
            return {"bounds": None, "lanes": []}
        start = bounds[0] if start is None else start
        end = max(bounds[1], start + FIRST_SECONDS) if end is None else max(end, start + 1e-3)
        return {
            "bounds": list(bounds),
            "proposed": self._proposed(bounds),
            "from": start,
            "to": end,
            "states": list(self._states),
            "lanes": [{"name": name, **self._lane(lane, start, end)} for name, lane in self._named()],
            "now": None if self._learner_now is None else {"learner": self._learner_now},
            "flow": self._flow(start, end),
        }

    def _take(self, line: bytes) -> None:
        try:
            entry = msgspec.json.decode(line)
            if "at" in entry:
                self._take_levels(entry)
            else:
                state = self._states.setdefault(str(entry["state"]), len(self._states))
                lane = self._lanes.setdefault(str(entry["lane"]), _Lane())
                number = int(entry.get("step", -1))
                lane.add(float(entry["from"]), float(entry["to"]), state, number)
        except (ValueError, KeyError, TypeError, OverflowError):  # half a line, by a kill: its span is not shown
            return

    def _take_levels(self, entry: Mapping[str, Any]) -> None:
        at, requests = float(entry["at"]), dict(entry["requests"])
        values = {name: float(entry[name]) for name in FLOWS}
        if self._at and at < self._at[-1]:
            return
        for name in requests:
            if name not in self._requests:
                self._requests[name] = array("d", [np.nan] * len(self._at))
        for name, series in self._requests.items():
            series.append(requests.get(name, np.nan))
        for name, value in values.items():
            self._flows[name].append(value)
        self._at.append(at)
        self._learner_now = entry.get("learner")

    def _named(self) -> list[tuple[str, _Lane]]:
        """Learner, generation as a whole, then engines, also those that were never paused."""
        lanes = {**self._lanes, **{name: self._lanes.get(name, _Lane()) for name in sorted(self._requests)}}
        first = [name for name in ("learner", "generation") if name in lanes]
        return [(name, lanes[name]) for name in (*first, *sorted(set(lanes) - set(first)))]

    def _bounds(self) -> tuple[float, float] | None:
        begun = [lane.starts[0] for lane in self._lanes.values() if lane.starts] + list(self._at[:1])
        ended = [lane.ends[-1] for lane in self._lanes.values() if lane.ends] + list(self._at[-1:])
        return (min(begun), max(ended)) if begun else None

    def _proposed(self, bounds: tuple[float, float]) -> list[float]:
        """The last steps."""
        learner, training = self._lanes["learner"], self._states.get("training")
        seen = 0
        for index in range(len(learner.starts) - 1, -1, -1):
            if learner.states[index] == training:
                seen += 1
                if seen == STEPS_SHOWN:
                    return [learner.starts[index], bounds[1]]
        return list(bounds)

    def _lane(self, lane: _Lane, start: float, end: float) -> dict[str, Any]:
        within = lane.within(start, end)
        if len(within) <= MOST_SPANS:
            return {
                "spans": [
                    [_ms(lane.starts[i] - start), _ms(lane.ends[i] - start), lane.states[i], lane.numbers[i]]
                    for i in within
                ]
            }
        return {"shares": self._shares(lane, within, start, end)}

    def _shares(self, lane: _Lane, within: range, start: float, end: float) -> dict[str, list[Any]]:
        """By state: its share of every slot."""
        chosen = slice(within.start, within.stop)
        starts = np.clip((np.array(lane.starts[chosen]) - start) / (end - start) * SLOTS, 0, SLOTS)
        ends = np.clip((np.array(lane.ends[chosen]) - start) / (end - start) * SLOTS, 0, SLOTS)
        states = np.array(lane.states[chosen])
        return {
            name: plain(_covered(starts[states == state], ends[states == state]))
            for name, state in self._states.items()
            if (states == state).any()
        }

    def _flow(self, start: float, end: float) -> dict[str, Any]:
        """Levels and open requests at up to SLOTS times, the largest of each part of the window."""
        chosen = slice(bisect_left(self._at, start), bisect_right(self._at, end))
        at = np.array(self._at[chosen])
        slots = np.minimum(((at - start) / (end - start) * SLOTS).astype(np.int64), SLOTS - 1)
        firsts = np.flatnonzero(np.diff(slots, prepend=-1))

        def largest(values: array[float]) -> list[Any]:
            return plain(np.fmax.reduceat(np.array(values[chosen]), firsts)) if len(firsts) else []

        return {
            "at": plain(np.round(at[firsts] - start, 3)) if len(firsts) else [],
            **{name: largest(self._flows[name]) for name in FLOWS},
            "requests": {name: largest(values) for name, values in sorted(self._requests.items())},
        }


def _covered(starts: np.ndarray, ends: np.ndarray) -> np.ndarray:
    """Of every slot, the part that disjoint intervals cover; both are in slots."""
    edges = np.arange(SLOTS + 1)
    # Covered length up to each edge: whole intervals before it, and the part of the one it is in.
    lengths = np.concatenate([[0.0], np.cumsum(ends - starts)])
    index = np.searchsorted(ends, edges, side="right")
    covered = lengths[index]
    inside = index < len(starts)
    covered[inside] += np.clip(edges[inside] - starts[index[inside]], 0.0, None)
    return np.diff(covered)


def _ms(seconds: float) -> float:
    return round(seconds, 3)
