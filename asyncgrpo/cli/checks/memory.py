"""How much memory a run on CPUs needs, roughly: enough to say so before the kernel ends it.

| part        | what                                                                                          |
|-------------|-----------------------------------------------------------------------------------------------|
| learner     | weights, their gradients and AdamW's two moments; the reference model; of LoRA, the weights    |
| activations | of one forward and backward pass over `token_budget` tokens, or a step's if it has fewer       |
| snapshots   | two versions of the weights, in the engines' type, in shared memory                           |
| engines     | weights and KV cache, each                                                                     |
| processes   | half a GiB each, mostly code: three of an engine, one of a rank, one of the orchestrator       |
"""

from __future__ import annotations

import json
import os
import struct
from pathlib import Path

from asyncgrpo.config import RunConfig
from asyncgrpo.config.resolve import Machine, locate_model
from asyncgrpo.preflight import model_setting

GIB = 2**30
PROCESS = GIB // 2
_BYTES = {"float32": 4, "bfloat16": 2}
_HIDDEN, _INTERMEDIATE = 10, 3
"""Floats kept for the backward pass, per token and layer, for each of a layer's hidden and intermediate ones."""


def estimate(config: RunConfig) -> dict[str, float]:
    """Bytes by part, in the table's order. Weights are 0 where the model is not on this disk."""
    parameters, engines, ranks = (
        parameter_count(config),
        len(config.engines.managed_devices),
        len(config.learner.devices),
    )
    weights, served = parameters * _BYTES[config.model.dtype], parameters * _served_bytes(config)
    copies = (1 if config.lora.lora_r else 4) + (1 if config.objective.beta and not config.lora.lora_r else 0)
    return {
        "learner": ranks * copies * weights,
        "activations": ranks * _activations(config),
        "snapshots": 2.0 * served,
        "engines": engines * (served + config.engines.cpu_kv_cache_gib * GIB),
        "processes": PROCESS * (3.0 * engines + ranks + 1),
    }


def parameter_count(config: RunConfig) -> int:
    """Of the model's weight files, by their headers; by their size, as if in 16 bits, where one has none."""
    folder = Path(locate_model(config.model.path) or os.devnull)
    return sum(_elements(file) for file in folder.glob("*.safetensors"))


def _elements(file: Path) -> int:
    size = file.stat().st_size
    try:
        with file.open("rb") as opened:
            (length,) = struct.unpack("<Q", opened.read(8))
            header = json.loads(opened.read(min(length, size)))
        shapes = [entry["shape"] for name, entry in header.items() if name != "__metadata__"]
    except (struct.error, ValueError, AttributeError, KeyError, TypeError):
        return size // 2
    return sum(_product(shape) for shape in shapes)


def _product(shape: list[int]) -> int:
    count = 1
    for length in shape:
        count *= length
    return count


def _served_bytes(config: RunConfig) -> int:
    """Of a weight, in engines that compute as configured here."""
    dtype = config.engines.dtype
    if dtype == "auto":
        dtype = "bfloat16" if Machine.here().fast_bf16 else "float32"
    return _BYTES[dtype]


def _activations(config: RunConfig) -> float:
    settings = ("num_hidden_layers", "hidden_size", "intermediate_size")
    layers, hidden, intermediate = (model_setting(config, name) or 0 for name in settings)
    group = config.generation.num_generations * config.generation.max_completion_length
    step = config.training.groups_per_step * (group + (config.data.max_prompt_length or 0))
    tokens = min(config.learner.token_budget, step)
    width = _BYTES["bfloat16" if config.training.bf16 else config.model.dtype]
    floats = _HIDDEN * hidden + _INTERMEDIATE * intermediate
    if config.training.gradient_checkpointing:
        return float(tokens * width * (layers * hidden + floats))
    return float(tokens * width * layers * floats)
