"""Every kernel against softmax written out, one sequence at a time, in float64."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from torch._higher_order_ops.flex_attention import flex_attention as flex_attention_hop
from torch.nn.attention.flex_attention import create_block_mask
from torch.utils._python_dispatch import TorchDispatchMode

from asyncgrpo.learning.attention import blocks, dense, flex
from asyncgrpo.learning.attention.layout import Layout, Tree

SCALE = 0.3
LAYOUT = Layout(
    (
        Tree(0, 5, (8, 9, 16)),  # three branches
        Tree(16, 17, ()),  # a prompt alone
        Tree(17, 18, (21, 22)),  # a prompt of one token
        Tree(22, 29, (33,)),  # a single branch
    )
)
SEQUENCES = [
    [0, 1, 2, 3, 4, 5, 6, 7],
    [0, 1, 2, 3, 4, 8],
    [0, 1, 2, 3, 4, 9, 10, 11, 12, 13, 14, 15],
    [16],
    [17, 18, 19, 20],
    [17, 21],
    [22, 23, 24, 25, 26, 27, 28, 29, 30, 31, 32],
]
"""Places in the row of each sequence, written by hand."""


def inputs(heads: int, kv_heads: int, dtype: torch.dtype = torch.float64) -> list[Tensor]:
    """Query, key and value as models hand them over: [1, L, heads, D] seen as [1, heads, L, D]."""
    torch.manual_seed(0)
    shapes = [(1, 33, count, 8) for count in (heads, kv_heads, kv_heads)]
    return [torch.randn(shape).to(dtype).transpose(1, 2).requires_grad_() for shape in shapes]


def written_out(query: Tensor, key: Tensor, value: Tensor, window: int | None) -> Tensor:
    group = query.shape[1] // key.shape[1]
    key, value = key.repeat_interleave(group, dim=1), value.repeat_interleave(group, dim=1)
    out = torch.zeros_like(query)
    for places in SEQUENCES:
        for at, place in enumerate(places):
            seen = places[: at + 1] if window is None else places[max(0, at + 1 - window) : at + 1]
            scores = SCALE * torch.einsum("bhd,bhsd->bhs", query[:, :, place], key[:, :, seen])
            out[:, :, place] = torch.einsum("bhs,bhsd->bhd", scores.softmax(-1), value[:, :, seen])
    return out.transpose(1, 2)


def gradients(out: Tensor, tensors: list[Tensor]) -> list[Tensor]:
    torch.manual_seed(1)
    weights = torch.randn(out.shape, dtype=torch.float64).to(out.dtype)
    return list(torch.autograd.grad((out * weights).sum(), tensors))


@pytest.mark.parametrize(("heads", "kv_heads"), [(4, 4), (6, 2), (3, 1)])
def test_blocks_and_their_gradients(heads: int, kv_heads: int) -> None:
    tensors = inputs(heads, kv_heads)
    expected = written_out(*tensors, window=None)
    actual = blocks.packed_attention(*tensors, LAYOUT, SCALE)
    torch.testing.assert_close(actual, expected, rtol=0, atol=1e-12)
    for mine, reference in zip(gradients(actual, tensors), gradients(expected, tensors), strict=True):
        torch.testing.assert_close(mine, reference, rtol=0, atol=1e-12)


def test_blocks_in_bfloat16() -> None:
    exact = inputs(4, 2)
    rounded = [tensor.detach().bfloat16().requires_grad_() for tensor in exact]
    actual, expected = blocks.packed_attention(*rounded, LAYOUT, SCALE), written_out(*exact, window=None)
    assert actual.dtype == torch.bfloat16
    torch.testing.assert_close(actual.double(), expected, rtol=0, atol=0.05)
    for mine, reference in zip(gradients(actual, rounded), gradients(expected, exact), strict=True):
        torch.testing.assert_close(mine.double(), reference, rtol=0, atol=0.15)


def test_blocks_cover_each_pair_of_tokens_once() -> None:
    count = torch.zeros(33, 33, dtype=torch.int64)
    for block in blocks.blocks(LAYOUT):
        part = torch.ones(block.queries.stop - block.queries.start, block.keys.stop - block.keys.start)
        count[block.queries, block.keys] += (part.tril() if block.is_causal else part).long()
    expected = torch.zeros_like(count)
    for places in SEQUENCES:
        for at, place in enumerate(places):
            expected[place, places[: at + 1]] = 1
    assert torch.equal(count, expected)


@pytest.mark.parametrize("window", [None, 1, 3, 20])
def test_dense_attention_with_windows(window: int | None) -> None:
    tensors = inputs(4, 2)
    expected = written_out(*tensors, window=window)
    actual = dense.dense_attention(*tensors, LAYOUT, window, SCALE)
    torch.testing.assert_close(actual, expected, rtol=0, atol=1e-12)
    for mine, reference in zip(gradients(actual, tensors), gradients(expected, tensors), strict=True):
        torch.testing.assert_close(mine, reference, rtol=0, atol=1e-12)


@pytest.mark.parametrize("window", [None, 3])
def test_flex_attention_uncompiled(window: int | None) -> None:
    """What runs compiled on GPUs."""
    with torch.no_grad():
        tensors = [tensor.detach() for tensor in inputs(4, 2, torch.float32)]
        actual = flex.packed_attention(*tensors, LAYOUT, window, SCALE)
        torch.testing.assert_close(actual, written_out(*tensors, window=window), rtol=0, atol=1e-5)


@pytest.mark.parametrize("window", [None, 3])
def test_gradients_of_flex_attention_uncompiled(window: int | None) -> None:
    """Through the operator that compiled code calls: the function around it refuses gradients on CPU."""
    tensors = inputs(4, 2)
    mask = flex.block_mask(LAYOUT, window, torch.device("cpu"))
    out, *_ = flex_attention_hop(*tensors, lambda score, *_: score, mask.as_tuple(), SCALE, {"BACKEND": "AUTO"})
    expected = written_out(*tensors, window=window)
    torch.testing.assert_close(out.transpose(1, 2), expected, rtol=0, atol=1e-12)
    for mine, reference in zip(gradients(out.transpose(1, 2), tensors), gradients(expected, tensors), strict=True):
        torch.testing.assert_close(mine, reference, rtol=0, atol=1e-12)


def random_layout(seed: int) -> Layout:
    """About 500 tokens; the first prompt ends with a block, so whole blocks are seen and others are skipped."""
    random = np.random.default_rng(seed)
    trees, start = [], 0
    for prompt in (128, *random.integers(1, 90, 2).tolist()):
        ends = start + prompt + np.cumsum(random.integers(1, 150, random.integers(0, 4)))
        trees.append(Tree(start, start + prompt, tuple(ends.tolist())))
        start = trees[-1].end
    return Layout(tuple(trees))


@pytest.mark.parametrize("window", [None, 1, 70, 300])
@pytest.mark.parametrize(
    "layout", [LAYOUT, *map(random_layout, range(3))], ids=lambda layout: str(layout.trees[-1].end)
)
@pytest.mark.parametrize("at_once", [1, 1 << 24])
def test_the_block_mask_is_the_one_that_torch_makes(
    layout: Layout, window: int | None, at_once: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(flex, "PAIRS_AT_ONCE", at_once)
    flex.block_mask.cache_clear()
    actual, length = flex.block_mask(layout, window, torch.device("cpu")), len(layout.positions_L)
    expected = create_block_mask(actual.mask_mod, None, None, length, length, device="cpu")
    assert actual.shape == expected.shape == (1, 1, length, length)
    assert torch.equal(actual.to_dense(), expected.to_dense())
    for mine, theirs in zip(actual.as_tuple(), expected.as_tuple(), strict=True):
        assert torch.equal(mine, theirs) if isinstance(theirs, torch.Tensor) else mine == theirs or callable(mine)


def test_another_layout_is_not_compiled_anew() -> None:
    compiled: list[int] = []

    def backend(graph: torch.fx.GraphModule, inputs: list) -> Callable:
        compiled.append(len(inputs))
        return graph.forward

    attend = flex.compiled(backend)
    with torch.no_grad():
        for seed in range(1, 7):
            layout = random_layout(seed)
            query, key, value = (torch.randn(1, 2, len(layout.positions_L), 8) for _ in range(3))
            mask = flex.block_mask(layout, None, torch.device("cpu"))
            actual = attend(query, key, value, block_mask=mask, scale=SCALE).transpose(1, 2)
            expected = blocks.packed_attention(query, key, value, layout, SCALE)
            torch.testing.assert_close(actual, expected, rtol=0, atol=1e-5)
    assert len(compiled) == 1


class Largest(TorchDispatchMode):
    """Remembers how many bytes the largest tensor had."""

    def __init__(self) -> None:
        super().__init__()
        self.bytes = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        made = func(*args, **(kwargs or {}))
        self.bytes = max(self.bytes, made.numel() * made.element_size())
        return made


@pytest.mark.parametrize("window", [None, 3])
def test_nothing_on_the_way_to_a_mask_is_larger_than_the_mask(window: int | None) -> None:
    layout = Layout((Tree(0, 100, (150, 300)),))
    with Largest() as largest:
        (mask,) = dense.masks(layout, window, torch.device("cpu"))
    assert mask.shape == (300, 300)
    assert largest.bytes == 300 * 300


def test_masks_are_made_once_per_layout_and_window() -> None:
    layout, cpu = Layout((Tree(0, 3, (5, 6)),)), torch.device("cpu")
    first = flex.block_mask(layout, None, cpu)
    assert flex.block_mask(Layout((Tree(0, 3, (5, 6)),)), None, cpu) is first
    assert flex.block_mask(layout, 2, cpu) is not first
    assert dense.masks(layout, 2, cpu) is dense.masks(layout, 2, cpu)
    assert dense.masks(layout, 3, cpu) is not dense.masks(layout, 2, cpu)


def test_positions_go_on_from_the_prompt_in_every_branch() -> None:
    layout = Layout((Tree(0, 2, (5, 6)), Tree(6, 7, ())))
    assert layout.positions_L.tolist() == [0, 1, 2, 3, 4, 2, 0]
    assert layout.longest == 5
