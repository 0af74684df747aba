"""What is refused before a model loads, and how held-out prompts are asked."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from datasets import Dataset
from evaluation_cases import config_of, held_out_rows, is_good, job_of

from asyncgrpo.errors import ConfigError, DataError
from asyncgrpo.evaluation.held_out import HeldOut
from asyncgrpo.rewards.builtin import Cosine


def prepared(model: Path, folder: Path, eval_rows: Any = None, *, reward: Any = is_good, **sections: Any) -> HeldOut:
    asked = job_of(config_of(model, folder, **sections), eval_rows, reward=reward).held_out
    assert asked is not None
    return asked


def needs_answer(completions: Sequence[str], answer: Sequence[str]) -> list[float]:
    return [float(a == c) for a, c in zip(answer, completions, strict=True)]


def test_settings_without_prompts_are_refused(tiny_model: Path, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"evaluation.eval_steps=2 has no effect without held-out prompts"):
        job_of(config_of(tiny_model, tmp_path), None)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("", r"held_out.jsonl: has no rows"),
        ('{"question": "1+1"}', r"held_out.jsonl: has no column 'prompt'"),
        ('{"prompt": ""}', r"held_out.jsonl: row 0: the prompt is empty"),
        ("{", r"held_out.jsonl:1: not valid JSON"),
    ],
)
def test_bad_files_are_named(tiny_model: Path, tmp_path: Path, content: str, message: str) -> None:
    path = tmp_path / "held_out.jsonl"
    path.write_text(content)
    with pytest.raises(DataError, match=message):
        job_of(config_of(tiny_model, tmp_path, evaluation={"dataset": str(path)}), None)


def test_errors_name_the_settings_of_the_evaluation(tiny_model: Path, tmp_path: Path) -> None:
    missing = {"dataset": str(tmp_path / "none.jsonl")}
    with pytest.raises(DataError, match=r"^evaluation.dataset=.*none.jsonl: no such file"):
        job_of(config_of(tiny_model, tmp_path, evaluation=missing), None)
    with pytest.raises(DataError, match=r"^eval_dataset: has no rows"):
        job_of(config_of(tiny_model, tmp_path), [])


def test_a_column_that_a_reward_function_needs_is_missed_at_once(tiny_model: Path, tmp_path: Path) -> None:
    rows = [{"prompt": "s0", "answer": "a"}]
    config = config_of(tiny_model, tmp_path)
    assert job_of(config, rows, reward=needs_answer, rows=rows * 8).held_out is not None
    with pytest.raises(ConfigError, match=r"^evaluation.dataset: reward function 'needs_answer' needs 'answer'"):
        job_of(config, [{"prompt": "e0", "other": "a"}], reward=needs_answer, rows=rows * 8)


def test_a_name_that_no_reward_function_has(tiny_model: Path, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"evaluation.pass_reward='exact' is none of the reward functions: is_good"):
        prepared(tiny_model, tmp_path, held_out_rows("e0"), evaluation={"pass_reward": "exact"})


def test_a_step_is_not_given_up_before_an_evaluation(tiny_model: Path, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"evaluation.timeout=60 is not less than buffer.stall_timeout=60"):
        prepared(tiny_model, tmp_path, held_out_rows("e0"), evaluation={"timeout": 60.0})
    prepared(tiny_model, tmp_path, held_out_rows("e0"), evaluation={"timeout": 60.0, "one_version": False})


def test_how_prompts_are_asked(tiny_model: Path, tmp_path: Path) -> None:
    rows = held_out_rows("e0", "a prompt of more than twenty tokens", "e2", "e3")
    asked = prepared(tiny_model, tmp_path, rows, data={"max_prompt_length": 20}, evaluation={"max_prompts": 2})
    assert [prompt.prompt for prompt in asked.prompts] == ["e0", "e2"]
    assert [prompt.prompt_id for prompt in asked.prompts] == ["eval-0", "eval-2"]
    assert (asked.skipped, asked.samples_per_prompt) == (1, 4)
    assert asked.config.generation.temperature == 1.0
    greedy = prepared(tiny_model, tmp_path, rows, evaluation={"temperature": 0.0, "max_completion_length": 7})
    generation = greedy.config.generation
    assert (generation.temperature, generation.num_generations, generation.max_completion_length) == (0.0, 1, 7)
    assert greedy.ks == [1]
    assert asked.digest != greedy.digest


def test_long_completions_take_their_room_from_prompts(tiny_model: Path, tmp_path: Path) -> None:
    """The tiny model holds 512 tokens."""
    long = {"max_completion_length": 490}
    asked = prepared(tiny_model, tmp_path, held_out_rows("e0", "x" * 23), evaluation=long)
    assert ([prompt.prompt for prompt in asked.prompts], asked.skipped) == (["e0"], 1)
    with pytest.raises(ConfigError, match=r"evaluation.max_completion_length=512 leaves no room for a prompt in 512"):
        prepared(tiny_model, tmp_path, held_out_rows("e0"), evaluation={"max_completion_length": 512})


def prompts_of(asked: HeldOut) -> list[Any]:
    return [prompt.prompt for prompt in asked.prompts]


def test_rows_have_the_shape_of_training_data_unless_they_have_their_own(tiny_model: Path, tmp_path: Path) -> None:
    """Also where the training mixes datasets, each with settings of its own."""
    (tmp_path / "train.jsonl").write_text('{"q": 1, "scale": 0.5}\n' * 8)
    (tmp_path / "held_out.jsonl").write_text('{"q": 1, "ask": "e0", "scale": 1.0}\n' * 2)
    mix = [{"dataset": str(tmp_path / "train.jsonl"), "prompt_template": "{q}", "columns": {}}]
    data = {"mix": mix, "columns": {"question": "q"}, "prompt_template": "{question} + 1", "max_rows": 1}
    sections = {"data": data, "evaluation": {"dataset": str(tmp_path / "held_out.jsonl")}}
    job = job_of(config_of(tiny_model, tmp_path, **sections), None, from_config=True)
    assert (job.prompts.rows, job.prompts.peek(1)[0].prompt) == (1, "1")
    assert job.held_out is not None
    assert prompts_of(job.held_out) == ["1 + 1", "1 + 1"]
    sections["evaluation"] |= {"columns": {"question": "ask"}, "system_prompt": "Answer.", "max_prompts": 1}
    job = job_of(config_of(tiny_model, tmp_path, **sections), None, from_config=True)
    assert job.held_out is not None
    told = {"role": "system", "content": "Answer."}
    assert prompts_of(job.held_out) == [[told, {"role": "user", "content": "e0 + 1"}]]
    sections["evaluation"] |= {"columns": {"question": "none"}}
    with pytest.raises(DataError, match=r"held_out.jsonl: has no column 'none', which evaluation.columns names"):
        job_of(config_of(tiny_model, tmp_path, **sections), None, from_config=True)


def test_held_out_tasks_are_others_than_those_trained_on(tiny_model: Path, tmp_path: Path) -> None:
    def asked(data: dict[str, Any], **evaluation: Any) -> tuple[list[Any], list[Any]]:
        sections = {"evaluation": {"dataset": "reasoning_gym:leg_counting", **evaluation}, "data": data}
        job = job_of(config_of(tiny_model, tmp_path, **sections), None, reward=everything, from_config=True)
        assert job.held_out is not None
        found = job.held_out.prompts
        assert all(tuple(prompt.columns) == ("answer", "task", "task_arguments", "task_index") for prompt in found)
        return [prompt.prompt for prompt in job.prompts.peek(job.prompts.rows)], prompts_of(job.held_out)

    data = {"dataset": "reasoning_gym:leg_counting", "max_rows": 50, "task_arguments": {"max_animals": 3}}
    trained, held_out = asked(data, max_prompts=20)
    assert (len(trained), len(held_out)) == (50, 20)
    assert set(trained).isdisjoint(held_out)
    assert asked(data, max_prompts=20)[1] == held_out
    same = {"size": 20, "seed": 7, "max_animals": 3}
    trained, held_out = asked(data | {"task_arguments": same}, task_arguments=same)
    assert set(trained) == set(held_out)  # as was asked for
    trained, held_out = asked(data | {"task_arguments": same}, max_prompts=20)
    assert set(trained).isdisjoint(held_out)
    with pytest.raises(DataError, match=r"^evaluation.task_arguments=.*leg_counting refuses them"):
        asked(data, task_arguments={"animals": 1})


def everything(completions: Sequence[str], **_: Any) -> list[float]:
    return [1.0] * len(completions)


def test_streaming_rows_need_to_know_how_many(tiny_model: Path, tmp_path: Path) -> None:
    stream = Dataset.from_list(held_out_rows("e0", "e1", "e2")).to_iterable_dataset()
    assert prompts_of(prepared(tiny_model, tmp_path, stream, evaluation={"max_prompts": 2})) == ["e0", "e1"]
    with pytest.raises(DataError, match=r"^eval_dataset is a streaming dataset.*set evaluation.max_prompts to"):
        prepared(tiny_model, tmp_path, stream)


def test_built_in_rewards_of_its_own_know_the_run(tiny_model: Path, tmp_path: Path) -> None:
    rows = [{"prompt": "e0", "solution": "1"}]
    [reward] = prepared(tiny_model, tmp_path, rows, evaluation={"rewards": ["cosine"]}).rewards
    assert isinstance(reward.call, Cosine) and reward.call.max_len == 12


def test_rewards_of_its_own(tiny_model: Path, tmp_path: Path) -> None:
    file = tmp_path / "own.py"
    file.write_text("def exact(completions, scale):\n    return [0.0 for _ in completions]\n")
    own = {"rewards": [f"{file}:exact"], "pass_reward": "exact"}
    asked = prepared(tiny_model, tmp_path, held_out_rows("e0"), evaluation=own)
    assert [(function.name, function.weight) for function in asked.rewards] == [("exact", 1.0)]
