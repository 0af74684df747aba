"""Log-probabilities of given tokens, and entropies, from hidden states.

Invariant: the logits of more than one chunk of tokens never exist at once, neither forward nor backward: a vocabulary
of 150,000 makes the float32 logits of a micro-batch larger than the model.

Shapes: N tokens, H hidden, V vocabulary.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

CHUNK_BYTES = 256 * 2**20
"""Size of one chunk's float32 logits."""


def token_logprobs(
    hidden_NH: Tensor, head: nn.Module, targets_N: Tensor, temperature: float, chunk_tokens: int
) -> tuple[Tensor, Tensor]:
    """log softmax(head(hidden) / temperature)[target], and the entropy of that distribution, float32 [N] each.

    All rows of the head count, padded vocabulary included: that is the distribution the engine samples from as well.
    The entropy carries no gradient. Chunks are recomputed in the backward pass.
    """
    pairs = zip(torch.split(hidden_NH, chunk_tokens), torch.split(targets_N, chunk_tokens), strict=True)
    if len(targets_N) <= chunk_tokens or not torch.is_grad_enabled():
        chunks = [_chunk(hidden_CH, head, targets_C, temperature) for hidden_CH, targets_C in pairs]
    else:
        chunks = [
            checkpoint(_chunk, hidden_CH, head, targets_C, temperature, use_reentrant=False, preserve_rng_state=False)
            for hidden_CH, targets_C in pairs
        ]
    return torch.cat([logprob_C for logprob_C, _ in chunks]), torch.cat([entropy_C for _, entropy_C in chunks])


def chunk_tokens(vocabulary: int) -> int:
    """Tokens per chunk."""
    return max(1, CHUNK_BYTES // (4 * vocabulary))


def _chunk(hidden_CH: Tensor, head: nn.Module, targets_C: Tensor, temperature: float) -> tuple[Tensor, Tensor]:
    logits_CV = head(hidden_CH).float() / temperature
    normaliser_C = logits_CV.logsumexp(dim=-1)
    logprob_C = logits_CV.gather(-1, targets_C[:, None]).squeeze(-1) - normaliser_C
    with torch.no_grad():
        entropy_C = normaliser_C - (torch.softmax(logits_CV, dim=-1) * logits_CV).sum(dim=-1)
    return logprob_C, entropy_C
