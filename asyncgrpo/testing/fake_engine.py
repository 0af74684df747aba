"""A stand-in for a vLLM server: the routes that asyncgrpo uses, with what a client can see of the real one's behaviour.

    async with FakeEngine(folder) as engine:      # engine.url, engine.calls("/pause"), engine.core.version, ...

or as a process in place of vLLM's (further arguments of vLLM are accepted and ignored):

    python -m asyncgrpo.testing.fake_engine --model FOLDER --port 8000

It samples from a tiny model and answers with true log-probabilities, records every request (a process does not: it may
run for days, and prints the faults instead), and fails as its FaultPlan says. What is known to differ: there is no KV
cache, so nothing is ever computed from stale keys.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import signal
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, Self

from aiohttp import web

from asyncgrpo.generation.request import RUNTIME_ADAPTERS
from asyncgrpo.testing import fake_answers
from asyncgrpo.testing.fake_adapters import AdapterLimits, AdapterRefused, FakeAdapters
from asyncgrpo.testing.fake_core import EngineDead, FakeCore, Script
from asyncgrpo.testing.fake_model import FakeModel
from asyncgrpo.testing.fake_routes import Call, Routes, never
from asyncgrpo.testing.faults import GENERATE, Fault, FaultPlan, plan_from_json
from asyncgrpo.weights.vllm_plugin import BACKEND

GUARDED = ("/v1", "/v2", "/inference", "/cohere")
"""Routes that vLLM's --api-key guards. The control routes are not among them."""


class FakeEngine:
    """script: tokens to "sample" instead of random ones. token_seconds: pause after every step. seed: of the sampling;
    a request with the same id, prompt and weights gives the same completion. scale_out, dev_mode: as vLLM's settings
    of that name. raw_logprobs: as with `--logprobs-mode raw_logprobs`. kv_blocks: size of the KV cache, as with
    `--num-gpu-blocks-override`; requests that outgrow it are preempted. on_death: what the fault "die" does.
    records: keep requests and answers, for tests to look at. api_key: as vLLM's; it guards what vLLM guards with it.
    adapters: as with `--enable-lora`. runtime_adapters: as with VLLM_ALLOW_RUNTIME_LORA_UPDATING.
    """

    def __init__(
        self,
        folder: str | Path,
        *,
        faults: FaultPlan | None = None,
        script: Script | None = None,
        token_seconds: float = 0.0,
        max_num_seqs: int = 64,
        max_model_len: int | None = None,
        seed: int = 0,
        raw_logprobs: bool = False,
        hf_overrides: Mapping[str, Any] | None = None,
        kv_blocks: int = 2**20,
        scale_out: bool = True,
        dev_mode: bool = True,
        transfer_backend: str = BACKEND,
        host: str = "127.0.0.1",
        port: int = 0,
        on_death: Callable[[], None] | None = None,
        records: bool = True,
        api_key: str | None = None,
        adapters: AdapterLimits | None = None,
        runtime_adapters: bool = True,
    ) -> None:
        self.model = FakeModel(folder, raw_logprobs=raw_logprobs)
        self.model.hf_overrides = dict(hf_overrides or {})
        self.folder = str(folder)
        self.host, self.port = host, port
        self.requests: list[Call] = []
        self.answers: dict[str, dict[str, Any]] = {}
        """What was sent for each request id that was answered with 200."""
        self.faults = faults or FaultPlan()
        self._core_settings: dict[str, Any] = dict(
            script=script,
            token_seconds=token_seconds,
            max_num_seqs=max_num_seqs,
            max_model_len=max_model_len or self.model.max_positions,
            seed=seed,
            transfer_backend=transfer_backend,
            kv_blocks=kv_blocks,
        )
        self._scale_out, self._dev_mode, self._runtime_adapters = scale_out, dev_mode, runtime_adapters
        self._adapter_limits = adapters
        self._on_death = on_death or self.close_sockets
        self._records = records
        self._api_key = api_key

    @property
    def url(self) -> str:
        return f"http://{self.host}:{self.port}"

    def calls(self, path: str) -> list[Call]:
        return [call for call in self.requests if call.path == path]

    async def __aenter__(self) -> Self:
        adapters = FakeAdapters(self.model.module, self.folder, self._adapter_limits)
        self.core = FakeCore(self.model, adapters=adapters, **self._core_settings)
        self._routes = Routes(self.core, self.folder).table(
            scale_out=self._scale_out, dev_mode=self._dev_mode, runtime_adapters=self._runtime_adapters
        )
        app = web.Application(client_max_size=2**28)
        app.router.add_route("*", "/{path:.*}", self._handle)
        # A client that hangs up cancels its request, as in vLLM.
        self._runner = web.AppRunner(app, handler_cancellation=True, shutdown_timeout=0.1)
        await self._runner.setup()
        assert self._runner.server is not None
        loop = asyncio.get_running_loop()
        self._server = await loop.create_server(self._runner.server, self.host, self.port)
        self.port = self._server.sockets[0].getsockname()[1]
        self._loop = loop.create_task(self.core.run())
        return self

    async def __aexit__(self, *_: object) -> None:
        self._loop.cancel()
        with suppress(asyncio.CancelledError):
            await self._loop
        self.close_sockets()
        await self._runner.cleanup()

    def close_sockets(self) -> None:
        """What a client sees when the process ends: nobody listens, open connections break."""
        self._server.close()
        assert self._runner.server is not None
        for connection in self._runner.server.connections:
            if connection.transport is not None:
                connection.transport.abort()

    async def _handle(self, request: web.Request) -> web.Response:
        """Records the request, applies faults, and turns failures into the answers that vLLM gives."""
        is_guarded = self._api_key and request.path.startswith(GUARDED)
        if is_guarded and request.headers.get("Authorization") != f"Bearer {self._api_key}":
            return web.json_response({"error": "Unauthorized"}, status=401)
        try:
            body = await request.json() if request.can_read_body else {}
        except json.JSONDecodeError as error:
            return fake_answers.error(400, f"JSON decode error: {error}")
        fault = self.faults.take(request.path, body)
        call = Call(request.path, dict(request.query), body, time.monotonic(), fault)
        if self._records:
            self.requests.append(call)
        elif fault is not None:
            print(f"fault {fault.kind} on {request.path}", flush=True)
        if fault is not None and (answer := await self._misbehave(fault, request)) is not None:
            return answer
        handler = self._routes.get((request.method, request.path))
        if handler is None:
            return web.json_response({"error": {"message": "Not Found", "type": "NotFoundError"}}, status=404)
        try:
            response = await handler(call)
            if request.path == GENERATE and self._records:
                self.answers[body["request_id"]] = json.loads(response.text or "")
            if fault is not None and fault.kind == "lost_answer":
                await _hang_up(request)
            return response
        except EngineDead:
            return fake_answers.error(500, "EngineCore encountered an issue. See stack trace for the root cause.")
        except fake_answers.BadRequest as error:
            return fake_answers.error(400, str(error))
        except AdapterRefused as error:
            return fake_answers.error(error.status, str(error))
        except (RuntimeError, KeyError, ValueError, OSError) as error:
            return fake_answers.error(500, str(error))

    async def _misbehave(self, fault: Fault, request: web.Request) -> web.Response | None:
        match fault.kind:
            case "status":
                return fake_answers.error(fault.status, fault.text)
            case "garbage":
                return web.Response(text=fault.text)
            case "disconnect":
                await _hang_up(request)
            case "hang":
                await never()
            case "slow":
                await asyncio.sleep(fault.seconds)
            case "die":
                self._on_death()
                await never()
        return None


async def _hang_up(request: web.Request) -> None:
    assert request.transport is not None
    request.transport.abort()
    await never()


async def _serve(arguments: argparse.Namespace) -> None:
    stop = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    engine = FakeEngine(
        arguments.model,
        faults=plan_from_json(arguments.faults, os.getpid()),  # a restart shall not fail at the same requests again
        token_seconds=arguments.token_seconds,
        max_num_seqs=arguments.max_num_seqs,
        max_model_len=arguments.max_model_len,
        seed=arguments.seed,
        raw_logprobs=arguments.logprobs_mode == "raw_logprobs",
        hf_overrides=arguments.hf_overrides,
        kv_blocks=arguments.num_gpu_blocks_override,
        scale_out=arguments.enable_scale_out,
        transfer_backend=arguments.weight_transfer_config["backend"],
        dev_mode=os.environ.get("VLLM_SERVER_DEV_MODE") == "1",
        host=arguments.host,
        port=arguments.port,
        on_death=lambda: os._exit(1),
        records=False,
        api_key=os.environ.get("VLLM_API_KEY"),
        adapters=AdapterLimits(arguments.max_lora_rank, arguments.max_loras) if arguments.enable_lora else None,
        runtime_adapters=os.environ.get(RUNTIME_ADAPTERS, "").lower() in ("1", "true"),
    )
    async with engine:
        print(f"fake engine at {engine.url}", flush=True)
        await stop.wait()


def main() -> None:
    parser = argparse.ArgumentParser(allow_abbrev=False)
    parser.add_argument("--model", required=True)
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, default=8000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--max-num-seqs", type=int, default=64)
    parser.add_argument("--max-model-len", type=int)
    parser.add_argument("--num-gpu-blocks-override", type=int, default=2**20)
    parser.add_argument("--logprobs-mode", default="raw_logprobs")
    parser.add_argument("--hf-overrides", type=json.loads)
    parser.add_argument("--weight-transfer-config", type=json.loads, default={"backend": "none"})
    parser.add_argument("--enable-scale-out", action="store_true")
    parser.add_argument("--enable-lora", action="store_true")
    parser.add_argument("--max-lora-rank", type=int, default=16)
    parser.add_argument("--max-loras", type=int, default=1)
    parser.add_argument("--token-seconds", type=float, default=0.0, help="not vLLM's: seconds per step")
    parser.add_argument("--faults", default="[]", help="not vLLM's: JSON list of faults")
    asyncio.run(_serve(parser.parse_known_args()[0]))


if __name__ == "__main__":
    main()
