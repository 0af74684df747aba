"""An engine that computes nothing: answers vLLM's routes with bytes made beforehand, at a steady pace.

    python scripts/benchmarks/canned_engine.py --tokens 512 --rate 1700 --incarnation run.0

Prints its URL, then serves until it is ended. A raw asyncio protocol, so that what is measured on the other side is the
orchestrator and not this. Only well-formed HTTP/1.1 with Content-Length is read.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import math
import random
import time
from collections import deque
from typing import Any

GENERATE = "/inference/v1/generate"
VARIANTS = 16
"""Different answers, so that the samples of a group differ."""
TICK_SECONDS = 0.002
VOCAB = 97
"""Below it the tests' tokenizer has ASCII, so that completions are text as models write it."""


class CannedEngine:
    """State behind all connections. rate: completions per second, None: all that are due, which they are `latency`
    seconds after they were asked for. vocab: token ids are below it."""

    def __init__(self, *, tokens: int, vocab: int, rate: float | None, latency: float = 0.0, seed: int = 0) -> None:
        self._answers = [answer(tokens, vocab, random.Random(seed + i)) for i in range(VARIANTS)]
        self._rate, self._latency = rate, latency
        self._waiting: deque[tuple[float, asyncio.Transport]] = deque()
        """When each is due, the oldest first."""
        self._version = b"default"
        self._tokens = tokens
        self.answered = 0

    async def pace(self) -> None:
        """Answer the oldest requests, `rate` per second. What nobody asked for is not made up for later."""
        due, last = 0.0, time.monotonic()
        while True:
            await asyncio.sleep(TICK_SECONDS)
            now = time.monotonic()
            due = min(due + (math.inf if self._rate is None else self._rate * (now - last)), len(self._waiting))
            last = now
            while due >= 1.0 and self._waiting[0][0] <= now:
                self._answer(self._waiting.popleft()[1])
                due -= 1.0

    def handle(self, path: str, body: bytes, transport: asyncio.Transport) -> None:
        if path == GENERATE:
            self._waiting.append((time.monotonic() + self._latency, transport))
            return
        reply: dict[str, Any] = {}
        if path == "/finish_weight_update":
            self._version = json.loads(body)["weight_version"].encode()
        elif path == "/update_weight_version":
            self._version = json.loads(body)["new_version"].encode()
        elif path == "/get_world_size":
            reply = {"world_size": 1}
        elif path == "/is_paused":
            reply = {"is_paused": False}
        elif path == "/weight_info":
            reply = {"weight_version": self._version.decode()}
        text = self._metrics() if path == "/metrics" else json.dumps(reply).encode()
        transport.write(_head(len(text)) + text)

    def _answer(self, transport: asyncio.Transport) -> None:
        if transport.is_closing():
            return
        before, after = self._answers[self.answered % VARIANTS]
        self.answered += 1
        size = len(before) + len(self._version) + len(after)
        transport.writelines([_head(size), before, self._version, after])

    def _metrics(self) -> bytes:
        values = {
            "generation_tokens_total": self.answered * self._tokens,
            "num_requests_running": len(self._waiting),
            "num_requests_waiting": 0,
            "kv_cache_usage_perc": 0.5,
            "num_preemptions_total": 0,
        }
        return "".join(f'vllm:{name}{{engine="0"}} {float(value)}\n' for name, value in values.items()).encode()


class Connection(asyncio.Protocol):
    def __init__(self, engine: CannedEngine) -> None:
        self._engine = engine
        self._data = bytearray()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        transport.set_write_buffer_limits(high=2**24)
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        self._data += data
        while (end := self._data.find(b"\r\n\r\n")) >= 0:
            head = bytes(self._data[:end])
            size = _content_length(head)
            if len(self._data) < end + 4 + size:
                return
            body = bytes(self._data[end + 4 : end + 4 + size])
            del self._data[: end + 4 + size]
            path = head.split(b" ", 2)[1].split(b"?")[0].decode()
            self._engine.handle(path, body, self._transport)


def answer(tokens: int, vocab: int, rng: random.Random) -> tuple[bytes, bytes]:
    """A 200 answer of vLLM's generate route, cut where the weight version belongs."""
    entries = [
        {"token_id": rng.randrange(3, vocab), "logprob": -rng.expovariate(1.0), "rank": 1} for _ in range(tokens)
    ]
    choice = {
        "index": 0,
        "finish_reason": "length",
        "token_ids": [entry["token_id"] for entry in entries],
        "weight_versions": [{"version": "@", "start": 0, "end": tokens}],
        "logprobs": {"content": [{**entry, "top_logprobs": [entry]} for entry in entries]},
    }
    usage = {"prompt_tokens": 4, "completion_tokens": tokens, "total_tokens": tokens + 4}
    body = {"request_id": "generate-tokens-canned", "model": "policy", "created": 1, "output_mode": "tokens"}
    text = json.dumps(body | {"usage": usage, "choices": [choice]}, separators=(",", ":")).encode()
    before, _, after = text.partition(b"@")
    return before, after


def _head(size: int) -> bytes:
    return b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n" % size


def _content_length(head: bytes) -> int:
    for line in head.lower().split(b"\r\n"):
        if line.startswith(b"content-length:"):
            return int(line[15:])
    return 0


async def serve(arguments: argparse.Namespace) -> None:
    engine = CannedEngine(
        tokens=arguments.tokens, vocab=arguments.vocab, rate=arguments.rate, latency=arguments.latency
    )
    server = await asyncio.get_running_loop().create_server(
        lambda: Connection(engine), "127.0.0.1", arguments.port, backlog=8192
    )
    port = server.sockets[0].getsockname()[1]
    print(f"http://127.0.0.1:{port}", flush=True)
    await engine.pace()


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--tokens", type=int, default=512)
    parser.add_argument("--vocab", type=int, default=VOCAB)
    parser.add_argument("--rate", type=float)
    parser.add_argument("--latency", type=float, default=0.0)
    parser.add_argument("--port", type=int, default=0)
    asyncio.run(serve(parser.parse_args()))


if __name__ == "__main__":
    main()
