"""Checks that an engine's settings are those its log-probabilities are trusted for. For external engines above all."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from asyncgrpo.config import RunConfig
from asyncgrpo.config.transport_checks import LEAST_SLOTS, largest_rank
from asyncgrpo.errors import ConfigError
from asyncgrpo.generation.client import EngineClient
from asyncgrpo.generation.hf_overrides import FLAG, FLOAT32_HEAD, has_float32_head
from asyncgrpo.generation.request import RUNTIME_ADAPTERS

DTYPES = ("float32", "bfloat16")
Check = tuple[str, Any, str, bool]
"""Flag, what was found, what is needed, whether that fits."""


def engine_dtype(info: Mapping[str, Any]) -> str:
    """Type that an engine computes in, as /server_info names it."""
    return str(info.get("vllm_config", {}).get("model_config", {}).get("dtype")).removeprefix("torch.")


async def with_dtype_of(clients: Sequence[EngineClient], config: RunConfig) -> RunConfig:
    """The configuration with `engines.dtype=auto` become what the running engines compute in.

    After `verify_settings`. Raises ConfigError if the engines differ.
    """
    if config.engines.dtype != "auto":
        return config
    found = {client.name: engine_dtype(await client.server_info()) for client in clients}
    if len(set(found.values())) > 1:
        listed = ", ".join(f"{name} {dtype}" for name, dtype in found.items())
        raise ConfigError(f"engines compute in different types ({listed}); start all with the same --dtype")
    engines = config.engines.model_copy(update={"dtype": next(iter(found.values()))})
    return config.model_copy(update={"engines": engines})


async def verify_settings(clients: Sequence[EngineClient], config: RunConfig, backend: str | None) -> None:
    """Raises ConfigError listing every setting that does not fit, with the flag that sets it.

    backend: of weight transfer; None where adapters are swapped instead.
    """
    faults: list[str] = []
    for client in clients:
        faults += settings_faults(client, await client.server_info(), config, backend)
    if faults:
        raise ConfigError("\n".join(faults))


def settings_faults(client: EngineClient, info: Mapping[str, Any], config: RunConfig, backend: str | None) -> list[str]:
    """One line per setting of /server_info that differs from what the run needs."""
    settings = info.get("vllm_config", {})
    model = settings.get("model_config", {})
    dtype = engine_dtype(info)
    dtypes = DTYPES if config.engines.dtype == "auto" else (config.engines.dtype,)
    longest = model.get("max_model_len") or 0
    completion = max(config.generation.max_completion_length, config.evaluation.max_completion_length or 0)
    needed = completion + (config.data.max_prompt_length or 1)
    checks: tuple[Check, ...] = (
        (
            "--logprobs-mode",
            model.get("logprobs_mode"),
            "processed_logprobs",
            model.get("logprobs_mode") == "processed_logprobs",
        ),
        ("--dtype", dtype, " or ".join(dtypes), dtype in dtypes),
        *(_transfer_checks(settings, backend) if backend is not None else _adapter_checks(info, config)),
        (
            FLAG,
            json.dumps(model.get("hf_overrides")),
            f"{json.dumps(FLOAT32_HEAD)} (training.cast_lm_head_to_fp32)",
            not config.training.cast_lm_head_to_fp32 or has_float32_head(model, dtype),
        ),
        ("--max-model-len", longest, f"at least {needed}", longest >= needed),
    )
    return [
        f"engine {client.name} at {client.shown_url} runs with {flag} {found}, and the run needs {wanted}"
        for flag, found, wanted, fits in checks
        if not fits
    ]


def _transfer_checks(settings: Mapping[str, Any], backend: str) -> Sequence[Check]:
    found = (settings.get("weight_transfer_config") or {}).get("backend")
    return [("--weight-transfer-config", found, f'{{"backend":"{backend}"}}', found == backend)]


def _adapter_checks(info: Mapping[str, Any], config: RunConfig) -> Sequence[Check]:
    lora = info.get("vllm_config", {}).get("lora_config")
    if not lora:
        return [("--enable-lora", False, "it (weights.transport=lora)", False)]
    rank, slots, needed = lora.get("max_lora_rank") or 0, lora.get("max_loras") or 0, largest_rank(config.lora)
    swaps = bool(info.get("vllm_env", {}).get(RUNTIME_ADAPTERS))
    return [
        (RUNTIME_ADAPTERS, swaps, "True in the environment", swaps),
        ("--max-lora-rank", rank, f"at least {needed} (lora.lora_r)", rank >= needed),
        ("--max-loras", slots, f"at least {LEAST_SLOTS}, one for requests under way", slots >= LEAST_SLOTS),
    ]
