"""What an environment means for columns of the dataset and for rewards."""

import pytest

from asyncgrpo.config import RunConfig
from asyncgrpo.environments import Answer, Turn
from asyncgrpo.environments.building import find_source
from asyncgrpo.playing import check_columns
from asyncgrpo.rewards.functions import environment_reward, from_callables


class Silent:
    def step(self, answer: Answer) -> Turn:
        return Turn(done=True)


def test_a_column_that_the_environments_reward_takes_the_place_of_is_warned_of(
    caplog: pytest.LogCaptureFixture,
) -> None:
    functions = from_callables(environment_reward)
    source = find_source(RunConfig(), Silent)
    check_columns(functions, source, {"answer"})
    check_columns(functions, None, {"environment_reward"})  # nothing takes its place
    assert caplog.messages == []
    check_columns(functions, source, {"answer", "environment_reward"})
    assert caplog.messages == [
        "the dataset's column environment_reward is not passed to reward functions: the environment's own reward has "
        "that name"
    ]
