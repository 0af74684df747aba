import pytest
import torch
from torch import nn

from asyncgrpo.learning.logprobs import CHUNK_BYTES, chunk_tokens, token_logprobs


def head_and_inputs(vocabulary: int = 11) -> tuple[nn.Linear, torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    head = nn.Linear(6, vocabulary, bias=False)
    with torch.no_grad():
        head.weight.copy_(torch.randn(vocabulary, 6, generator=generator))
    hidden_NH = torch.randn(7, 6, generator=generator).requires_grad_()
    return head, hidden_NH, torch.randint(0, vocabulary, (7,), generator=generator)


def test_temperature_by_hand() -> None:
    head = nn.Linear(2, 2, bias=False)
    with torch.no_grad():
        head.weight.copy_(torch.eye(2))
    logprobs_N, entropy_N = token_logprobs(torch.tensor([[2.0, 0.0]]), head, torch.tensor([1]), 0.5, chunk_tokens=1)
    p = torch.softmax(torch.tensor([4.0, 0.0]), dim=0)
    torch.testing.assert_close(logprobs_N, p[1:].log())
    torch.testing.assert_close(entropy_N, -(p * p.log()).sum()[None])


@pytest.mark.parametrize("chunk", [1, 3, 7, 100])
def test_chunks_change_neither_values_nor_gradients(chunk: int) -> None:
    head, hidden_NH, targets_N = head_and_inputs()
    weights_N = torch.arange(1.0, 8.0)
    expected_N = torch.log_softmax(head(hidden_NH) / 0.7, dim=-1).gather(-1, targets_N[:, None]).squeeze(-1)
    expected = torch.autograd.grad((expected_N * weights_N).sum(), (hidden_NH, head.weight))
    logprobs_N, entropy_N = token_logprobs(hidden_NH, head, targets_N, 0.7, chunk)
    actual = torch.autograd.grad((logprobs_N * weights_N).sum(), (hidden_NH, head.weight))
    torch.testing.assert_close(logprobs_N, expected_N)
    torch.testing.assert_close(actual, expected)
    assert not entropy_N.requires_grad
    with torch.no_grad():
        assert torch.equal(token_logprobs(hidden_NH, head, targets_N, 0.7, chunk)[0], logprobs_N)


def test_no_more_than_one_chunk_of_logits_is_kept_for_the_backward_pass() -> None:
    head, hidden_NH, targets_N = head_and_inputs(vocabulary=1000)
    saved: list[int] = []
    with torch.autograd.graph.saved_tensors_hooks(lambda t: saved.append(t.numel()) or t, lambda t: t):
        token_logprobs(hidden_NH, head, targets_N, 1.0, chunk_tokens=2)
    assert max(saved) <= head.weight.numel()
    assert sum(size for size in saved if size != head.weight.numel()) < 1000  # less than one token's logits


def test_half_precision_is_raised_before_the_softmax() -> None:
    head, hidden_NH, targets_N = head_and_inputs()
    head.bfloat16()
    logprobs_N, _ = token_logprobs(hidden_NH.bfloat16(), head, targets_N, 1.0, 4)
    assert logprobs_N.dtype == torch.float32
    expected_NV = torch.log_softmax(head(hidden_NH.bfloat16()).float(), dim=-1)
    torch.testing.assert_close(logprobs_N, expected_NV.gather(-1, targets_N[:, None]).squeeze(-1))


def test_no_tokens_have_a_gradient_of_zero() -> None:
    head, hidden_NH, targets_N = head_and_inputs()
    logprobs_N, entropy_N = token_logprobs(hidden_NH[:0], head, targets_N[:0], 1.0, 4)
    assert logprobs_N.shape == entropy_N.shape == (0,)
    (gradient_NH,) = torch.autograd.grad(logprobs_N.sum(), hidden_NH)
    assert torch.equal(gradient_NH, torch.zeros(7, 6))


def test_a_chunk_of_a_large_vocabulary_fits_its_budget() -> None:
    assert chunk_tokens(152_064) * 152_064 * 4 <= CHUNK_BYTES
    assert chunk_tokens(10**12) == 1
