"""Checks that an engine's settings are those its log-probabilities are trusted for. For external engines above all."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from asyncgrpo.config import RunConfig
from asyncgrpo.errors import ConfigError
from asyncgrpo.generation.client import EngineClient
from asyncgrpo.generation.hf_overrides import FLAG, FLOAT32_HEAD, has_float32_head

DTYPES = ("float32", "bfloat16")


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


async def verify_settings(clients: Sequence[EngineClient], config: RunConfig, backend: str) -> None:
    """Raises ConfigError listing every setting that does not fit, with the flag that sets it."""
    faults: list[str] = []
    for client in clients:
        faults += settings_faults(client, await client.server_info(), config, backend)
    if faults:
        raise ConfigError("\n".join(faults))


def settings_faults(client: EngineClient, info: Mapping[str, Any], config: RunConfig, backend: str) -> list[str]:
    """One line per setting of /server_info that differs from what the run needs."""
    settings = info.get("vllm_config", {})
    model = settings.get("model_config", {})
    transfer = (settings.get("weight_transfer_config") or {}).get("backend")
    dtype = engine_dtype(info)
    dtypes = DTYPES if config.engines.dtype == "auto" else (config.engines.dtype,)
    longest = model.get("max_model_len") or 0
    completion = max(config.generation.max_completion_length, config.evaluation.max_completion_length or 0)
    needed = completion + (config.data.max_prompt_length or 1)
    checks = (
        (
            "--logprobs-mode",
            model.get("logprobs_mode"),
            "processed_logprobs",
            model.get("logprobs_mode") == "processed_logprobs",
        ),
        ("--dtype", dtype, " or ".join(dtypes), dtype in dtypes),
        ("--weight-transfer-config", transfer, f'{{"backend":"{backend}"}}', transfer == backend),
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
