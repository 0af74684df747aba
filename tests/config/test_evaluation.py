"""The evaluation section: what is refused before anything is read, and what it is called in Python."""

from typing import Any

import pytest

from asyncgrpo.config.flat import AsyncGRPOConfig
from asyncgrpo.config.problems import validate
from asyncgrpo.errors import ConfigError


@pytest.mark.parametrize(
    ("evaluation", "message"),
    [
        (
            {"temperature": 0.0, "num_generations_eval": 4},
            "evaluation.num_generations_eval=4 with evaluation.temperature=0 is of no use: greedy samples",
        ),
        ({"temperature": 0.001}, r"evaluation.temperature=0.001 .* give 0 \(greedy\) or at least 0.01"),
        ({"eval_strategy": "no", "eval_steps": 5}, "evaluation.eval_steps=5 has no effect with .*eval_strategy=no"),
        ({"eval_strategy": "epoch"}, "evaluation.eval_strategy = \"epoch\": expected one of 'no' or 'steps'"),
        ({"num_generations_eval": 0}, "evaluation.num_generations_eval = 0: expected more than 0"),
        ({"eval_step": 5}, "unknown key 'eval_step' in section evaluation; did you mean evaluation.eval_steps"),
        ({"rewards": [{"path": "a:b"}]}, "evaluation.rewards.0 = .*expected text"),
        ({"columns": {"a": "b", "c": "b"}}, "evaluation.columns gives 'b' more than one name"),
        ({"prompt_template": "{0}"}, r"evaluation.prompt_template: \{0\} is no column"),
        (
            {"dataset": "a.jsonl", "task_arguments": {"size": 3}},
            "evaluation.task_arguments are for tasks, and evaluation.dataset is none",
        ),
    ],
)
def test_contradictions_are_refused(evaluation: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        validate({"evaluation": evaluation})


def test_completions_that_leave_no_room_are_refused() -> None:
    values = {"engines": {"max_model_len": 300}, "evaluation": {"max_completion_length": 300}}
    with pytest.raises(ConfigError, match=r"engines.max_model_len=300 leaves no room .*max_completion_length=300"):
        validate(values)


@pytest.mark.parametrize(("training", "held_out"), [(8, 3), (8, 16), (5, 7)])
def test_samples_of_an_evaluation_are_held_against_nothing_of_training(training: int, held_out: int) -> None:
    """huggingface/trl #4682, #3889: the evaluation's batch was divided by the training's number of generations."""
    config = AsyncGRPOConfig(num_generations=training, num_generations_eval=held_out, groups_per_step=3)
    run = config.to_run_config(evaluation={"dataset": "held_out.jsonl"})
    assert (run.evaluation.num_generations_eval, run.generation.num_generations) == (held_out, training)


def test_trls_words() -> None:
    args = AsyncGRPOConfig(eval_strategy="steps", eval_steps=10, eval_on_start=True, num_generations_eval=2)
    section = args.to_run_config().evaluation
    assert (section.eval_strategy, section.eval_steps, section.eval_on_start) == ("steps", 10, True)
    with pytest.raises(ConfigError, match=r"per_device_eval_batch_size.*bounded by eval_max_concurrency"):
        AsyncGRPOConfig(per_device_eval_batch_size=8)
    with pytest.raises(ConfigError, match="eval_steps=5 has no effect with eval_strategy=no"):
        AsyncGRPOConfig(eval_strategy="no", eval_steps=5)
