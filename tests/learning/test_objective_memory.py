"""What counting holds in memory: with one long and many short completions a grid has many more slots than tokens."""

import weakref
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from objective_cases import make_objective, make_tokens
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from asyncgrpo.learning.objectives.count import count
from asyncgrpo.learning.objectives.metrics import SUMS
from asyncgrpo.learning.objectives.statistics import Statistics


class Peak(TorchDispatchMode):
    """Most bytes that tensors made meanwhile hold at one time."""

    def __init__(self) -> None:
        super().__init__()
        self.bytes = 0
        self._made: list[weakref.ref[Tensor]] = []

    def __torch_dispatch__(
        self, func: Any, types: Sequence[Any], args: Any = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        result = func(*args, **(kwargs or {}))
        given = {leaf.untyped_storage().data_ptr() for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, Tensor)}
        for leaf in tree_leaves(result):
            if isinstance(leaf, Tensor) and leaf.untyped_storage().data_ptr() not in given:
                self._made.append(weakref.ref(leaf))
        self._made = [made for made in self._made if made() is not None]
        self.bytes = max(self.bytes, sum(tensor.nbytes for made in self._made if (tensor := made()) is not None))
        return result


def test_counting_holds_a_few_values_per_trained_token() -> None:
    sequences, width, tokens_each = 50, 2000, 10
    mask_BT = torch.zeros(sequences, width, dtype=torch.bool)
    mask_BT[:, :tokens_each], mask_BT[0] = True, True
    trained = 49 * tokens_each + width
    log_BT = torch.full((sequences, width), -1.0)
    tokens = make_tokens(
        log_BT, [1.0] * sequences, behaviour=log_BT - 0.1, reference=log_BT, mask=mask_BT, dtype=torch.float32
    )
    objective = make_objective()
    drift, corrected = objective._drift(tokens)
    gated = objective.gate(drift, Statistics())
    loss_BT = -gated.objective_BT
    always_BT = torch.ones_like(mask_BT)
    with Peak() as peak:
        counts = count(
            tokens,
            loss_BT,
            drift=drift,
            corrected=corrected,
            gated=gated,
            is_near_B1=always_BT[:, :1],
            is_uncertain_BT=always_BT,
            staleness_values=1,
        )
    assert counts.total("tokens") == trained
    # The indices alone are two int64; a float64 of every quantity would be more than twice the bound.
    assert 16 * trained < peak.bytes < 12 * 8 * trained < len(SUMS) * 8 * trained / 2
