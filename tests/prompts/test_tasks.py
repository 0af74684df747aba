"""Tasks by name, and the reward that verifies them."""

from typing import Any

import pytest
import reasoning_gym

from asyncgrpo.config import RunConfig
from asyncgrpo.config.flat import AsyncGRPOConfig
from asyncgrpo.config.loading import load_config
from asyncgrpo.config.sections import RewardSection
from asyncgrpo.errors import ConfigError, DataError
from asyncgrpo.prompts import load_rows
from asyncgrpo.prompts.table import Rows
from asyncgrpo.rewards import check_parameters, from_config
from asyncgrpo.rewards.builtin import reasoning_gym as reward
from asyncgrpo.rewards.builtin.tasks import answer_of


def rows(seed: int = 42, **data: Any) -> Rows:
    return load_rows(
        RunConfig.model_validate({"data": {"dataset": "reasoning_gym:leg_counting", **data}, "run": {"seed": seed}})
    )


def scored(found: Rows, completions: list[Any]) -> list[float | None]:
    names = ("task", "task_arguments", "task_index", "answer")
    columns = {name: [row[name] for row in found][: len(completions)] for name in names}
    return reward(completions=completions, **columns)


def test_tasks_are_those_of_the_package() -> None:
    found = rows(max_rows=3, task_arguments={"max_animals": 4})
    made = reasoning_gym.create_dataset("leg_counting", size=3, seed=42, max_animals=4)
    assert [(row["prompt"], row["answer"]) for row in found] == [(each["question"], each["answer"]) for each in made]
    assert found[1]["task_index"] == 1
    assert found.digest == rows(max_rows=3, task_arguments={"max_animals": 4}).digest
    assert found.digest != rows(max_rows=3).digest


def test_how_many_and_which_seed() -> None:
    assert len(rows()) == 500
    assert len(rows(task_arguments={"size": 7})) == 7
    assert len(rows(task_arguments={"size": 7}, max_rows=2)) == 2
    first = rows(max_rows=1)[0]["prompt"]
    assert rows(seed=1, max_rows=1)[0]["prompt"] != first
    assert rows(seed=1, max_rows=1, task_arguments={"seed": 42})[0]["prompt"] == first


def test_answers_are_verified_by_the_task() -> None:
    found = rows(max_rows=3)
    right = [row["answer"] for row in found]
    assert scored(found, [f"So <answer>1</answer>, no: <answer> {answer} </answer>." for answer in right]) == [1.0] * 3
    assert scored(found, right) == [1.0] * 3
    assert scored(found, [[{"role": "assistant", "content": answer}] for answer in right]) == [1.0] * 3
    assert scored(found, ["nothing", right[0], f"<answer>x</answer> {right[2]}"]) == [0.0] * 3


def test_a_verifier_that_takes_more_than_one_answer() -> None:
    found = rows(dataset="reasoning_gym:countdown", max_rows=1)
    numbers = reasoning_gym.create_dataset("countdown", size=1, seed=42)[0]
    assert scored(found, [numbers["metadata"]["expression"]]) == [1.0]
    assert found[0]["answer"] == numbers["answer"]


def test_the_reward_has_a_short_name_and_takes_the_columns_of_tasks() -> None:
    functions = from_config([RewardSection(path="reasoning_gym")])
    check_parameters(functions, set(rows(max_rows=1).column_names) - {"prompt"})
    with pytest.raises(ConfigError, match="reward function 'reasoning_gym' needs 'task', which is none of"):
        check_parameters(functions, {"answer"})


def test_rows_of_other_datasets_do_not_apply() -> None:
    assert reward(completions=["a"], task=[None], task_arguments=[None], task_index=[None]) == [None]
    assert answer_of("<answer>a\nb</answer>") == "a\nb"


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (
            {"dataset": "reasoning_gym:leg_countin"},
            "no task 'leg_countin'; did you mean leg_counting",
        ),
        (
            {"task_arguments": {"animals": 4}},
            "leg_counting refuses them: .* unexpected keyword argument 'animals'",
        ),
        ({"task_arguments": {"min_animals": -1}}, "leg_counting refuses them: min_animals must be positive"),
        ({"task_arguments": {"min_animals": "a"}}, "leg_counting refuses them: '>' not supported"),
    ],
)
def test_refused_tasks(data: dict[str, Any], message: str) -> None:
    with pytest.raises(DataError, match=message):
        rows(**data)


def test_arguments_without_a_task() -> None:
    with pytest.raises(ConfigError, match=r"data\.task_arguments are for tasks, and no dataset is one"):
        load_config(None, ["--data.task_arguments={size: 3}", "--data.dataset=a.jsonl"])
    given = AsyncGRPOConfig(task_arguments={"size": 3}).to_run_config()  # the task is given to the trainer
    with pytest.raises(ConfigError, match=r"data\.task_arguments=\{'size': 3\} are .*train_dataset is rows"):
        load_rows(given, [{"prompt": "a"}])


def test_a_mix_of_tasks() -> None:
    mix = [{"dataset": f"reasoning_gym:{name}", "max_rows": 3} for name in ("leg_counting", "countdown")]
    found = load_rows(RunConfig.model_validate({"data": {"mix": mix}}))
    assert {row["dataset"] for row in found} == {row["task"] for row in found} == {"leg_counting", "countdown"}
