"""`asyncgrpo evaluate`: a model alone, by engines that are started for it and gone afterwards."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from run_cases import FAKE_ENGINE, HERE, children

from asyncgrpo.config import RunConfig
from asyncgrpo.errors import ConfigError, EngineError, EvaluationError
from asyncgrpo.evaluating import evaluate_model, model_of
from asyncgrpo.testing.tiny import write_rows

REWARDS = """
def tokens(completion_ids, **columns):
    return [float(len(ids)) for ids in completion_ids]
"""


def config(folder: Path, **sections: Any) -> RunConfig:
    (folder / "own.py").write_text(REWARDS)
    rows = write_rows(folder / "held_out.jsonl", [{"prompt": f"e{i}"} for i in range(5)])
    base: dict[str, Any] = {
        "rewards": [{"path": f"{folder / 'own.py'}:tokens"}],
        "generation": {"num_generations": 2, "max_completion_length": 6, "request_timeout": 20.0},
        "engines": {"dtype": "float32", "stop_timeout": 4.0, "startup_timeout": 60.0},
        "evaluation": {"dataset": str(rows), "pass_threshold": 6.0, "timeout": 60.0},
    }
    for name, values in sections.items():
        base[name] = base.get(name, {}) | values
    return RunConfig.model_validate(base)


def evaluate(model: Path, configured: RunConfig) -> Any:
    return evaluate_model(str(model), configured, machine=HERE, engine_module=FAKE_ENGINE)


def test_a_model_alone(tiny_model: Path, tmp_path: Path) -> None:
    before = children()
    record = evaluate(tiny_model, config(tmp_path))
    assert (record["prompts"], record["samples"], record["samples_failed"]) == (5, 10, 0)
    assert (record["version_min"], record["version_max"], record["samples_mixed_version"]) == (0, 0, 0)
    assert record["reward_mean"] == pytest.approx(record["completion_tokens_mean"])
    assert record["pass_ratio/1"] >= record["truncated_ratio"] > 0.0, "whoever reaches the limit has 6 tokens"
    assert children() == before


def test_greedy_completions_are_the_models_own(tiny_model: Path, tmp_path: Path) -> None:
    """By two engines, which share the prompts."""
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    before = children()
    both = {"devices": ["cpu", "cpu"]}
    record = evaluate(tiny_model, config(tmp_path, engines=both, evaluation={"temperature": 0.0, "max_concurrency": 2}))
    assert (record["samples"], record["samples_per_prompt"], record["temperature"]) == (5, 1, 0.0)
    model, tokenizer = (kind.from_pretrained(tiny_model) for kind in (AutoModelForCausalLM, AutoTokenizer))
    prompts = [torch.tensor([tokenizer.encode(f"e{i}")]) for i in range(5)]
    own = [model.generate(ids, do_sample=False, max_new_tokens=6).shape[1] - ids.shape[1] for ids in prompts]
    assert record["prompt_rewards"] == own
    assert children() == before


ENVIRONMENT = """
from asyncgrpo.environments import Turn

class Env:
    def reset(self, number):
        self.number = number
    def step(self, answer):
        return Turn(messages="Go on.")
    def get_reward(self):
        return self.number
"""


def test_with_an_environment(tiny_model: Path, tmp_path: Path) -> None:
    (tmp_path / "my_env.py").write_text(ENVIRONMENT)
    asked = config(tmp_path, environment={"path": f"{tmp_path / 'my_env.py'}:Env", "max_turns": 2})
    rows = [{"prompt": [{"role": "user", "content": "Talk."}], "number": i} for i in range(4)]
    write_rows(tmp_path / "held_out.jsonl", rows)
    asked = asked.model_copy(update={"rewards": ()})
    record = evaluate(tiny_model, asked)
    assert (record["prompt_rewards"], record["samples_failed"]) == ([0.0, 1.0, 2.0, 3.0], 0)
    assert record["reward_mean/environment"] == 1.5


@pytest.mark.parametrize(
    ("kind", "error", "message"),
    [
        ("die", EngineError, "engine-0 ended with exit code 1"),
        ("hang", EvaluationError, r"the evaluation \(evaluation.timeout\) took longer than 0.5 s"),
    ],
)
def test_nothing_is_left_running_after_a_failure(
    tiny_model: Path, tmp_path: Path, kind: str, error: type[Exception], message: str
) -> None:
    before = children()
    fails = {"extra_args": ["--faults", json.dumps([{"kind": kind}])]}
    timeout = 0.5 if kind == "hang" else 60.0
    with pytest.raises(error, match=message):
        evaluate(tiny_model, config(tmp_path, engines=fails, evaluation={"timeout": timeout}))
    assert children() == before


def test_what_is_refused_before_anything_starts(tiny_model: Path, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"engines.urls names running engines, which have weights of their own"):
        evaluate(tiny_model, config(tmp_path, engines={"urls": ["http://127.0.0.1:1"]}))
    with pytest.raises(ConfigError, match=r"evaluation.dataset is not set"):
        evaluate(tiny_model, config(tmp_path, evaluation={"dataset": "", "pass_threshold": 1.0, "timeout": 900.0}))
    with pytest.raises(ConfigError, match=r"model.path=.*none does not exist"):
        evaluate(tmp_path / "none", config(tmp_path))


def test_the_folder_of_a_run_means_its_final_model(tmp_path: Path) -> None:
    assert model_of("org/name") == "org/name"
    (tmp_path / "metrics.jsonl").touch()
    with pytest.raises(ConfigError, match="is the folder of a run that has no final_model yet"):
        model_of(str(tmp_path))
    (tmp_path / "final_model").mkdir()
    assert model_of(str(tmp_path)) == str(tmp_path / "final_model")


def test_a_final_model_that_training_went_on_from_is_not_taken_for_the_run(tmp_path: Path) -> None:
    (tmp_path / "metrics.jsonl").touch()
    (tmp_path / "final_model").mkdir()
    (tmp_path / "summary.json").write_text('{"steps": 4}')
    (tmp_path / "checkpoints" / "step-00000004").mkdir(parents=True)
    assert model_of(str(tmp_path)) == str(tmp_path / "final_model")
    (tmp_path / "checkpoints" / "step-00000006").mkdir()
    with pytest.raises(ConfigError, match=r"has trained on to step 6 since its final_model .*\(asyncgrpo merge"):
        model_of(str(tmp_path))
