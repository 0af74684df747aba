import asyncio
from pathlib import Path
from typing import Any

import pytest
import torch
from kind_cases import injected, start

SCORED: list[list[str]] = []


def counting(completions: list[str], solution: list[str], **columns: Any) -> list[float]:
    """1 for an answer that begins with the right digit."""
    SCORED.append(completions)
    return [float(text[:1] == right[:1]) for text, right in zip(completions, solution, strict=True)]


@pytest.fixture(scope="module")
def settings(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    return {**start(tmp_path_factory.mktemp("start")), "evaluation.rewards": [f"{__name__}:counting"]}


def evaluated(settings: dict[str, Any], **changes: Any) -> tuple[float, float, int]:
    """Score of the start, its score once more, and how many groups the second look scored."""
    made = injected({**settings, **changes})
    made._keep()
    made.sampler.load(made.past.of(0))
    SCORED.clear()
    first = asyncio.run(made.evaluation.score())
    calls, generator = len(SCORED), torch.Generator().manual_seed(0)
    assert calls == 16
    with made.learner.exported() as weights:
        for tensor in weights.values():
            tensor.add_(torch.randn(tensor.shape, generator=generator) * 0.5)
        made.sampler.load(weights)
    changed = asyncio.run(made.evaluation.score())
    made.sampler.load(made.past.of(0))
    again = len(SCORED)
    assert asyncio.run(made.evaluation.score()) == first
    assert len(SCORED) == again  # all of these were known
    return first, changed, again - calls


def test_the_score_is_the_mean_over_prompts_and_known_answers_are_not_scored_again(settings: dict[str, Any]) -> None:
    first, _, _ = evaluated(settings)
    assert first * 16 == pytest.approx(round(first * 16))
    assert all(len(each) == 1 for each in SCORED)


def test_sampled_evaluations_draw_the_same_every_time(settings: dict[str, Any]) -> None:
    sampled = {"evaluation.temperature": 1.0, "evaluation.num_generations_eval": 3}
    first, _, anew = evaluated(settings, **sampled)
    assert 0.0 < first < 1.0
    assert all(len(each) == 3 for each in SCORED)
    assert anew > 0  # another policy gives other answers


def test_held_out_prompts_are_those_of_the_dataset(settings: dict[str, Any], tmp_path: Path) -> None:
    made = injected(settings)
    prompts = [prompt.prompt for prompt in made.evaluation._held_out.prompts]
    rows = Path(settings["evaluation.dataset"]).read_text()
    assert len(prompts) == 16 and all(f'"{prompt}"' in rows for prompt in prompts)
