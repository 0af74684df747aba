from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from kind_cases import make_run, start
from transformers import AutoModelForCausalLM

from asyncgrpo.ablation.kinds.sampler import Sampler
from asyncgrpo.errors import ConfigError

PROMPTS = [(2, 3, 12), (5, 12), (4, 4, 12)]
LONGEST = 4


@pytest.fixture(scope="module")
def sampler(tmp_path_factory: pytest.TempPathFactory) -> Sampler:
    settings = start(tmp_path_factory.mktemp("start"))
    made = Sampler(make_run(settings).config(), SimpleNamespace(eos_token_id=1))
    model = AutoModelForCausalLM.from_pretrained(settings["model.path"])
    generator = torch.Generator().manual_seed(0)
    weights = {name: torch.randn(value.shape, generator=generator) * 0.4 for name, value in model.state_dict().items()}
    model.load_state_dict(weights)
    made.load(weights)
    made.plain = model  # type: ignore[attr-defined]
    return made


def logprobs_of(sampler: Sampler, prompt: tuple[int, ...], tokens: list[int], temperature: float) -> torch.Tensor:
    """One sequence at a time, no cache: [T, V]."""
    with torch.no_grad():
        logits = sampler.plain(input_ids=torch.tensor([[*prompt, *tokens]])).logits[0]  # type: ignore[attr-defined]
    return torch.log_softmax(logits[len(prompt) - 1 : -1] / temperature, dim=-1)


@pytest.mark.parametrize("temperature", [1.0, 0.5])
def test_tokens_are_those_in_whose_share_the_numbers_lie(sampler: Sampler, temperature: float) -> None:
    uniform = np.random.default_rng(0).random((3, 5, LONGEST))
    drawn = sampler.complete(PROMPTS, uniform, temperature, LONGEST)
    assert [len(samples) for samples in drawn] == [5, 5, 5]
    seen = set()
    for place, samples in enumerate(drawn):
        for number, sample in enumerate(samples):
            tokens = sample.token_ids.tolist()
            seen.add(tuple(tokens))
            expected = logprobs_of(sampler, PROMPTS[place], tokens, temperature)
            for step, token in enumerate(tokens):
                upper = expected[step].double().exp().cumsum(0)
                lower = 0.0 if token == 0 else float(upper[token - 1])
                assert lower - 1e-6 <= uniform[place, number, step] <= float(upper[token]) + 1e-6
                assert sample.logprobs[step] == pytest.approx(float(expected[step, token]), abs=1e-5)
    assert len(seen) > 8


def test_greedy_takes_the_likeliest(sampler: Sampler) -> None:
    for prompt, (sample,) in zip(PROMPTS, sampler.complete(PROMPTS, None, 0.0, LONGEST), strict=True):
        tokens = sample.token_ids.tolist()
        expected = logprobs_of(sampler, prompt, tokens, 1.0)
        assert tokens == expected.argmax(dim=-1).tolist()
        np.testing.assert_allclose(sample.logprobs, expected.max(dim=-1).values.numpy(), atol=1e-5)


def test_a_completion_ends_with_its_end_token(sampler: Sampler) -> None:
    samples = sampler.complete([PROMPTS[0]], np.random.default_rng(1).random((1, 200, LONGEST)), 1.0, LONGEST)[0]
    stopped = [sample for sample in samples if sample.finish_reason == "stop"]
    cut = [sample for sample in samples if sample.finish_reason == "length"]
    assert stopped and cut
    assert all(sample.token_ids[-1] == 1 and 1 not in sample.token_ids[:-1] for sample in stopped)
    assert all(len(sample.token_ids) == LONGEST and 1 not in sample.token_ids for sample in cut)
    assert all(len(sample.logprobs) == len(sample.token_ids) for sample in samples)


def test_what_is_drawn_does_not_depend_on_the_prompts_beside_it(sampler: Sampler) -> None:
    uniform = np.random.default_rng(2).random((3, 2, LONGEST))
    together = sampler.complete(PROMPTS, uniform, 1.0, LONGEST)
    alone = sampler.complete([PROMPTS[2]], uniform[2:], 1.0, LONGEST)[0]
    assert [sample.token_ids.tolist() for sample in together[2]] == [sample.token_ids.tolist() for sample in alone]


def test_weights_of_another_model_are_refused(sampler: Sampler) -> None:
    with pytest.raises(ConfigError, match=r"has other\.weight"):
        sampler.load({"other.weight": torch.zeros(1)})


def test_a_version_is_written_on_every_token(sampler: Sampler, tmp_path: Path) -> None:
    completion = sampler.complete([PROMPTS[0]], None, 0.0, LONGEST)[0][0].of_version(7)
    assert set(completion.versions.tolist()) == {7}
