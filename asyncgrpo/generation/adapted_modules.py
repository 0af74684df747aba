"""Which modules an engine makes ready for adapters. Reads the names of a model's tensors, if its folder is here."""

from __future__ import annotations

from pathlib import Path

from safetensors import safe_open

from asyncgrpo.config.transport_checks import ENDS

PLAIN = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")
"""What dense decoders call their linear layers."""


def adapted_modules(model_path: str) -> tuple[str, ...]:
    """For vLLM's --lora-target-modules: the linear layers of a dense decoder; of any other model (), all that vLLM can.

    All that it can includes embeddings and output head, which runs never adapt. Each is then computed twice for every
    token, and vLLM's CPU build copies a matrix of vocabulary x rank for every sample to do so.
    """
    found = {name for file in Path(model_path).glob("*.safetensors") for name in _matrices(file)}
    layers = found.difference(ENDS)
    return tuple(name for name in PLAIN if name in layers) if layers <= set(PLAIN) else ()


def _matrices(file: Path) -> list[str]:
    """Names of the modules whose weight is a matrix."""
    with safe_open(file, framework="numpy") as tensors:
        weights = [name for name in tensors.keys() if name.endswith(".weight")]  # noqa: SIM118
        return [name.split(".")[-2] for name in weights if len(tensors.get_slice(name).get_shape()) == 2]
