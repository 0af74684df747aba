"""The routes of a fake engine, each a few lines between a request and the core.

Everything vLLM serves only in its development mode is listed apart from what it always serves.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Any, NoReturn

from aiohttp import web

from asyncgrpo.generation.request import LOAD_ADAPTER, UNLOAD_ADAPTER
from asyncgrpo.testing import fake_answers
from asyncgrpo.testing.fake_core import FakeCore
from asyncgrpo.testing.faults import FINISH, GENERATE, START, UPDATE, Fault, spoil


async def never() -> NoReturn:
    await asyncio.Event().wait()
    raise AssertionError("unreachable")


@dataclass(frozen=True, slots=True)
class Call:
    """One request as it came in."""

    path: str
    query: Mapping[str, str]
    body: Mapping[str, Any]
    at: float
    """Monotonic seconds."""
    fault: Fault | None
    """What goes wrong with this one, if anything."""


Handler = Callable[[Call], Awaitable[web.Response]]


class Routes:
    def __init__(self, core: FakeCore, model: str) -> None:
        self._core = core
        self._model = model

    def table(self, *, scale_out: bool, dev_mode: bool, runtime_adapters: bool) -> dict[tuple[str, str], Handler]:
        """Method and path to handler, of a server started with these settings."""
        always: dict[tuple[str, str], Handler] = {
            ("GET", "/health"): self._health,
            ("GET", "/metrics"): self._metrics,
            ("GET", "/v1/models"): self._models,
            ("POST", GENERATE): self._generate if scale_out else self._scale_out_disabled,
        }
        if runtime_adapters:
            always[("POST", LOAD_ADAPTER)] = self._load_adapter
            always[("POST", UNLOAD_ADAPTER)] = self._unload_adapter
        self._has_adapter_routes = runtime_adapters
        development: dict[tuple[str, str], Handler] = {
            ("POST", "/pause"): self._pause,
            ("POST", "/resume"): self._resume,
            ("GET", "/is_paused"): self._is_paused,
            ("POST", "/init_weight_transfer_engine"): self._init_weight_transfer,
            ("POST", START): self._start_update,
            ("POST", UPDATE): self._update,
            ("POST", FINISH): self._finish_update,
            ("POST", "/update_weight_version"): self._set_version,
            ("GET", "/weight_info"): self._weight_info,
            ("GET", "/get_world_size"): self._world_size,
            ("GET", "/server_info"): self._server_info,
        }
        return {**always, **development} if dev_mode else always

    async def _generate(self, call: Call) -> web.Response:
        body = call.body
        prompt, params = fake_answers.read_generate(body, self._core)
        adapter = self._core.adapters.named(body.get("model"))
        finished = await self._core.generate(body["request_id"], prompt, params, adapter)
        answer = fake_answers.generate_answer(finished, self._model)
        if call.fault is not None:
            answer = spoil(answer, call.fault.kind)
        return web.json_response(answer)

    async def _load_adapter(self, call: Call) -> web.Response:
        name, path = (fake_answers.field(call.body, key, str) for key in ("lora_name", "lora_path"))
        await self._alive()
        self._core.adapters.load(name, path, ignore=call.fault is not None and call.fault.kind == "ignore")
        return web.Response(text=f"Success: LoRA adapter '{name}' added successfully.")

    async def _unload_adapter(self, call: Call) -> web.Response:
        name = fake_answers.field(call.body, "lora_name", str)
        self._core.adapters.unload(name)
        return web.Response(text=f"Success: LoRA adapter '{name}' removed successfully.")

    async def _scale_out_disabled(self, call: Call) -> web.Response:
        return fake_answers.error(
            403, "Scale-out endpoints are disabled. Restart vllm serve with --enable-scale-out to enable them."
        )

    async def _health(self, call: Call) -> web.Response:
        return web.Response(status=503 if self._core.dead else 200)

    async def _metrics(self, call: Call) -> web.Response:
        return web.Response(text=fake_answers.metrics(self._core, self._model))

    async def _models(self, call: Call) -> web.Response:
        return web.json_response(fake_answers.models(self._core, self._model))

    async def _server_info(self, call: Call) -> web.Response:
        has_routes = self._has_adapter_routes
        return web.json_response(fake_answers.server_info(self._core, self._model, has_adapter_routes=has_routes))

    async def _pause(self, call: Call) -> web.Response:
        mode = call.query.get("mode", "abort")
        if mode not in ("abort", "wait", "keep"):
            raise fake_answers.BadRequest(f"Input should be 'abort', 'wait' or 'keep', got {mode!r}")
        await self._core.pause(mode)  # type: ignore[arg-type]  # mypy does not narrow by `in`
        return web.json_response({"status": "paused"})

    async def _resume(self, call: Call) -> web.Response:
        await self._core.resume()
        return web.json_response({"status": "resumed"})

    async def _is_paused(self, call: Call) -> web.Response:
        return web.json_response({"is_paused": self._core.paused is not None})

    async def _init_weight_transfer(self, call: Call) -> web.Response:
        fake_answers.field(call.body, "init_info", dict)
        return web.json_response({"message": "Weight transfer initialized"})

    async def _start_update(self, call: Call) -> web.Response:
        await self._alive()
        await self._core.start_update()
        return web.json_response({"message": "Weight update started"})

    async def _update(self, call: Call) -> web.Response:
        await self._alive()
        info = fake_answers.field(call.body, "update_info", dict)
        kind = call.fault.kind if call.fault is not None else None
        await self._core.update(info, ignore=kind == "ignore", keep_head=kind == "old_head")
        return web.json_response({"message": "Weights updated"})

    async def _finish_update(self, call: Call) -> web.Response:
        await self._alive()
        await self._core.finish_update(call.body.get("weight_version"))
        return web.json_response({"message": "Weight update finished"})

    async def _set_version(self, call: Call) -> web.Response:
        self._core.version = fake_answers.field(call.body, "new_version", str)
        return web.json_response({"success": True, "new_version": self._core.version})

    async def _weight_info(self, call: Call) -> web.Response:
        return web.json_response({"weight_version": self._core.version})

    async def _world_size(self, call: Call) -> web.Response:
        return web.json_response({"world_size": 1})

    async def _alive(self) -> None:
        if self._core.dead:  # vLLM's server then waits for its engine for ever
            await never()
