"""The inside of a fake engine: requests advance together, one token each per step, until a pause or their end.

Mirrors vLLM's engine core where a client can see it: the weight version is noted per token, a paused engine queues new
requests, a step over half-loaded weights kills the engine. Invariant: weights and version change only between steps.
"""

from __future__ import annotations

import asyncio
import random
import zlib
from collections import Counter, deque
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal

import torch

from asyncgrpo.testing.fake_adapters import FakeAdapter, FakeAdapters, adapted
from asyncgrpo.testing.fake_model import FakeModel
from asyncgrpo.testing.fake_request import CoreRequest

Script = Callable[[tuple[int, ...], random.Random], Sequence[int]]
"""Prompt and a generator seeded by the request's id, to the tokens the engine shall "sample"."""
PauseMode = Literal["abort", "wait", "keep"]


class EngineDead(Exception):
    pass


class FakeCore:
    def __init__(
        self,
        model: FakeModel,
        *,
        script: Script | None,
        token_seconds: float,
        max_num_seqs: int,
        max_model_len: int,
        seed: int,
        transfer_backend: str,
        kv_blocks: int,
        adapters: FakeAdapters,
    ) -> None:
        self.model, self.adapters = model, adapters
        self.kv_blocks = kv_blocks
        self.transfer_backend = transfer_backend
        self.max_num_seqs, self.max_model_len = max_num_seqs, max_model_len
        self.version = "default"
        self.paused: PauseMode | None = None
        self.dead = False
        self.requests: list[CoreRequest] = []
        """Unfinished ones. Those that are computed come first, oldest first."""
        self.generated_tokens = self.preemptions = 0
        self.finished: Counter[str] = Counter()
        self._script, self._token_seconds, self._seed = script, token_seconds, seed
        self._between_steps = asyncio.Lock()
        self._changed = asyncio.Condition()
        self._draining: set[CoreRequest] = set()
        self._update_active = False
        self._weights_whole = True
        self._whole_after_update = True

    async def run(self) -> None:
        """Step for ever, or until the engine dies."""
        try:
            while not self.dead:
                async with self._changed:
                    await self._changed.wait_for(self._runnable)
                async with self._between_steps:
                    if batch := self._runnable():
                        self._preempt([r for r in self.requests if r.holds_cache and r not in batch])
                        for request in batch:
                            request.holds_cache = True
                        await self._step(batch)
                await self._announce()
                await asyncio.sleep(self._token_seconds)
        finally:
            self._die()  # nobody shall wait for steps that do not come

    async def generate(
        self, request_id: str, prompt: tuple[int, ...], params: Mapping[str, Any], adapter: FakeAdapter | None = None
    ) -> CoreRequest:
        """Queue a request and return it finished. Raises EngineDead. A cancelled caller takes its request along."""
        if self.dead:
            raise EngineDead
        seed = params.get("seed")
        request = CoreRequest(
            request_id=request_id,
            prompt=prompt,
            params=params,
            script=deque(self._script(prompt, random.Random(request_id))) if self._script else None,
            generator=torch.Generator().manual_seed(
                zlib.crc32(f"{self._seed}:{request_id}".encode()) if seed is None else int(seed)
            ),
            finished=asyncio.get_running_loop().create_future(),
            adapter=adapter,
        )
        self.requests.append(request)
        await self._announce()
        try:
            self.finished[await request.finished] += 1
        finally:
            if request in self.requests:
                self.requests.remove(request)
                await self._announce()
        return request

    async def pause(self, mode: PauseMode) -> None:
        async with self._between_steps:
            self.paused = mode
            self._draining = set(self.requests) if mode == "wait" else set()
            if mode == "abort":
                for request in self.requests:
                    _finish(request, "abort")
                self.requests.clear()
            if mode == "keep":  # the cache is cleared, for which vLLM preempts what runs
                self._preempt([request for request in self.requests if request.holds_cache])
        await self._announce()
        if mode == "wait":
            async with self._changed:
                await self._changed.wait_for(lambda: not self._draining.intersection(self.requests))

    async def resume(self) -> None:
        self.paused = None
        await self._announce()

    async def start_update(self) -> None:
        async with self._between_steps:
            if self._update_active:
                raise RuntimeError(
                    "start_weight_update called while a weight update is already active. "
                    "Call finish_weight_update first."
                )
            self._update_active, self._whole_after_update = True, self._weights_whole
            self._weights_whole = False  # a step from now on computes garbage

    async def update(self, info: Mapping[str, Any], *, ignore: bool = False, keep_head: bool = False) -> None:
        """Load `info["path"]`. A failure ends the session with the weights still in pieces, as in vLLM."""
        async with self._between_steps:
            if not self._update_active:
                raise RuntimeError("start_weight_update must be called before update_weights.")
            try:
                if not ignore:
                    await asyncio.to_thread(self.model.load, info["path"], keep_head=keep_head)
            except BaseException:
                self._update_active = False
                raise
            self._whole_after_update = True

    async def finish_update(self, version: str | None) -> None:
        async with self._between_steps:
            if not self._update_active:
                raise RuntimeError("finish_weight_update called without a matching start_weight_update.")
            self._update_active, self._weights_whole = False, self._whole_after_update
            if version is not None:
                self.version = version

    @property
    def running(self) -> int:
        return sum(request.holds_cache for request in self.requests)

    @property
    def kv_usage(self) -> float:
        return sum(request.blocks for request in self.requests if request.holds_cache) / self.kv_blocks

    def _runnable(self) -> list[CoreRequest]:
        """As many of the oldest as have room in the KV cache, but one at least."""
        candidates = self.requests
        if self.paused is not None:
            candidates = [request for request in candidates if request in self._draining]
        batch: list[CoreRequest] = []
        blocks, used = 0, set[FakeAdapter]()
        most = self.adapters.limits.max_loras if self.adapters.limits else 0
        for request in candidates[: self.max_num_seqs]:
            if request.adapter is not None and len(used | {request.adapter}) > most:
                continue  # until one of the others is not needed any more
            blocks += request.blocks
            if batch and blocks > self.kv_blocks:
                break
            batch.append(request)
            if request.adapter is not None:
                used.add(request.adapter)
        return batch

    def _preempt(self, requests: Sequence[CoreRequest]) -> None:
        """Take the cache from requests; what it held will be computed again."""
        for request in requests:
            request.holds_cache = False
            self.preemptions += 1

    async def _announce(self) -> None:
        async with self._changed:
            self._changed.notify_all()

    async def _step(self, batch: list[CoreRequest]) -> None:
        if not self._weights_whole:
            self._die()
            return
        for request, probabilities, logprobs in await asyncio.to_thread(self._distributions, batch):
            token = _choose(request, probabilities)
            request.token_ids.append(token)
            request.logprobs.append((float(logprobs[token]), int((logprobs > logprobs[token]).sum()) + 1))
            request.versions.append(self.version)
            self.generated_tokens += 1
            if reason := self._finish_reason(request, token):
                _finish(request, reason)
                if request in self.requests:
                    self.requests.remove(request)

    def _distributions(self, batch: list[CoreRequest]) -> list[tuple[CoreRequest, torch.Tensor, torch.Tensor]]:
        """What each request samples from, and what is told of it."""
        found: list[tuple[CoreRequest, torch.Tensor, torch.Tensor]] = []
        for adapter in dict.fromkeys(request.adapter for request in batch):
            mine = [request for request in batch if request.adapter is adapter]
            with adapted(self.model.module, adapter):
                sampled, reported = self.model.distributions(
                    [[*request.prompt, *request.token_ids] for request in mine],
                    [request.params.get("temperature", 1.0) for request in mine],
                )
            found += zip(mine, sampled, reported, strict=True)
        return found

    def _finish_reason(self, request: CoreRequest, token: int) -> Literal["stop", "length"] | None:
        if token in self.model.end_tokens and not request.params.get("ignore_eos"):
            return "stop"
        if token in request.params.get("stop_token_ids", ()):
            request.stop_reason = token
            return "stop"
        length, limit = len(request.token_ids), request.params.get("max_tokens")
        if length == limit or len(request.prompt) + length >= self.max_model_len:
            return "length"
        return "stop" if request.script is not None and not request.script else None

    def _die(self) -> None:
        self.dead = True
        for request in self.requests:
            if not request.finished.done():
                request.finished.set_exception(EngineDead())


def _choose(request: CoreRequest, logprobs: torch.Tensor) -> int:
    if request.script is not None:
        return request.script.popleft()
    if request.params.get("temperature", 1.0) == 0.0:
        return int(logprobs.argmax())
    return int(torch.multinomial(logprobs.double().exp(), 1, generator=request.generator))


def _finish(request: CoreRequest, reason: str) -> None:
    if not request.finished.done():
        request.finished.set_result(reason)
