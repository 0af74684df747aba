"""Every kernel against softmax written out, one sequence at a time, in float64."""

import pytest
import torch
from torch import Tensor

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


def test_the_block_mask_is_made_once_per_window() -> None:
    layout = Layout((Tree(0, 3, (5, 6)),))
    first = flex.block_mask(layout, None, torch.device("cpu"))
    assert flex.block_mask(layout, None, torch.device("cpu")) is first
    assert flex.block_mask(layout, 2, torch.device("cpu")) is not first


def test_positions_go_on_from_the_prompt_in_every_branch() -> None:
    layout = Layout((Tree(0, 2, (5, 6)), Tree(6, 7, ())))
    assert layout.positions_L.tolist() == [0, 1, 2, 3, 4, 2, 0]
    assert layout.longest == 5
