"""Every configuration in configs/ loads, and its rewards do what they say."""

from pathlib import Path

import pytest

from asyncgrpo.config.loading import load_config
from asyncgrpo.config.resolve import Machine, resolve
from asyncgrpo.environments import Answer
from asyncgrpo.environments.building import find_source
from asyncgrpo.playing import reward_functions
from asyncgrpo.rewards.importing import from_config, import_function
from asyncgrpo.user_code.importing import import_object

CONFIGS = sorted(Path(__file__).parents[2].joinpath("configs").glob("*.yaml"))


@pytest.mark.parametrize("path", CONFIGS, ids=lambda path: path.name)
def test_loads_and_its_rewards_exist(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(path.parents[1])
    config = load_config(path).config
    resolved = resolve(config, Machine(cores=(0, 1), gpus=(0, 1), fast_bf16=False))
    assert "auto" not in (*resolved.engines.devices, *resolved.learner.devices, resolved.engines.dtype)
    assert [function.name for function in reward_functions(config, find_source(config))]


def test_the_quickstart_shares_the_cores_also_where_there_are_gpus() -> None:
    config = load_config(CONFIGS[0].parent / "quickstart_cpu.yaml").config
    placed = resolve(config, Machine(cores=(0, 1), gpus=(0, 1), fast_bf16=False))
    assert (placed.engines.devices, placed.learner.devices) == (("cpu:0",), ("cpu:1",))


def reward(name: str):
    return import_function(f"{CONFIGS[0].parent}/rewards.py:{name}")


def test_repeats_numbers_rewards_neither_silence_nor_length() -> None:
    score = reward("repeats_numbers")
    completions = ["3, 8, 1, 5.", "3 8", "", "no", "3, 8, 1, 5, 3, 8, 1, 5", "8, 3, 1, 5", "3, 8, 1, 5 is what I read"]
    assert score(completions=completions, answer=[[3, 8, 1, 5]] * 7) == [1.0, 0.0, -1.0, -1.0, 0.0, -1.0, 0.0]
    share = reward("numbers_repeated")
    assert share(completions=completions, answer=[[3, 8, 1, 5]] * 7) == [1.0, 0.5, 0.0, 0.0, 0.5, 0.0, 0.5]
    assert score(completions=[[{"role": "assistant", "content": "3,8,1,5"}]], answer=[[3, 8, 1, 5]]) == [1.0]


def test_gsm8k_is_scored_by_the_last_number(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(CONFIGS[0].parents[1])
    [function] = from_config(load_config(CONFIGS[0].parent / "gsm8k_qwen2.5_0.5b.yaml").config.rewards)
    answers = ["so 2 + 2\n#### 1,234"] * 4
    completions = ["it is 1234", "1,234.0", "12", "none"]
    assert function.call(completions=completions, answer=answers) == [1.0, 1.0, 0.0, 0.0]


@pytest.mark.parametrize(
    ("answers", "rewards", "said"),
    [
        (["6"], [1.0], []),
        (["5", "7.", "Is it 6?"], [0.0, 0.0, 0.8], ["Higher.", "Lower."]),
        (["5", "I think of a very large one"], [0.0, -1.0], ["Higher."]),
        (["5 or 6"], [-1.0], []),
        (["16"], [-1.0], []),
    ],
)
def test_the_guessing_game(answers: list[str], rewards: list[float], said: list[str]) -> None:
    game = import_object(f"{CONFIGS[0].parent}/guessing_game.py:Guessing", "environment", "class")()
    game.reset(number=6)
    turns = [game.step(Answer(text=text, turn=turn)) for turn, text in enumerate(answers, start=1)]
    assert [turn.reward for turn in turns] == rewards
    assert [turn.messages for turn in turns if not turn.done] == said
    assert game.step(Answer(text="6", turn=1, is_cut=True)).reward == -1.0
