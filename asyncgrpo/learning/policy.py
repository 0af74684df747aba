"""The policy as one module: token ids in, log-probabilities of chosen tokens out. What DDP wraps."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from asyncgrpo.learning.logprobs import chunk_tokens, token_logprobs


class Policy(nn.Module):
    """A causal language model and the temperature it is sampled at.

    Shapes: B sequences, L tokens of the longest (right-padded), N scored tokens.
    """

    def __init__(self, model: PreTrainedModel, temperature: float, *, use_bf16: bool) -> None:
        super().__init__()
        self.model = model
        self.temperature = temperature
        self.use_bf16 = use_bf16
        head = model.get_output_embeddings()
        self._chunk_tokens = chunk_tokens(head.weight.shape[0])

    def forward(self, input_ids_BL: Tensor, rows_N: Tensor, columns_N: Tensor) -> tuple[Tensor, Tensor]:
        """Log-probability and entropy, float32 [N], of the tokens at (row, column), each given the tokens before it.

        There is no attention mask: attention is causal and padding is on the right, so no scored token sees any, and
        without a mask the attention kernels take their fast path.
        """
        with torch.autocast(input_ids_BL.device.type, dtype=torch.bfloat16, enabled=self.use_bf16):
            hidden_BLH = self.model.base_model(input_ids=input_ids_BL, use_cache=False).last_hidden_state
            return token_logprobs(
                hidden_BLH[rows_N, columns_N - 1],
                self.model.get_output_embeddings(),
                input_ids_BL[rows_N, columns_N],
                self.temperature,
                self._chunk_tokens,
            )
