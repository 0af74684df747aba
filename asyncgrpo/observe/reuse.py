"""How often a token is trained: replay as a step sees it, and the reuse of the whole run. No torch.

Three settings train a token more than once, and each is reported apart: `training.num_iterations` and
`training.num_minibatches` by `optimiser_updates` (their product), replay by the fields here. `reuse_mean` is what
iterations and replay come to together.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from asyncgrpo.types import Batch

__all__ = ["ReuseMeter"]


@dataclass(slots=True)
class ReuseMeter:
    """One per run; counts on with every step."""

    num_iterations: int
    passes: int = 0
    """Times that a token went through an optimiser update, over all tokens."""
    tokens: int = 0
    """Distinct tokens trained."""

    def step(self, batch: Batch, stored: int) -> Mapping[str, float]:
        """Reuse fields of the record of the step that trained `batch`, with `stored` groups kept for replay.

        A token left out as over-stale at first, and trained when replayed, counts as a pass only.
        """
        is_replayed = np.repeat(batch.uses > 0, batch.completion_lengths)
        replayed = batch.loss_mask & is_replayed
        self.passes += self.num_iterations * int(batch.loss_mask.sum())
        self.tokens += int((batch.loss_mask & ~is_replayed).sum())
        ages = batch.version - batch.token_versions[replayed].astype(np.int64)
        groups, first = np.unique(batch.group_ids[batch.uses > 0], return_index=True)
        uses = batch.uses[batch.uses > 0][first] + 1
        return {
            "reuse_mean": self.passes / self.tokens if self.tokens else float("nan"),
            "replayed_groups": len(groups),
            "replayed_tokens": int(replayed.sum()),
            "replay_age_mean": float(ages.mean()) if len(ages) else float("nan"),
            "replay_age_max": int(ages.max(initial=0)),
            "replay_uses_mean": float(uses.mean()) if len(uses) else float("nan"),
            "replay_groups": stored,
        }

    def state(self) -> dict[str, Any]:
        """What `restore` needs, as JSON has it."""
        return {"passes": self.passes, "tokens": self.tokens}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Count on from `state`."""
        self.passes, self.tokens = state["passes"], state["tokens"]
