"""LoRA adapters inside a fake engine, with vLLM 0.32's rules for them: what is refused, and in which words.

A name is a request's way to an adapter. Unloading one forgets the name only: requests under way end on what they began
with. Nothing is cached, so what vLLM may read from the folder again later is here read once.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from safetensors.torch import load_file
from torch import Tensor, nn

_PREFIX, _DOWN, _UP = "base_model.model.", ".lora_A.weight", ".lora_B.weight"


class AdapterRefused(Exception):
    """As vLLM answers it: status, and the message."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status


@dataclass(frozen=True, eq=False)
class FakeAdapter:
    name: str
    path: str
    deltas: Mapping[str, Tensor]
    """Parameter of the model to what the adapter adds to it."""


@dataclass(frozen=True, slots=True)
class AdapterLimits:
    """Of a server that was started with --enable-lora."""

    max_rank: int = 16
    max_loras: int = 1


class FakeAdapters:
    """base_name: what the model itself is called. limits: None without --enable-lora."""

    def __init__(self, model: nn.Module, base_name: str, limits: AdapterLimits | None) -> None:
        self.limits = limits
        self.loaded: dict[str, FakeAdapter] = {}
        self._model, self._base_name = model, base_name

    def named(self, model: str | None) -> FakeAdapter | None:
        """What a request's `model` means; None: the model itself. Raises AdapterRefused."""
        if model is None or model == self._base_name:
            return None
        if model not in self.loaded:
            raise AdapterRefused(404, f"The model `{model}` does not exist. Valid aliases: {self._base_name}.")
        return self.loaded[model]

    def load(self, name: str, path: str, *, ignore: bool = False) -> None:
        """ignore: go on with the model itself, under the name. Raises AdapterRefused."""
        if name == self._base_name:
            raise AdapterRefused(400, f"The lora adapter '{name}' conflicts with a served base model.")
        if name in self.loaded:
            raise AdapterRefused(
                400,
                f"The lora adapter '{name}' has already been loaded. If you want to load the adapter in place, set "
                "'load_inplace' to True.",
            )
        deltas = self._read(name, Path(path))
        self.loaded[name] = FakeAdapter(name, path, {} if ignore else deltas)

    def unload(self, name: str) -> None:
        if self.loaded.pop(name, None) is None:
            raise AdapterRefused(404, f"The lora adapter '{name}' cannot be found.")

    def _read(self, name: str, folder: Path) -> dict[str, Tensor]:
        limits = self.limits
        if limits is None:
            raise AdapterRefused(500, "Call to add_lora method failed: LoRA is not enabled")
        try:
            facts = json.loads((folder / "adapter_config.json").read_text())
            tensors = load_file(str(folder / "adapter_model.safetensors"))
        except FileNotFoundError:
            raise AdapterRefused(404, f"Loading lora {name} failed: No adapter found for <path>") from None
        if facts.get("modules_to_save"):
            raise AdapterRefused(500, f"Unsupported modules_to_save: {facts['modules_to_save']}")
        if facts["r"] > limits.max_rank:
            raise AdapterRefused(500, f"LoRA rank {facts['r']} is greater than max_lora_rank {limits.max_rank}.")
        scale = facts["lora_alpha"] / (facts["r"] ** 0.5 if facts.get("use_rslora") else facts["r"])
        weights = dict(self._model.named_parameters())
        deltas = {}
        for key in (key for key in tensors if key.endswith(_DOWN)):
            stem = key.removesuffix(_DOWN)
            target = f"{stem.removeprefix(_PREFIX)}.weight"
            if target not in weights or target.startswith(("lm_head", "model.embed_tokens")):
                raise AdapterRefused(500, f"While loading {folder}, expected other target modules but received {stem}.")
            deltas[target] = scale * (tensors[stem + _UP].float() @ tensors[key].float())
        return deltas


@contextmanager
def adapted(model: nn.Module, adapter: FakeAdapter | None) -> Iterator[None]:
    """Inside, the model has the adapter's weights; None: its own."""
    if adapter is None:
        yield
        return
    weights = dict(model.named_parameters())
    own = {name: weights[name].data for name in adapter.deltas}
    try:
        for name, delta in adapter.deltas.items():
            weights[name].data = own[name] + delta
        yield
    finally:
        for name, tensor in own.items():
            weights[name].data = tensor
