"""Whether adapters can be swapped in engines (`weights.transport=lora`), and what engines are started with for it."""

from __future__ import annotations

import json
import re
from pathlib import Path

from asyncgrpo.config.adapter import ADAPTER_CONFIG
from asyncgrpo.config.root import RunConfig
from asyncgrpo.config.sections import LoraSection
from asyncgrpo.errors import ConfigError

RANKS = (1, 8, 16, 32, 64, 128, 256, 320, 512)
"""What vLLM's --max-lora-rank may be."""
LEAST_SLOTS, MOST_SLOTS = 2, 8
"""Adapters that an engine computes with at once (--max-loras): one for requests under way and one for new ones; and
each takes memory for the largest rank."""
_ENDS = ("lm_head", "embed_tokens", "embed_out", "embed_in", "wte", "wpe", "word_embeddings", "tok_embeddings")
"""What models call their embeddings and their output head. vLLM adapts them in some architectures, and in others takes
them for an error, so none is promised."""


def check_transport(config: RunConfig) -> None:
    """After `with_adapter`. Raises ConfigError for what engines could not be given as an adapter."""
    weights, lora = config.weights, config.lora
    if weights.transport != "lora":
        return
    if not lora.lora_r:
        raise ConfigError(
            "weights.transport=lora publishes adapters, and lora.lora_r=0 trains all weights; set lora.lora_r, or "
            "weights.transport=shared_memory"
        )
    if lora.lora_modules_to_save:
        raise ConfigError(
            f"weights.transport=lora: vLLM swaps no modules that are trained whole (lora.lora_modules_to_save="
            f"{list(lora.lora_modules_to_save)}); leave them out, or set weights.transport=shared_memory, which merges"
        )
    if (end := _adapted_end(lora)) is not None:
        raise ConfigError(
            f"weights.transport=lora: lora.lora_target_modules={_shown(lora)} adapts {end}, and not every model's "
            "embeddings and head can be adapted in vLLM; leave it out, or set weights.transport=shared_memory, which "
            "merges"
        )
    if (rank := largest_rank(lora)) > RANKS[-1]:
        raise ConfigError(
            f"weights.transport=lora: vLLM takes adapters up to rank {RANKS[-1]}, and this run's have {rank}; lower "
            "lora.lora_r, or set weights.transport=shared_memory, which merges"
        )
    if weights.in_flight == "abort_resume":
        raise ConfigError(
            "weights.in_flight=abort_resume cuts completions short when a version is published, and with "
            "weights.transport=lora each ends on the adapter that it began with; leave weights.in_flight out"
        )


def largest_rank(lora: LoraSection) -> int:
    """Of all adapted modules: one that is gone on from may have given some of them a rank of their own."""
    if lora.lora_adapter is None:
        return lora.lora_r
    facts = json.loads((Path(lora.lora_adapter) / ADAPTER_CONFIG).read_text(encoding="utf-8"))
    own: dict[str, int] = facts.get("rank_pattern") or {}
    return max(lora.lora_r, *own.values(), 0)


def engine_rank(lora: LoraSection) -> int:
    """The --max-lora-rank that adapters fit into."""
    rank = largest_rank(lora)
    return next(allowed for allowed in RANKS if allowed >= rank)


def engine_slots(config: RunConfig) -> int:
    """The --max-loras by which requests of all versions that may be under way are computed together: those from
    max_staleness ago to the present one, and one that is being loaded. With fewer, the newest wait for the oldest."""
    return max(LEAST_SLOTS, min(config.buffer.max_staleness + 2, MOST_SLOTS))


def _adapted_end(lora: LoraSection) -> str | None:
    """The first embedding or head that is named by the adapters' targets."""
    targets = lora.lora_target_modules
    if not isinstance(targets, str):
        return next((name for name in targets if name.rpartition(".")[2] in _ENDS), None)
    try:
        return next((name for name in _ENDS if any(map(re.compile(targets).fullmatch, _paths(name)))), None)
    except re.error:
        return None  # the learner says what is wrong with it


def _paths(name: str) -> tuple[str, ...]:
    return (name, f"model.{name}", f"transformer.{name}", f"gpt_neox.{name}")


def _shown(lora: LoraSection) -> str:
    targets = lora.lora_target_modules
    return repr(targets) if isinstance(targets, str) else str(list(targets))
