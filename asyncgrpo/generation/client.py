"""HTTP client of one engine: a vLLM server with its RL routes. Token ids in, token ids out.

Invariant: a request ends within its deadline, in a result or in an error that carries the URL and the engine's own
words: EngineRejected (4xx: repeating will not help), EngineUnavailable (no answer, 5xx, too late, weights of others: it
may), EngineError (an answer that cannot be trusted). Only calls that may be done twice are repeated here, once, after a
dropped connection.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping, Sequence
from types import TracebackType
from typing import Any, Self, TypeVar

import aiohttp
import msgspec

from asyncgrpo.config import RunConfig
from asyncgrpo.config.secrets import masked_url, secret_of
from asyncgrpo.errors import EngineError, EngineSilent, EngineUnavailable
from asyncgrpo.generation.adapters import Adapters
from asyncgrpo.generation.http import ConnectFailed, Http, tls_of
from asyncgrpo.generation.load import EngineLoad, generated_tokens, parse_load
from asyncgrpo.generation.request import GENERATE, refusal, sampling_params
from asyncgrpo.generation.response import Request, excerpt, parse_completion
from asyncgrpo.observe.activity import EngineActivity
from asyncgrpo.types import Completion, InFlight

T = TypeVar("T")
KEEPALIVE_SECONDS = 3.0
"""Shorter than vLLM's own 5 s, so that no request is sent on a connection that the server is closing."""
PAUSE_MODES: Mapping[InFlight, str] = {"keep": "keep", "abort_resume": "abort", "finish": "wait"}
"""weights.in_flight, in vLLM's words."""


class EngineClient:
    """One engine. An async context manager; entering it opens no connection yet.

    url: base URL. name: what metrics, errors and completions call it. incarnation: of this run, for the versions on
    the wire. vocab_size: size of the model's output; token ids from it on are refused. None: not checked.
    """

    def __init__(
        self, url: str, name: str, config: RunConfig, incarnation: str, *, vocab_size: int | None = None
    ) -> None:
        self.url = url.rstrip("/")
        """As it is reached; not for logs: it may hold a login."""
        self.shown_url = masked_url(self.url)
        self.name = name
        self.activity = EngineActivity()
        """Told what the engine does; replaced by whoever wants to know."""
        self._generation = config.generation
        self._control_timeout = config.engines.control_timeout
        self._publish_timeout = config.weights.publish_timeout
        self._incarnation = incarnation
        self._vocab_size = vocab_size
        self._key = secret_of(config.engines.api_key_env, "engines.api_key_env")
        self._encoder = msgspec.json.Encoder()
        self.adapters = Adapters(self._update, self._models, lambda: self.activity.swap())

    @property
    def open_requests(self) -> int:
        """Generate requests without an answer yet."""
        return self.activity.open_requests

    async def __aenter__(self) -> Self:
        tls = tls_of(self.url)
        self._requests = Http(self.url, keepalive=KEEPALIVE_SECONDS, tls=tls, key=self._key)
        # A server closes the connection after an unhandled error: control calls never share one.
        self._control = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(limit=0, force_close=True, ssl=tls or True),
            headers={} if self._key is None else {"Authorization": f"Bearer {self._key}"},
        )
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._requests.close()
        await self._control.close()

    def adopt(self, incarnation: str) -> None:
        """From now on only tokens of this incarnation's versions are taken."""
        self._incarnation = incarnation

    async def generate(
        self,
        token_ids: Sequence[int],
        request_id: str,
        max_tokens: int | None = None,
        temperature: float | None = None,
        *,
        ignore_eos: bool = False,
    ) -> Completion:
        """Sample one completion of `token_ids`. Limits and temperature default to the configuration's.

        request_id: never used before. ignore_eos: go on past the model's end tokens, to measure or to test with lengths
        that are known. Raises as the module says; Aborted when it was cut short.
        """
        max_tokens = self._generation.max_completion_length if max_tokens is None else max_tokens
        with self.activity.request(), self.adapters.request() as adapter:
            body = {
                "request_id": request_id,
                "token_ids": list(token_ids),
                "sampling_params": sampling_params(self._generation, max_tokens, temperature, ignore_eos=ignore_eos),
                "stream": False,
                **({} if adapter is None else {"model": adapter}),
            }
            request = Request(
                engine=self.name,
                incarnation=self._incarnation,
                max_tokens=max_tokens,
                vocab_size=self._vocab_size,
                started_at=time.monotonic(),
                adapter=adapter,
            )
            status, answer = await self._post(self._encoder.encode(body), request_id)
            if status >= 300:
                raise refusal(self.name, self.shown_url, GENERATE, status, bytes(answer), adapter)
            return parse_completion(answer, request, time.monotonic())

    async def _post(self, body: bytes, request_id: str) -> tuple[int, bytes | memoryview]:
        """Status and body of the answer to a generate request. Raises EngineUnavailable when there is none in time."""
        timeout, what, url = self._generation.request_timeout, f"request {request_id}", self.shown_url + GENERATE
        try:
            async with asyncio.timeout(timeout):
                return await self._requests.post(GENERATE, body)
        except TimeoutError:
            raise EngineUnavailable(f"engine {self.name} did not answer {what} within {timeout:g} s ({url})") from None
        except ConnectFailed as error:
            raise EngineUnavailable(f"engine {self.name} cannot be reached at {url}: {error}") from error
        except ConnectionError as error:
            raise _Dropped(f"engine {self.name} dropped the connection of {what} ({url}): {error}") from error

    async def health(self) -> None:
        """Returns when the engine says that it is well; raises otherwise."""
        await self._call("GET", "/health")

    async def server_info(self) -> dict[str, Any]:
        """The server's resolved configuration and environment."""
        return await self._call_json("GET", "/server_info?config_format=json")

    async def world_size(self) -> int:
        """Worker processes of the engine, over tensor, pipeline and data parallelism."""
        answer = await self._call_json("GET", "/get_world_size")
        return int(self._field(answer, "world_size", int))

    async def load(self) -> EngineLoad:
        """Its queue, its KV cache and its counters, from its /metrics."""
        return await self._metrics(parse_load)

    async def generated_tokens(self) -> int:
        """Tokens the engine has sampled since it started (summed over its ranks)."""
        return await self._metrics(generated_tokens)

    async def _metrics(self, read: Callable[[str], T]) -> T:
        text = (await self._call("GET", "/metrics")).decode(errors="replace")
        try:
            return read(text)
        except ValueError as error:
            raise EngineError(f"engine {self.name} at {self.shown_url}/metrics {error}") from None

    async def pause(self, in_flight: InFlight = "keep") -> None:
        """Stop sampling until `resume`; requests that come meanwhile wait for it.

        in_flight: what becomes of running requests. `keep`: they are frozen, keep their tokens and continue under the
        weights of the moment of `resume`. `abort_resume`: they are answered at once, with what they have. `finish`:
        they end on the old weights, for which the call waits as long as one request may take.
        """
        self.activity.paused()
        # clear_cache is what makes keys and values computed under the old weights go, whatever vLLM's docstring says.
        path = f"/pause?mode={PAUSE_MODES[in_flight]}&clear_cache=true"
        await self._call("POST", path, timeout=self._generation.request_timeout if in_flight == "finish" else None)

    async def resume(self) -> None:
        await self._call("POST", "/resume")
        self.activity.resumed()

    async def is_paused(self) -> bool:
        return bool(self._field(await self._call_json("GET", "/is_paused"), "is_paused", bool))

    async def init_weight_transfer(self, init_info: Mapping[str, Any]) -> None:
        await self._update("/init_weight_transfer_engine", {"init_info": dict(init_info)})

    async def start_weight_update(self) -> None:
        """Begin an update. Only on a paused engine: an unpaused one is destroyed by it."""
        await self._update("/start_weight_update", None)

    async def update_weights(self, info: Mapping[str, Any]) -> None:
        await self._update("/update_weights", {"update_info": dict(info)})

    async def finish_weight_update(self, version: str) -> None:
        """End the update; tokens sampled from now on carry `version` (as `encode_version` writes it)."""
        await self._update("/finish_weight_update", {"weight_version": version})

    async def set_weight_version(self, version: str) -> None:
        """Name the weights that the engine has, for example those it started with."""
        await self._call("POST", "/update_weight_version", body={"new_version": version})

    async def weight_version(self) -> str:
        """Name of the weights that new requests are sampled from."""
        if (adapter := await self.adapters.serving()) is not None:
            return adapter
        return str(self._field(await self._call_json("GET", "/weight_info"), "weight_version", str))

    async def _models(self) -> set[str]:
        """Names that a request can give: of the model, and of the adapters that the engine has."""
        models = self._field(await self._call_json("GET", "/v1/models"), "data", list)
        return {str(model.get("id")) for model in models if isinstance(model, dict)}

    async def _update(self, path: str, body: Mapping[str, Any] | None) -> None:
        # Never repeated here: a second start is refused, a second chunk may land in another session.
        await self._send(self._control, "POST", path, self._publish_timeout, body=body, what=path)

    async def _call(
        self,
        method: str,
        path: str,
        *,
        body: Mapping[str, Any] | None = None,
        timeout: float | None = None,
    ) -> bytes:
        """A control call that does the same when it is done twice. timeout: absent, engines.control_timeout."""
        timeout = self._control_timeout if timeout is None else timeout
        try:
            return await self._send(self._control, method, path, timeout, body=body, what=path)
        except _Dropped:
            return await self._send(self._control, method, path, timeout, body=body, what=path)

    async def _call_json(self, method: str, path: str) -> dict[str, Any]:
        answer = await self._call(method, path)
        try:
            return msgspec.json.decode(answer, type=dict[str, Any])
        except (msgspec.DecodeError, UnicodeDecodeError):
            raise EngineError(f"engine {self.name} answered {path} with no JSON object: {excerpt(answer)}") from None

    def _field(self, answer: Mapping[str, Any], key: str, kind: type) -> Any:
        value = answer.get(key)
        if not isinstance(value, kind):
            raise EngineError(f"engine {self.name} answered {dict(answer)!r}, where a {kind.__name__} {key!r} belongs")
        return value

    async def _send(
        self,
        session: aiohttp.ClientSession,
        method: str,
        path: str,
        timeout: float,
        *,
        what: str,
        body: Mapping[str, Any] | None = None,
    ) -> bytes:
        """One request, one answer of status 2xx; everything else is raised as the module says."""
        url = self.shown_url + path
        data = None if body is None else self._encoder.encode(body)
        headers = {} if data is None else {"Content-Type": "application/json"}
        try:
            async with session.request(
                method,
                self.url + path,
                data=data,
                headers=headers,
                timeout=aiohttp.ClientTimeout(total=timeout),
                allow_redirects=False,  # a login or a key goes to nobody else
            ) as response:
                answer = await response.read()
                status = response.status
        except TimeoutError:
            raise EngineSilent(f"engine {self.name} did not answer {what} within {timeout:g} s ({url})") from None
        except aiohttp.ClientConnectorError as error:
            raise EngineUnavailable(f"engine {self.name} cannot be reached at {url}: {error}") from error
        except (aiohttp.ClientError, ConnectionError) as error:
            detail = str(error) or type(error).__name__
            raise _Dropped(f"engine {self.name} dropped the connection of {what} ({url}): {detail}") from error
        if status < 300:
            return answer
        raise refusal(self.name, self.shown_url, path, status, answer)


class _Dropped(EngineUnavailable):
    """The connection broke after it was made: the engine may or may not have acted on the request."""
