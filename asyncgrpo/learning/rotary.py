"""Rotary embeddings whose frequencies depend on the longest sequence of a pass.

transformers' `dynamic` and `longrope` change the frequencies of the whole pass once a position in it exceeds a limit
(`modeling_rope_utils.dynamic_rope_update`). A shorter sequence then gets others beside a long one than alone.
"""

from __future__ import annotations

import logging

from transformers import PreTrainedConfig

logger = logging.getLogger(__name__)


def warn_of_shared_frequencies(config: PreTrainedConfig, longest: int | None) -> None:
    """`longest`: tokens that a sequence of this run may have, if known."""
    limit = shared_frequencies(config)
    if limit is not None and (longest is None or longest > limit):
        logger.warning(
            "the model's rotary frequencies depend on the longest sequence that is computed with a sample, once that "
            "has over %d tokens: log-probabilities then depend on learner.token_budget. engines.max_model_len=%d, and "
            "prompts and completions that fit it, avoid this",
            limit,
            limit,
        )


def shared_frequencies(config: PreTrainedConfig) -> int | None:
    """Tokens up to which a sequence has frequencies of its own; nothing where it always has."""
    config = config.get_text_config()
    parameters = getattr(config, "rope_parameters", None) or {}
    kinds = [parameters, *(kind for kind in parameters.values() if isinstance(kind, dict))]
    limits = []
    for kind in kinds:
        rope_type = str(kind.get("rope_type", "default"))
        if rope_type == "longrope":
            limits.append(int(kind["original_max_position_embeddings"]))
        elif "dynamic" in rope_type:
            limits.append(int(config.max_position_embeddings))
    return min(limits, default=None)
