"""Loads a snapshot into a vLLM worker: the engine's half of the `shared_memory` transport.

Runs inside vLLM's worker processes, behind vLLM's own weight-transfer protocol. A snapshot is a safetensors file with
Hugging Face checkpoint names; vLLM's layerwise reload fuses, shards and repacks it.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from safetensors import safe_open
from vllm.distributed.weight_transfer.base import (
    WeightTransferEngine,
    WeightTransferInitInfo,
    WeightTransferUpdateInfo,
)
from vllm.model_executor.layers.vocab_parallel_embedding import ParallelLMHead
from vllm.model_executor.model_loader.reload import finalize_layerwise_reload, initialize_layerwise_reload


@dataclass
class InitInfo(WeightTransferInitInfo):
    """Nothing to agree on beforehand: every update names its file."""


@dataclass
class UpdateInfo(WeightTransferUpdateInfo):
    path: str
    """Snapshot file, readable by the worker."""


class SharedMemoryEngine(WeightTransferEngine[InitInfo, UpdateInfo]):
    init_info_cls = InitInfo
    update_info_cls = UpdateInfo

    def init_transfer_engine(self, init_info: InitInfo) -> None:
        pass

    def start_weight_update(self) -> None:
        initialize_layerwise_reload(self.model)

    def receive_weights(self, update_info: UpdateInfo) -> None:
        self.model.load_weights(_tensors(update_info.path))

    def finish_weight_update(self) -> None:
        finalize_layerwise_reload(self.model, self.model_config)
        reprocess_heads(self.model)

    def shutdown(self) -> None:
        pass


def _tensors(path: str) -> Iterator[tuple[str, torch.Tensor]]:
    """In file order, layer by layer: vLLM holds a layer's tensors until the layer is complete."""
    with safe_open(path, framework="pt") as snapshot:
        for name in snapshot.keys():  # noqa: SIM118 (a safetensors handle is not a mapping)
            yield name, snapshot.get_tensor(name)


def reprocess_heads(model: torch.nn.Module) -> None:
    """Repack output heads whose weight is the input embedding's.

    On CPU vLLM packs `lm_head` when the model is loaded; a layerwise reload fills the shared embedding but never
    packs a tied head anew, so it silently keeps the old weights.
    """
    for module in model.modules():
        if isinstance(module, ParallelLMHead):
            module.quant_method.process_weights_after_loading(module)
