"""What a fake engine reads and writes: vLLM 0.32's request checks, answers and error shapes. Pure."""

from __future__ import annotations

import itertools
import time
from collections.abc import Mapping
from typing import Any, TypeVar

from aiohttp import web

from asyncgrpo.generation.request import RUNTIME_ADAPTERS
from asyncgrpo.testing.fake_core import FakeCore
from asyncgrpo.testing.fake_request import CoreRequest

T = TypeVar("T")


class BadRequest(Exception):
    """The client's fault: answered with 400."""


def error(status: int, message: str) -> web.Response:
    kind = "BadRequestError" if status < 500 else "InternalServerError"
    return web.json_response(
        {"error": {"message": message, "type": kind, "param": None, "code": status}}, status=status
    )


def field(body: Mapping[str, Any], name: str, kind: type[T]) -> T:
    """A required field. Raises BadRequest."""
    value = body.get(name)
    if not isinstance(value, kind):
        raise BadRequest(f"1 validation error: {{'type': 'missing', 'loc': ('body', '{name}')}}")
    return value


def read_generate(body: Mapping[str, Any], core: FakeCore) -> tuple[tuple[int, ...], Mapping[str, Any]]:
    """Prompt and sampling parameters of a generate request. Raises BadRequest as vLLM does."""
    prompt, params = field(body, "token_ids", list), field(body, "sampling_params", dict)
    request_id = field(body, "request_id", str)
    if not prompt:
        raise BadRequest("List should have at least 1 item after validation, not 0")
    if max(prompt) >= core.model.vocab_size or min(prompt) < 0:
        raise BadRequest(f"Token id {max(prompt)} is out of vocabulary")
    if len(prompt) >= core.max_model_len:
        raise BadRequest(
            f"This model's maximum context length is {core.max_model_len} tokens. However, your request has "
            f"{len(prompt)} input tokens. Please reduce the length of the input messages."
        )
    if params.get("n", 1) != 1:
        raise BadRequest(f"this fake engine serves n=1 only, got n={params['n']}")
    if not 0.0 <= params.get("temperature", 1.0) <= 2.0:
        raise BadRequest(f"temperature must be in [0, 2], got {params['temperature']}.")
    if (params.get("max_tokens") or 1) < 1:
        raise BadRequest(f"max_tokens must be at least 1, got {params['max_tokens']}.")
    if any(request.request_id == request_id for request in core.requests):
        raise BadRequest(f"Request id {request_id} already running.")
    return tuple(prompt), params


def generate_answer(request: CoreRequest, model: str) -> dict[str, Any]:
    entries = [
        {"token_id": token, "logprob": value, "rank": rank}
        for token, (value, rank) in zip(request.token_ids, request.logprobs, strict=True)
    ]
    with_logprobs = request.params.get("logprobs") is not None
    prompt, completion = len(request.prompt), len(request.token_ids)
    choice = {
        "index": 0,
        "finish_reason": request.finished.result(),
        "stop_reason": request.stop_reason,
        "token_ids": list(request.token_ids),
        "weight_versions": version_spans(request.versions),
        "logprobs": {"content": [{**entry, "top_logprobs": [entry]} for entry in entries]} if with_logprobs else None,
    }
    return {
        "request_id": f"generate-tokens-{request.request_id}",
        "model": model if request.adapter is None else request.adapter.name,
        "created": int(time.time()),
        "output_mode": "tokens",
        "usage": {"prompt_tokens": prompt, "completion_tokens": completion, "total_tokens": prompt + completion},
        "choices": [choice],
    }


def version_spans(versions: list[str]) -> list[dict[str, Any]]:
    """Version of each token to `[{"version", "start", "end"}]`."""
    spans: list[dict[str, Any]] = []
    for version, tokens in itertools.groupby(versions):
        start = spans[-1]["end"] if spans else 0
        spans.append({"version": version, "start": start, "end": start + len(list(tokens))})
    return spans


def metrics(core: FakeCore, model: str) -> str:
    labels = f'engine="0",model_name="{model}"'
    running = core.running
    lines = [
        "# HELP vllm:generation_tokens_total Number of generation tokens processed.",
        "# TYPE vllm:generation_tokens_total counter",
        f"vllm:generation_tokens_total{{{labels}}} {float(core.generated_tokens)}",
        "# TYPE vllm:num_requests_running gauge",
        f"vllm:num_requests_running{{{labels}}} {float(running)}",
        "# TYPE vllm:num_requests_waiting gauge",
        f"vllm:num_requests_waiting{{{labels}}} {float(len(core.requests) - running)}",
        "# TYPE vllm:kv_cache_usage_perc gauge",
        f"vllm:kv_cache_usage_perc{{{labels}}} {core.kv_usage}",
        "# TYPE vllm:num_preemptions_total counter",
        f"vllm:num_preemptions_total{{{labels}}} {float(core.preemptions)}",
        "# TYPE vllm:request_success_total counter",
    ]
    for reason in ("stop", "length", "abort"):
        value = float(core.finished[reason])
        lines.append(f'vllm:request_success_total{{{labels},finished_reason="{reason}"}} {value}')
    return "\n".join(lines) + "\n"


def models(core: FakeCore, model: str) -> dict[str, Any]:
    entry = {"id": model, "object": "model", "owned_by": "vllm", "root": model, "max_model_len": core.max_model_len}
    adapters = [
        {"id": name, "object": "model", "owned_by": "vllm", "root": adapter.path, "parent": model}
        for name, adapter in core.adapters.loaded.items()
    ]
    return {"object": "list", "data": [entry, *adapters]}


def server_info(core: FakeCore, model: str, *, has_adapter_routes: bool) -> dict[str, Any]:
    """The few settings of the hundreds in vLLM's answer that a client has reason to check."""
    limits = core.adapters.limits
    model_config = {
        "model": model,
        "dtype": core.model.dtype,
        "max_model_len": core.max_model_len,
        "logprobs_mode": core.model.logprobs_mode,
        "hf_overrides": core.model.hf_overrides,
    }
    return {
        "vllm_config": {
            "model_config": model_config,
            "scheduler_config": {"max_num_seqs": core.max_num_seqs},
            "weight_transfer_config": {"backend": core.transfer_backend},
            "lora_config": limits and {"max_lora_rank": limits.max_rank, "max_loras": limits.max_loras},
        },
        "vllm_env": {"VLLM_SERVER_DEV_MODE": True, RUNTIME_ADAPTERS: has_adapter_routes},
        "system_env": {},
    }
