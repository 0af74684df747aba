"""Built-in rewards as configurations and Python name them, and what is said of arguments that do not fit."""

from typing import Any

import pytest

from asyncgrpo.config.sections import RewardSection
from asyncgrpo.errors import ConfigError
from asyncgrpo.rewards import check_parameters, from_callables, from_config
from asyncgrpo.rewards.builtin import BUILTIN, Repetition, SoftOverlong, number_match, repetition
from asyncgrpo.rewards.functions import RewardFunction


def configured(path: str, **arguments: Any) -> RewardFunction:
    [reward] = from_config([RewardSection(path=path, arguments=arguments)])
    return reward


@pytest.mark.parametrize(
    "path", ["repetition", "asyncgrpo.rewards.builtin:repetition", "asyncgrpo.rewards.builtin:Repetition"]
)
def test_a_short_name_the_object_and_the_class_are_the_same(path: str) -> None:
    plain, told = configured(path), configured(path, ngram_size=2, max_penalty=-0.5)
    assert isinstance(plain.call, Repetition) and isinstance(told.call, Repetition)
    assert (plain.call.ngram_size, plain.call.max_penalty) == (3, -1.0)
    assert told.call(completion_ids=[[5] * 5]) == [-0.375]
    assert plain.name == told.name == "repetition"
    assert repetition.ngram_size == 3  # arguments make another object


def test_every_built_in_reward_has_a_name_and_takes_what_it_reads() -> None:
    for short, cls in BUILTIN.items():
        reward = cls(soft_punish_cache=1) if cls is SoftOverlong else cls()
        [function] = from_callables(reward)
        assert function.name == short == reward.short


@pytest.mark.parametrize(
    ("path", "arguments", "message"),
    [
        ("repetition", {"ngram_size": "3"}, "argument ngram_size = '3': expected a whole number"),
        ("repetition", {"ngram_size": 0}, "argument ngram_size = 0: expected more than 0"),
        ("repetition", {"max_penalty": 0.5}, "argument max_penalty = 0.5: expected at most 0.0"),
        (
            "repetition",
            {"size": 3},
            "reward 'repetition': Repetition has no argument 'size'; it takes ngram_size, max_",
        ),
        ("soft_overlong", {}, "reward 'soft_overlong': SoftOverlong needs the argument 'soft_punish_cache'"),
        ("accuracy", {"on_lost": "zero"}, "argument on_lost = 'zero': expected one of 'none' or 'error'"),
        ("acuracy", {}, "or a built-in one: accuracy, reasoning_accuracy, number_match, exact_match, code_execution, "),
        ("acuracy", {}, "; did you mean accuracy?"),
    ],
)
def test_what_does_not_fit_is_refused(path: str, arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        configured(path, **arguments)
    assert message in str(caught.value)


def test_a_column_that_is_not_there_is_refused_by_name() -> None:
    check_parameters([configured("number_match", answer_column="answer")], {"answer"})
    with pytest.raises(ConfigError, match="reward function 'number_match' needs 'solution', which is none of"):
        check_parameters(from_callables([number_match]), {"answer"})
    check_parameters(from_callables([repetition]), set())
