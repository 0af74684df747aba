"""What a generate request says, and what it means when a request is refused. Pure."""

from __future__ import annotations

from typing import Any

from asyncgrpo.config.sections import GenerationSection
from asyncgrpo.errors import EngineError, EngineRejected, EngineUnavailable, ForeignWeights
from asyncgrpo.generation.response import server_text

GENERATE = "/inference/v1/generate"
LOAD_ADAPTER, UNLOAD_ADAPTER = "/v1/load_lora_adapter", "/v1/unload_lora_adapter"
RUNTIME_ADAPTERS = "VLLM_ALLOW_RUNTIME_LORA_UPDATING"
"""Environment variable with which vLLM has these routes."""
TRANSIENT = (408, 429)
ALWAYS_THERE = (GENERATE, "/health", "/metrics", "/v1/models")
"""Routes that vLLM serves without its development mode."""


def sampling_params(
    generation: GenerationSection, max_tokens: int, temperature: float | None, *, ignore_eos: bool
) -> dict[str, Any]:
    """All that changes the distribution is said: what is left out would come from the server's own defaults.

    temperature: absent, the configuration's.
    """
    return {
        "n": 1,
        "temperature": generation.temperature if temperature is None else temperature,
        "top_p": generation.top_p,
        "top_k": generation.top_k,
        "min_p": generation.min_p,
        "repetition_penalty": 1.0,
        "presence_penalty": 0.0,
        "frequency_penalty": 0.0,
        "max_tokens": max_tokens,
        "logprobs": 0,  # the sampled token's only
        "stop_token_ids": list(generation.stop_token_ids),
        "ignore_eos": ignore_eos,
        "detokenize": False,
    }


def refusal(
    engine: str, base_url: str, path: str, status: int, answer: bytes, adapter: str | None = None
) -> EngineError:
    """The error of an answer whose status is not 2xx, in the engine's own words. adapter: what the request named."""
    said = f"engine {engine} answered {status} at {base_url}{path}: {server_text(answer)}"
    if status >= 500 or status in TRANSIENT:
        return EngineUnavailable(said)
    if status == 401:
        return EngineRejected(f"{said} (it was started with --api-key: name its variable by engines.api_key_env)")
    if status == 403 and path == GENERATE:
        return EngineRejected(f"{said} (start vLLM with --enable-scale-out)")
    if status == 404 and adapter is not None:
        return ForeignWeights(f"{said} (it has lost adapter {adapter!r})")
    if status == 404 and path in (LOAD_ADAPTER, UNLOAD_ADAPTER):
        has_route = server_text(answer) != "Not Found"
        remedy = "it must see weights.shared_memory_dir" if has_route else f"start vLLM with {RUNTIME_ADAPTERS}=True"
        return EngineRejected(f"{said} ({remedy})")
    if status == 404 and path not in ALWAYS_THERE:
        return EngineRejected(f"{said} (start vLLM with the environment variable VLLM_SERVER_DEV_MODE=1)")
    return EngineRejected(said)
