"""Simulated engines and the pool that hands groups to them.

A request's progress is counted on its engine's own scale: tokens that every running request has got since the start.
One that starts at progress p with n tokens ends at p + n, whatever joins or leaves meanwhile, so an event costs
O(log requests). Publishes leave marks on the same scale, from which each token's version follows.
"""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Callable, Iterable, Sequence

import numpy as np

from asyncgrpo.planning.events import Events
from asyncgrpo.planning.groups import Mark, SimulatedGroup
from asyncgrpo.planning.model import EngineModel

__all__ = ["SimulatedPool"]

_ROUNDING = 1e-6  # tokens


_Request = tuple[SimulatedGroup, int]  # and its tokens


class _Engine:
    def __init__(self, index: int) -> None:
        self.index = index
        self.running: list[tuple[float, int, SimulatedGroup, float]] = []  # progress at its end, serial, group, start
        self.queue: deque[_Request] = deque()
        self.progress = self.at = 0.0  # as of the time `at`
        self.marks: list[Mark] = [(0.0, 0)]
        self.version = self.failures = 0
        self.open = self.last_pick = 0  # requests given to it and not done; number of the last pick of it
        self.epoch = 0  # of its plan: a planned end of an earlier one no longer counts
        self.paused = self.down = False


class SimulatedPool:
    """on_group: called with every group whose samples are all done. A version is 0 at the start."""

    def __init__(
        self, model: EngineModel, events: Events, rng: np.random.Generator, on_group: Callable[[SimulatedGroup], None]
    ) -> None:
        self._model, self._events, self._rng, self._on_group = model, events, rng, on_group
        self._engines = [_Engine(index) for index in range(model.count)]
        self._least_loaded = [(0, 0, index) for index in range(model.count)]  # open requests, last pick, engine
        self._waiting: deque[list[_Request]] = deque()
        self._serial = self._picks = 0
        self._latest = 0
        self.generated_tokens = 0
        self.lost_requests = 0
        """Begun on an engine that failed, and begun anew on another."""
        if model.seconds_between_failures < float("inf"):
            for engine in self._engines:
                self._plan_failure(engine)

    @property
    def served_version(self) -> int:
        """Oldest version of the engines that are up."""
        return min((engine.version for engine in self._engines if not engine.down), default=self._latest)

    def start(self, group: SimulatedGroup, lengths: Sequence[int]) -> None:
        self._place([(group, length) for length in lengths])

    def publish(self, version: int, done: Callable[[int], None]) -> None:
        """Load `version` into all engines, `publish_concurrency` at a time; then `done(version)`."""
        self._latest = version
        turns = deque(self._engines)
        loading = 0

        def next_turn() -> None:
            nonlocal loading
            while turns and turns[0].down:
                turns.popleft()
            if turns:
                engine = turns.popleft()
                loading += 1
                self._advance(engine)
                engine.paused = True
                self._plan_finish(engine)
                self._events.after(self._model.pause_seconds, loaded, engine)
            elif not loading:
                done(version)

        def loaded(engine: _Engine) -> None:
            nonlocal loading
            loading -= 1
            engine.paused = False
            self._serve(engine, version)
            next_turn()

        for _ in range(min(self._model.publish_concurrency, len(turns))):
            next_turn()

    def _place(self, requests: list[_Request]) -> None:
        """Give requests of one group to the least loaded engine, or keep them until one has room."""
        engine = self._pick(len(requests))
        if engine is None:
            self._waiting.append(requests)
            return
        self._picks += 1
        engine.last_pick = self._picks
        engine.open += len(requests)
        self._offer(engine)
        if self._model.request_seconds:
            self._events.after(self._model.request_seconds, self._arrive, engine, engine.failures, requests)
        else:
            self._arrive(engine, engine.failures, requests)

    def _pick(self, requests: int) -> _Engine | None:
        limit = self._model.max_requests
        offers = self._least_loaded
        while offers:
            open_requests, last_pick, index = offers[0]
            engine = self._engines[index]
            if engine.down or (open_requests, last_pick) != (engine.open, engine.last_pick):
                heapq.heappop(offers)  # it was overtaken by a later offer
                continue
            fits = limit is None or not engine.open or engine.open + requests <= limit
            return engine if fits else None
        return None

    def _offer(self, engine: _Engine) -> None:
        """Note the engine's load; former notes of it no longer count."""
        if len(self._least_loaded) > 8 * len(self._engines) + 64:
            self._least_loaded = [(e.open, e.last_pick, e.index) for e in self._engines if not e.down]
            heapq.heapify(self._least_loaded)
        else:
            heapq.heappush(self._least_loaded, (engine.open, engine.last_pick, engine.index))

    def _arrive(self, engine: _Engine, failures: int, requests: list[_Request]) -> None:
        if engine.failures != failures:  # it failed while they were on their way
            self._place(requests)
            return
        self._advance(engine)
        engine.queue.extend(requests)
        self._compute(engine)

    def _compute(self, engine: _Engine) -> None:
        """Take requests from its queue as far as they fit."""
        queue, running, limit = engine.queue, engine.running, self._model.max_num_seqs
        while queue and len(running) < limit:
            group, tokens = queue.popleft()
            self._serial += 1
            heapq.heappush(running, (engine.progress + tokens, self._serial, group, engine.progress))
        self._plan_finish(engine)

    def _advance(self, engine: _Engine) -> None:
        if engine.running and not engine.paused:
            engine.progress += (self._events.now - engine.at) / self._model.step_seconds(len(engine.running))
        engine.at = self._events.now

    def _plan_finish(self, engine: _Engine) -> None:
        engine.epoch += 1
        if engine.running and not engine.paused:
            left = max(0.0, engine.running[0][0] - engine.progress)
            self._events.after(left * self._model.step_seconds(len(engine.running)), self._finish, engine, engine.epoch)

    def _finish(self, engine: _Engine, epoch: int) -> None:
        if epoch != engine.epoch:
            return  # something joined, left or paused since
        self._advance(engine)
        done: list[SimulatedGroup] = []
        running, reached = engine.running, engine.progress + _ROUNDING
        while running and running[0][0] <= reached:
            end, _, group, start = heapq.heappop(running)
            group.sampled(engine.marks, start, end)
            engine.open -= 1
            self.generated_tokens += round(end - start)
            if not group.left:
                done.append(group)
        self._compute(engine)
        self._offer(engine)
        if self._waiting:
            self._place_waiting()
        for group in done:
            self._on_group(group)

    def _place_waiting(self) -> None:
        while self._waiting and self._pick(len(self._waiting[0])) is not None:
            self._place(self._waiting.popleft())

    def _serve(self, engine: _Engine, version: int) -> None:
        """It has loaded `version` and goes on."""
        if engine.down:
            return
        engine.at = self._events.now
        engine.version = version
        engine.marks.append((engine.progress, version))
        self._plan_finish(engine)

    def _plan_failure(self, engine: _Engine) -> None:
        self._events.after(float(self._rng.exponential(self._model.seconds_between_failures)), self._fail, engine)

    def _fail(self, engine: _Engine) -> None:
        """What it had begun is begun anew on another engine; what it had finished is kept."""
        engine.down, engine.open = True, 0
        engine.failures += 1
        lost = [*((group, round(end - start)) for end, _, group, start in engine.running), *engine.queue]
        engine.running.clear()
        engine.queue.clear()
        engine.epoch += 1
        self._events.after(self._model.recovery_seconds, self._recover, engine)
        self.lost_requests += len(lost)
        for requests in _by_group(lost):
            self._place(requests)

    def _recover(self, engine: _Engine) -> None:
        """It joins with the latest version."""
        engine.down = False
        self._serve(engine, self._latest)
        self._offer(engine)
        self._plan_failure(engine)
        self._place_waiting()


def _by_group(requests: Iterable[_Request]) -> Iterable[list[_Request]]:
    groups: dict[int, list[_Request]] = {}
    for request in requests:
        groups.setdefault(request[0].group_id, []).append(request)
    return groups.values()
