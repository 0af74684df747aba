"""How many requests an engine gets at once, found from what it says of itself. Pure: no clock, no I/O.

Too few leave the engine idle; too many overflow its KV cache, and it throws away what it has computed (preemption).

| what a look shows                                           | the limit                                        |
|-------------------------------------------------------------|--------------------------------------------------|
| requests were preempted, or the queue stays long            | falls by a quarter                               |
| it is used up, the queue is short and the cache below 85 %  | doubles; after the first fall it rises by 1/16   |
| otherwise                                                   | stays                                            |

Additive increase and multiplicative decrease, as in TCP, so that engines shared by several users divide fairly. A limit
is judged only once it is in force: after a fall, the requests that were too many first have to end. Invariant: the
limit is never below the samples of one group, which need each other.
"""

from __future__ import annotations

from collections import deque

from asyncgrpo.generation.load import EngineLoad

FULL = 0.85
"""Share of the KV cache from which on a limit does not rise: requests under way still grow."""
FULL_LOOKS = 20
"""Looks for which a full cache is remembered: requests that began together fill and empty it together."""
LONG_LOOKS = 3
"""Looks in a row with a long queue, until it counts."""
START_GROUPS, START_REQUESTS = 4, 64


class Concurrency:
    """The limit of one engine. group: samples that are sent together."""

    def __init__(self, group: int) -> None:
        self.limit = max(START_GROUPS * group, START_REQUESTS)
        """Most open requests."""
        self._group = group
        self._preemptions: int | None = None
        self._has_fallen = False
        self._long_looks = 0
        self._pause_lingers = False
        self._kv_usage: deque[float] = deque(maxlen=FULL_LOOKS)

    def observe(self, load: EngineLoad, *, was_paused: bool = False) -> int | None:
        """Take in one look; the new limit if it changes. To be called at regular intervals.

        was_paused: the engine was paused at some time since the last look. A pause that keeps requests preempts every
        one of them, in a counter that may move only after it; neither that nor the queue it leaves is overload.
        """
        preempted = self._new_preemptions(load)
        if was_paused or self._pause_lingers:
            preempted, self._long_looks = 0, 0
        elif load.waiting > self._group:
            self._long_looks += 1
        else:
            self._long_looks = 0
        self._pause_lingers = was_paused
        self._kv_usage.append(load.kv_usage)
        open_requests = load.running + load.waiting
        if open_requests > self.limit:  # not in force yet
            return None
        if preempted or self._long_looks >= LONG_LOOKS:
            return self._fall(open_requests)
        is_used_up = open_requests + self._group > self.limit
        if is_used_up and 2 * load.waiting <= self._group and max(self._kv_usage) < FULL:
            return self._rise()
        return None

    def _new_preemptions(self, load: EngineLoad) -> int:
        """Since the last look. The first one has nothing to compare with; an engine that was restarted counts anew."""
        before, self._preemptions = self._preemptions, load.preemptions
        if before is None:
            return 0
        return load.preemptions - before if load.preemptions >= before else load.preemptions

    def _fall(self, open_requests: int) -> int | None:
        self._has_fallen, self._long_looks = True, 0
        return self._set(min(self.limit, open_requests) * 3 // 4)

    def _rise(self) -> int | None:
        return self._set(
            self.limit + max(1, self._group // 4, self.limit // 16) if self._has_fallen else 2 * self.limit
        )

    def _set(self, limit: int) -> int | None:
        before, self.limit = self.limit, max(self._group, limit)
        return self.limit if self.limit != before else None
