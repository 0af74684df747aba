"""The policy as one module: token ids in, log-probabilities of chosen tokens out. What DDP wraps."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from asyncgrpo.errors import LearnerError
from asyncgrpo.learning.attention.interface import no_mask
from asyncgrpo.learning.attention.layout import Layout
from asyncgrpo.learning.logprobs import token_logprobs
from asyncgrpo.learning.lora import trained_head
from asyncgrpo.learning.microbatch import MicroBatch


class Policy(nn.Module):
    """A causal language model and how it is computed.

    Shapes: R rows, L tokens of each, N scored tokens; B samples, T completion tokens of the longest.

    Args:
        temperature: what the engine samples at.
        use_bf16: compute in bfloat16 whatever the weights are.
        use_fp32_head: but the head in float32.
        entropy_gradient: the entropy carries a gradient.
    """

    def __init__(
        self,
        model: PreTrainedModel,
        temperature: float,
        *,
        use_bf16: bool = False,
        use_fp32_head: bool = False,
        entropy_gradient: bool = False,
    ) -> None:
        super().__init__()
        self.model = model
        self.temperature = temperature
        self.use_bf16 = use_bf16
        self.use_fp32_head = use_fp32_head
        self.entropy_gradient = entropy_gradient

    def forward(
        self,
        input_ids_RL: Tensor,
        positions_RL: Tensor | None,
        layout: Layout | None,
        rows_N: Tensor,
        columns_N: Tensor,
        targets_N: Tensor,
    ) -> tuple[Tensor, Tensor]:
        """Log-probability and entropy, float32 [N], of `targets_N`, each given all that (row, column) sees.

        With a layout, R is 1 and the row is packed; `positions_RL` are then needed. Without one, rows are sequences
        padded on the right. There is no attention mask: attention is causal, so no scored token sees any padding, and
        without a mask the attention kernels take their fast path.
        """
        with torch.autocast(input_ids_RL.device.type, dtype=torch.bfloat16, enabled=self.use_bf16):
            hidden_RLH = hidden_states(self.model, input_ids_RL, positions_RL, layout)
            return token_logprobs(
                hidden_RLH[rows_N, columns_N],
                trained_head(self.model.get_output_embeddings()),
                targets_N,
                self.temperature,
                fp32_head=self.use_fp32_head,
                entropy_gradient=self.entropy_gradient,
            )

    def grids(self, micro: MicroBatch) -> tuple[Tensor, Tensor]:
        """Log-probabilities and entropies of a micro-batch's trained tokens, [B, T] each, 0 elsewhere."""
        logprobs_N, entropy_N = self(*micro.inputs)
        return micro.padded(logprobs_N), micro.padded(entropy_N)


def hidden_states(
    model: PreTrainedModel, input_ids_RL: Tensor, positions_RL: Tensor | None, layout: Layout | None
) -> Tensor:
    """What the head sees, [R, L, hidden]. Raises LearnerError for an architecture that does not show it."""
    packed: dict[str, Any] = {}
    if layout is not None:
        packed = {"position_ids": positions_RL, "layout": layout, "attention_mask": no_mask(input_ids_RL.device)}
    output = model.base_model(input_ids=input_ids_RL, use_cache=False, **packed)
    hidden_RLH: Tensor | None = getattr(output, "last_hidden_state", None)
    if hidden_RLH is None:
        raise LearnerError(
            f"{type(model).__name__} is not supported: its base model ({type(model.base_model).__name__}) gives no "
            "last hidden states; train a model of another architecture"
        )
    return hidden_RLH
