"""Against logits that are written out in float64: values, gradients, types, and that no such logits ever exist."""

from collections.abc import Callable, Iterator

import pytest
import torch
from peft import LoraConfig, get_peft_model
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from asyncgrpo.learning.logprobs import token_logprobs
from asyncgrpo.learning.tiles import Tiling, tiling_for

N, H, V = 7, 6, 11
EDGES = (0, V - 1, 3, 4, 5, 7, 8)
"""Targets on both sides of every border between blocks of 4 rows, and at both ends."""
TILINGS = {
    "one tile": Tiling(100, 100, 0),
    "tiles": Tiling(3, 4, 0),
    "single rows and tokens": Tiling(1, 1, 0),
    "some logits kept": Tiling(3, 4, 8 * 30),
    "all logits kept": Tiling(3, 4, 2**20),
}


def case(*, bias: bool = False, dtype: torch.dtype = torch.float64) -> tuple[nn.Linear, Tensor, Tensor]:
    generator = torch.Generator().manual_seed(0)
    head = nn.Linear(H, V, bias=bias, dtype=dtype)
    with torch.no_grad():
        for parameter in head.parameters():
            parameter.copy_(torch.randn(parameter.shape, generator=generator, dtype=torch.float64))
    hidden_NH = torch.randn(N, H, generator=generator, dtype=torch.float64).to(dtype).requires_grad_()
    return head, hidden_NH, torch.tensor(EDGES)


def written_out(
    hidden_NH: Tensor, head: Callable[[Tensor], Tensor], targets_N: Tensor, temperature: float
) -> tuple[Tensor, Tensor]:
    log_p_NV = torch.log_softmax(head(hidden_NH) / temperature, dim=-1)
    return log_p_NV.gather(-1, targets_N[:, None]).squeeze(-1), -(log_p_NV.exp() * log_p_NV).sum(dim=-1)


def weighted(logprobs_N: Tensor, entropy_N: Tensor) -> Tensor:
    """A loss in which every token has weights of its own, some negative and one 0."""
    weights_N = torch.linspace(-1.0, 2.0, len(logprobs_N), dtype=logprobs_N.dtype)
    return (weights_N * logprobs_N).sum() + (weights_N.flip(0) * entropy_N).sum()


def test_temperature_by_hand() -> None:
    head = nn.Linear(2, 2, bias=False)
    with torch.no_grad():
        head.weight.copy_(torch.eye(2))
    logprobs_N, entropy_N = token_logprobs(torch.tensor([[2.0, 0.0]]), head, torch.tensor([1]), 0.5)
    p = torch.softmax(torch.tensor([4.0, 0.0]), dim=0)
    assert logprobs_N.dtype == entropy_N.dtype == torch.float32
    torch.testing.assert_close(logprobs_N, p[1:].log())
    torch.testing.assert_close(entropy_N, -(p * p.log()).sum()[None])


def test_gradients_by_hand() -> None:
    """One token, two rows, p = (3/4, 1/4), target 1 at temperature 2: d log p / dz = (-3/4, 3/4), dh = W'dz / 2."""
    head = nn.Linear(1, 2, bias=False)
    with torch.no_grad():
        head.weight.copy_(torch.tensor([[1.0], [0.0]]))
    hidden_NH = torch.tensor([[2.0]]).mul(torch.tensor(3.0).log()).requires_grad_()
    logprobs_N, _ = token_logprobs(hidden_NH, head, torch.tensor([1]), 2.0)
    logprobs_N.sum().backward()
    torch.testing.assert_close(hidden_NH.grad, torch.tensor([[-3 / 8]]))
    torch.testing.assert_close(head.weight.grad, hidden_NH.detach() * torch.tensor([[-3 / 8], [3 / 8]]))


@pytest.mark.parametrize("bias", [False, True], ids=["no bias", "bias"])
@pytest.mark.parametrize("tiling", TILINGS.values(), ids=TILINGS)
@pytest.mark.parametrize("temperature", [1.0, 0.7])
def test_values_and_gradients_are_exact(tiling: Tiling, bias: bool, temperature: float) -> None:
    head, hidden_NH, targets_N = case(bias=bias)
    inputs = (hidden_NH, *head.parameters())
    expected = written_out(hidden_NH, head, targets_N, temperature)
    actual = token_logprobs(hidden_NH, head, targets_N, temperature, entropy_gradient=True, tiling=tiling)
    torch.testing.assert_close(actual, expected, rtol=1e-12, atol=1e-12)
    expected_gradients = torch.autograd.grad(weighted(*expected), inputs)
    gradients = torch.autograd.grad(weighted(*actual), inputs)
    torch.testing.assert_close(gradients, expected_gradients, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("tiling", TILINGS.values(), ids=TILINGS)
def test_the_entropy_has_a_gradient_only_if_asked(tiling: Tiling) -> None:
    head, hidden_NH, targets_N = case(bias=True)
    inputs = (hidden_NH, *head.parameters())
    logprobs_N, entropy_N = token_logprobs(hidden_NH, head, targets_N, 0.7, tiling=tiling)
    assert not entropy_N.requires_grad
    expected_N, expected_entropy_N = written_out(hidden_NH, head, targets_N, 0.7)
    torch.testing.assert_close(entropy_N, expected_entropy_N.detach(), rtol=1e-12, atol=1e-12)
    expected = torch.autograd.grad(weighted(expected_N, expected_entropy_N.detach()), inputs)
    torch.testing.assert_close(torch.autograd.grad(weighted(logprobs_N, entropy_N), inputs), expected)


def test_gradcheck() -> None:
    head, hidden_NH, targets_N = case(bias=True)

    def outputs(hidden_NH: Tensor, _weight: Tensor, _bias: Tensor) -> tuple[Tensor, Tensor]:
        return token_logprobs(hidden_NH, head, targets_N, 1.3, entropy_gradient=True, tiling=Tiling(3, 4, 8 * 30))

    assert torch.autograd.gradcheck(outputs, (hidden_NH, head.weight, head.bias))


def test_sure_and_impossible_targets_stay_exact() -> None:
    """Logits of +-300: exp of one that is not shifted by the largest would overflow, and log of a softmax underflow."""
    head, hidden_NH, targets_N = case()
    with torch.no_grad():
        head.weight.mul_(100)
    expected = written_out(hidden_NH, head, targets_N, 1.0)
    assert float(expected[0].detach().min()) < -200
    assert float(expected[0].detach().max()) > -1e-12
    for order in (slice(None), slice(None, None, -1)):  # largest logits first, or last
        turned = nn.Linear(H, V, bias=False, dtype=torch.float64)
        turned.weight = nn.Parameter(head.weight.detach().clone()[torch.arange(V).numpy()[order].copy()])
        targets = targets_N if order.step is None else V - 1 - targets_N
        actual = token_logprobs(hidden_NH, turned, targets, 1.0, entropy_gradient=True, tiling=Tiling(3, 2, 0))
        torch.testing.assert_close(actual, expected, rtol=1e-12, atol=1e-12)
        (gradient_NH,) = torch.autograd.grad(weighted(*actual), hidden_NH)
        (expected_NH,) = torch.autograd.grad(weighted(*expected), hidden_NH, retain_graph=True)
        torch.testing.assert_close(gradient_NH, expected_NH, rtol=1e-10, atol=1e-10)


def test_the_backward_pass_can_be_repeated() -> None:
    head, hidden_NH, targets_N = case()
    logprobs_N, _ = token_logprobs(hidden_NH, head, targets_N, 1.0, tiling=TILINGS["all logits kept"])
    first = torch.autograd.grad(logprobs_N.sum(), (hidden_NH, head.weight), retain_graph=True)
    assert all(map(torch.equal, first, torch.autograd.grad(logprobs_N.sum(), (hidden_NH, head.weight))))


def test_a_target_that_the_head_does_not_have_shows() -> None:
    head, hidden_NH, _ = case()
    logprobs_N, _ = token_logprobs(hidden_NH, head, torch.tensor([0, V, -1, 1, 2, 3, 4]), 1.0)
    assert logprobs_N.isnan().tolist() == [False, True, True, False, False, False, False]


def test_scoring_and_training_agree_to_the_last_bit() -> None:
    head, hidden_NH, targets_N = case(dtype=torch.float32)
    training_N, _ = token_logprobs(hidden_NH, head, targets_N, 0.7)
    with torch.no_grad():
        assert torch.equal(token_logprobs(hidden_NH, head, targets_N, 0.7)[0], training_N)


@pytest.mark.parametrize("plain", [True, False], ids=["linear", "other"])
def test_no_tokens_have_a_gradient_of_zero(plain: bool) -> None:
    head, hidden_NH, targets_N = case(bias=True)
    module = head if plain else Wrapped(head)
    logprobs_N, entropy_N = token_logprobs(hidden_NH[:0], module, targets_N[:0], 1.0, entropy_gradient=True)
    assert logprobs_N.shape == entropy_N.shape == (0,)
    inputs = (hidden_NH, *head.parameters())
    for gradient, value in zip(torch.autograd.grad(weighted(logprobs_N, entropy_N), inputs), inputs, strict=True):
        assert torch.equal(gradient, torch.zeros_like(value))


@pytest.mark.parametrize("frozen", ["head", "hidden", "both"])
def test_what_is_frozen_gets_no_gradient_and_costs_no_product(frozen: str) -> None:
    head, hidden_NH, targets_N = case()
    expected_N, _ = written_out(hidden_NH, head, targets_N, 1.0)
    expected_hidden, expected_weight = torch.autograd.grad(expected_N.sum(), (hidden_NH, head.weight))
    head.requires_grad_(frozen == "hidden")
    hidden_NH.requires_grad_(frozen == "head")
    logprobs_N, _ = token_logprobs(hidden_NH, head, targets_N, 1.0, tiling=TILINGS["one tile"])
    assert logprobs_N.requires_grad == (frozen != "both")
    if frozen == "both":
        return
    with Recorder() as recorder:
        logprobs_N.sum().backward()
    assert recorder.products == 2  # the logits again, and the one gradient
    if frozen == "head":
        torch.testing.assert_close(hidden_NH.grad, expected_hidden)
    else:
        torch.testing.assert_close(head.weight.grad, expected_weight)


@pytest.mark.parametrize("kept, products", [(0, 3), (2**20, 2)], ids=["recomputed", "kept"])
def test_logits_that_are_kept_are_not_computed_again(kept: int, products: int) -> None:
    head, hidden_NH, targets_N = case()
    logprobs_N, _ = token_logprobs(hidden_NH, head, targets_N, 1.0, tiling=Tiling(100, 100, kept))
    with Recorder() as recorder:
        logprobs_N.sum().backward()
    assert recorder.products == products


def test_tied_embeddings_get_both_gradients() -> None:
    head, _, targets_N = case()
    embedding = nn.Embedding(V, H, dtype=torch.float64)
    embedding.weight = head.weight
    inputs_N = torch.tensor([3, 3, 1, 0, 10, 5, 6])
    logprobs_N, _ = token_logprobs(embedding(inputs_N).tanh(), head, targets_N, 1.0, tiling=TILINGS["tiles"])
    expected_N, _ = written_out(embedding(inputs_N).tanh(), head, targets_N, 1.0)
    (gradient,) = torch.autograd.grad(logprobs_N.sum(), head.weight)
    (expected,) = torch.autograd.grad(expected_N.sum(), head.weight)
    torch.testing.assert_close(gradient, expected)


def test_half_precision_is_raised_before_the_softmax() -> None:
    head, hidden_NH, targets_N = case(dtype=torch.bfloat16)
    logprobs_N, entropy_N = token_logprobs(hidden_NH, head, targets_N, 0.7, entropy_gradient=True)
    assert logprobs_N.dtype == entropy_N.dtype == torch.float32
    expected = written_out(hidden_NH, lambda hidden: head(hidden).float(), targets_N, 0.7)
    torch.testing.assert_close((logprobs_N, entropy_N), expected)


@pytest.mark.parametrize("plain", [True, False], ids=["linear", "other"])
@pytest.mark.parametrize("tokens", [2, 100])
def test_autocast_multiplies_in_bfloat16_and_nothing_else(plain: bool, tokens: int) -> None:
    head, hidden_NH, targets_N = case(dtype=torch.float32)
    inputs = (hidden_NH, head.weight)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        expected = written_out(hidden_NH, lambda hidden: head(hidden).float(), targets_N, 0.7)
        actual = token_logprobs(
            hidden_NH, head if plain else Wrapped(head), targets_N, 0.7, tiling=Tiling(tokens, 4, 0)
        )
    torch.testing.assert_close(actual[0], expected[0])
    torch.testing.assert_close(actual[1], expected[1].detach())
    gradients = torch.autograd.grad(actual[0].sum(), inputs)
    assert [gradient.dtype for gradient in gradients] == [torch.float32] * 2
    rounding = 2**-7 * float(head.weight.detach().abs().max())
    torch.testing.assert_close(gradients, torch.autograd.grad(expected[0].sum(), inputs), rtol=2**-6, atol=2 * rounding)


def test_bfloat16_products_know_how_sure_the_policy_is() -> None:
    """p of the target is 0.9999: rounded to bfloat16 it would be 1, and the gradient off by its own size."""
    head, hidden_NH, targets_N = case(dtype=torch.float32)
    with torch.no_grad():
        head.weight.copy_(torch.eye(V, H) * 4)
        hidden_NH[:] = torch.eye(H)[0] * 3
        targets_N[:] = 0
    with torch.autocast("cpu", dtype=torch.bfloat16):
        logprobs_N, _ = token_logprobs(hidden_NH, head, targets_N, 1.0)
    assert 0.9999 < float(logprobs_N[0].detach().exp()) < 1
    (gradient_NH,) = torch.autograd.grad(logprobs_N.sum(), hidden_NH)
    (expected_NH,) = torch.autograd.grad(written_out(hidden_NH, head, targets_N, 1.0)[0].sum(), hidden_NH)
    torch.testing.assert_close(gradient_NH, expected_NH, rtol=2**-7, atol=0.0)


@pytest.mark.parametrize("tiling", [Tiling(3, 4, 0), Tiling(100, 100, 2**20)], ids=["tiles", "kept"])
@pytest.mark.parametrize("plain", [True, False], ids=["linear", "other"])
@pytest.mark.parametrize("autocast", [False, True], ids=["bfloat16 model", "autocast"])
def test_a_float32_head_multiplies_in_float32(plain: bool, autocast: bool, tiling: Tiling) -> None:
    head, hidden_NH, targets_N = case(bias=True, dtype=torch.float32 if autocast else torch.bfloat16)
    exact = nn.Linear(H, V, dtype=torch.float64)
    exact.load_state_dict(head.state_dict())
    exact_NH = hidden_NH.detach().double().requires_grad_()
    expected = written_out(exact_NH, exact, targets_N, 0.7)
    with torch.autocast("cpu", dtype=torch.bfloat16, enabled=autocast):
        actual = token_logprobs(
            hidden_NH,
            head if plain else Wrapped(head),
            targets_N,
            0.7,
            fp32_head=True,
            entropy_gradient=True,
            tiling=tiling,
        )
    torch.testing.assert_close([value.double() for value in actual], list(expected), rtol=1e-5, atol=1e-5)
    gradients = torch.autograd.grad(weighted(*actual), (hidden_NH, *head.parameters()))
    assert {gradient.dtype for gradient in gradients} == {head.weight.dtype}
    rounding = 1e-5 if autocast else 2**-8  # of the gradient as it is stored
    for gradient, wanted in zip(
        gradients, torch.autograd.grad(weighted(*expected), (exact_NH, *exact.parameters())), strict=True
    ):
        torch.testing.assert_close(gradient.double(), wanted, rtol=rounding, atol=1e-5)


class Wrapped(nn.Module):
    """A head that is no nn.Linear."""

    def __init__(self, head: nn.Linear) -> None:
        super().__init__()
        self.head = head

    @property
    def weight(self) -> Tensor:
        return self.head.weight

    def forward(self, hidden: Tensor) -> Tensor:
        logits: Tensor = self.head(hidden)
        return logits


@pytest.mark.parametrize("tokens", [2, 100])
@pytest.mark.parametrize("fp32_head", [False, True])
def test_other_heads_are_called(tokens: int, fp32_head: bool) -> None:
    head, hidden_NH, targets_N = case(bias=True)
    inputs = (hidden_NH, *head.parameters())
    options = {"fp32_head": fp32_head, "entropy_gradient": True, "tiling": Tiling(tokens, 4, 0)}
    actual = token_logprobs(hidden_NH, Wrapped(head), targets_N, 0.7, **options)
    expected = written_out(hidden_NH, head, targets_N, 0.7)
    torch.testing.assert_close(actual, expected)
    expected_gradients = torch.autograd.grad(weighted(*expected), inputs)
    torch.testing.assert_close(torch.autograd.grad(weighted(*actual), inputs), expected_gradients)


def test_hooks_of_a_head_are_run() -> None:
    head, hidden_NH, targets_N = case()
    expected, _ = written_out(hidden_NH, lambda hidden: head(hidden) * 2, targets_N, 1.0)
    head.register_forward_hook(lambda _module, _arguments, output: output * 2)
    torch.testing.assert_close(token_logprobs(hidden_NH, head, targets_N, 1.0)[0], expected)


class Tiny(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.lm_head = nn.Linear(H, V, bias=False)


@pytest.fixture
def adapted() -> Iterator[nn.Module]:
    torch.manual_seed(0)
    model = get_peft_model(Tiny(), LoraConfig(r=2, target_modules=["lm_head"], lora_dropout=0.5))
    head = model.base_model.model.lm_head
    nn.init.normal_(head.lora_B["default"].weight)
    yield head


def test_adapters_on_the_head_take_part(adapted: nn.Module) -> None:
    adapted.eval()
    _, hidden_NH, targets_N = case(dtype=torch.float32)
    merged = adapted.base_layer.weight + adapted.get_delta_weight("default")
    expected_N, _ = written_out(hidden_NH, lambda hidden: hidden @ merged.T, targets_N, 1.0)
    actual_N, _ = token_logprobs(hidden_NH, adapted, targets_N, 1.0, tiling=Tiling(2, 4, 0))
    torch.testing.assert_close(actual_N, expected_N)
    trained = [parameter for parameter in adapted.parameters() if parameter.requires_grad]
    assert len(trained) == 2
    for gradient, expected in zip(
        torch.autograd.grad(actual_N.sum(), trained), torch.autograd.grad(expected_N.sum(), trained), strict=True
    ):
        torch.testing.assert_close(gradient, expected)


def test_dropout_before_adapters_on_the_head_is_the_same_in_both_passes(adapted: nn.Module) -> None:
    adapted.train()
    _, hidden_NH, targets_N = case(dtype=torch.float32)
    trained = [parameter for parameter in adapted.parameters() if parameter.requires_grad]
    torch.manual_seed(3)
    expected_N = torch.cat(
        [written_out(hidden_NH[at : at + 2], adapted, targets_N[at : at + 2], 1.0)[0] for at in range(0, N, 2)]
    )
    torch.manual_seed(3)
    actual_N, _ = token_logprobs(hidden_NH, adapted, targets_N, 1.0, tiling=Tiling(2, 4, 0))
    torch.testing.assert_close(actual_N, expected_N)
    for gradient, expected in zip(
        torch.autograd.grad(actual_N.sum(), trained), torch.autograd.grad(expected_N.sum(), trained), strict=True
    ):
        torch.testing.assert_close(gradient, expected)


class Recorder(TorchDispatchMode):
    """Sizes of all tensors that operations return, and the number of matrix products."""

    def __init__(self) -> None:
        super().__init__()
        self.largest, self.products = 0, 0

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):  # type: ignore[no-untyped-def]
        result = function(*args, **(kwargs or {}))
        self.products += function.overloadpacket in (torch.ops.aten.mm, torch.ops.aten.addmm)
        for value in tree_leaves(result):
            if isinstance(value, Tensor):
                self.largest = max(self.largest, value.numel())
        return result


@pytest.mark.parametrize("entropy_gradient", [False, True])
@pytest.mark.parametrize("autocast", [False, True])
def test_memory_is_bounded(entropy_gradient: bool, autocast: bool) -> None:
    """No tensor has more elements than a tile or the head; what is kept is the inputs and one number per token."""
    vocabulary, tokens, tiling = 1000, 40, Tiling(16, 64, 0)
    head = nn.Linear(2, vocabulary, bias=False)
    hidden_NH = torch.randn(tokens, 2, requires_grad=True)
    kept: list[int] = []

    def keep(value: Tensor) -> Tensor:
        kept.append(value.numel())
        return value

    recorder = Recorder()
    with torch.autocast("cpu", dtype=torch.bfloat16, enabled=autocast), recorder:
        with torch.autograd.graph.saved_tensors_hooks(keep, lambda value: value):
            logprobs_N, entropy_N = token_logprobs(
                hidden_NH,
                head,
                torch.arange(tokens),
                1.0,
                entropy_gradient=entropy_gradient,
                tiling=tiling,
            )
        (logprobs_N + entropy_N).sum().backward()
    assert recorder.largest == 2 * vocabulary  # the head and its gradient; all logits would be 40,000
    assert sorted(kept, reverse=True)[:2] == [2 * vocabulary, 2 * tokens]
    assert all(size == tokens for size in sorted(kept, reverse=True)[2:])


def test_kept_logits_are_bounded() -> None:
    head = nn.Linear(2, 1000, bias=False)
    hidden_NH = torch.randn(40, 2, requires_grad=True)
    bound = 20 * 1000 * 4
    kept: dict[int, int] = {}
    with torch.autograd.graph.saved_tensors_hooks(lambda t: kept.__setitem__(id(t), t.nbytes) or t, lambda t: t):
        token_logprobs(hidden_NH, head, torch.arange(40), 1.0, tiling=Tiling(16, 64, bound))
    logits = [size for size in kept.values() if size in (16 * 64 * 4, 8 * 64 * 4)]
    assert bound - 16 * 64 * 4 <= sum(logits) <= bound


@pytest.mark.parametrize("device, most", [("cpu", 4 * 2**20), ("cuda", 256 * 2**20)])
@pytest.mark.parametrize("tokens", [0, 1, 100, 512, 100_000])
def test_tiles_stay_within_a_size(tokens: int, device: str, most: int) -> None:
    tiling = tiling_for(tokens, torch.device(device))
    assert min(tiling.tokens, tiling.rows) >= 1
    assert tiling.tokens * tiling.rows * 4 <= most
    assert tiling.tokens >= min(tokens, 512)
