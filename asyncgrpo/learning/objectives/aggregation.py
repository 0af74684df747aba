"""Aggregations: the weight of each token's loss, one number per sample. Plain numpy: counted where a batch is made.

The loss is then a plain sum, so any cut of a batch into micro-batches and ranks adds up to it, and rejecting tokens
later never changes a denominator.

Shapes: S samples, of all ranks and minibatches of a step.

| name        | weight of a token                                          | source             |
|-------------|------------------------------------------------------------|--------------------|
| grpo        | 1 / (samples · trained tokens of the sample)               | 2402.03300, eq. 3  |
| bnpo        | 1 / trained tokens of the minibatch                        | as TRL names it    |
| dapo        | minibatches / trained tokens of the step                   | 2503.14476, eq. 8  |
| dr_grpo     | 1 / (samples · max_completion_length)                      | 2503.20783, sec. 3 |
| luspo       | 1 / samples: sums over tokens, made for the sequence ratio | 2602.05261         |
| prompt_mean | 1 / (groups · trained tokens of the group)                 | 2510.13786         |

Samples and groups without trained tokens count in `samples` and `groups`; a minibatch without any makes no update, and
does not count in `minibatches`. Tokens left out as over-stale count as trained everywhere here, so that leaving one out
changes the weight of no other: a minibatch of nothing else counts too, though it makes no update. At ratio 1 and β = 0
`grpo` is 0 in value whenever a group's advantages sum to 0; the others are not if lengths differ. The gradient is what
trains: the value of the loss says little.
"""

from __future__ import annotations

import numpy as np

LOSS_TYPES = ("grpo", "bnpo", "dapo", "dr_grpo", "luspo", "prompt_mean")


def aggregate(
    loss_type: str,
    tokens_S: np.ndarray,
    group_of_sample_S: np.ndarray,
    minibatch_of_sample_S: np.ndarray,
    max_length: int,
) -> np.ndarray:
    """Weight of each trained token of a sample, [S] float64, always finite.

    Args:
        tokens_S: tokens of each sample that count in denominators (`Batch.denominator_tokens`).
        group_of_sample_S: any labels; groups of different minibatches are different groups.
        minibatch_of_sample_S: any labels.
        max_length: tokens a completion may have, for dr_grpo.
    """
    _, minibatch_S = np.unique(minibatch_of_sample_S, return_inverse=True)
    samples_S = np.bincount(minibatch_S)[minibatch_S]
    match loss_type:
        case "grpo":
            denominator_S = samples_S * _at_least_one(tokens_S)
        case "bnpo":
            denominator_S = _at_least_one(_total_of(minibatch_S, tokens_S))
        case "dapo":
            updates = len(np.unique(minibatch_S[tokens_S > 0]))
            denominator_S = np.full(len(tokens_S), max(tokens_S.sum(), 1) / max(updates, 1))
        case "dr_grpo":
            denominator_S = samples_S * max_length
        case "luspo":
            denominator_S = samples_S
        case "prompt_mean":
            pairs_S2 = np.stack([minibatch_S, group_of_sample_S], axis=1)
            pairs, group_S = np.unique(pairs_S2, axis=0, return_inverse=True)
            groups_S = np.bincount(pairs[:, 0])[minibatch_S] if len(pairs) else samples_S
            denominator_S = groups_S * _at_least_one(_total_of(group_S, tokens_S))
        case _:
            raise ValueError(f"loss_type {loss_type!r} is none of {', '.join(LOSS_TYPES)}")
    return np.asarray(1.0 / denominator_S, dtype=np.float64)


def _total_of(label_S: np.ndarray, tokens_S: np.ndarray) -> np.ndarray:
    """Tokens of all samples with the same label, for each sample."""
    return np.asarray(np.bincount(label_S, weights=tokens_S)[label_S])


def _at_least_one(counts_S: np.ndarray) -> np.ndarray:
    return np.asarray(np.maximum(counts_S, 1))
