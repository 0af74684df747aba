"""What an engine's time is accounted for."""

import asyncio

import pytest

from asyncgrpo.errors import EngineRejected, EngineUnavailable
from asyncgrpo.observe.activity import ENGINE_STATES, EngineActivity


class Engine:
    def __init__(self) -> None:
        self.now = 0.0
        self.activity = EngineActivity(lambda: self.now)

    def after(self, seconds: float) -> EngineActivity:
        self.now += seconds
        return self.activity

    def seconds(self) -> list[float]:
        """In the order of ENGINE_STATES."""
        seconds = self.activity.time.seconds()
        return [seconds[state] for state in ENGINE_STATES]


def test_every_second_is_of_one_state_and_all_sum_to_the_wall_clock() -> None:
    engine = Engine()
    engine.after(1).served()
    with engine.after(2).request():
        with engine.after(4).request():
            engine.after(8).paused()
        engine.after(16).resumed()
        engine.after(32)
    engine.after(64).left()
    engine.after(128).served()
    engine.after(256)
    assert engine.seconds() == [1, 2 + 64 + 256, 4 + 8 + 32, 16, 0, 128]
    assert sum(engine.seconds()) == engine.now


def test_what_happens_while_it_gets_no_work_leaves_the_state_alone() -> None:
    """The first version is loaded, and weights are proven, before an engine serves; one that is away is loaded anew."""
    engine = Engine()
    engine.after(1).paused()
    engine.after(1).resumed()
    with engine.after(1).request():
        engine.after(1).served()
        engine.after(1).left()
        engine.after(1).paused()
    engine.after(1).resumed()
    assert engine.seconds() == [4, 0, 1, 0, 0, 2]


def test_a_swap_of_adapters_is_told_apart_from_a_pause_and_from_other_work() -> None:
    engine = Engine()
    engine.activity.served()
    with engine.after(1).request():
        with engine.after(2).swap():
            engine.after(4)
            with engine.activity.request():
                engine.after(8)
        engine.after(16)
    with pytest.raises(EngineUnavailable), engine.activity.swap():
        engine.after(32)
        raise EngineUnavailable("it is gone")
    engine.after(64)
    assert engine.seconds() == [0, 1 + 64, 2 + 16, 0, 4 + 8 + 32, 0]


def test_an_engine_that_leaves_while_it_is_paused_comes_back_unpaused() -> None:
    engine = Engine()
    engine.activity.served()
    engine.activity.paused()
    engine.activity.left()
    engine.activity.served()
    assert (engine.activity.time.state, engine.activity.is_serving) == ("idle", True)


@pytest.mark.parametrize(
    ("error", "outcome"),
    [
        (EngineRejected("400"), "refused"),
        (EngineUnavailable("503"), "failed"),
        (asyncio.CancelledError(), "cancelled"),
    ],
)
def test_requests_are_counted_by_how_they_end(error: BaseException, outcome: str) -> None:
    activity = EngineActivity()
    with activity.request():
        assert activity.open_requests == 1
    with pytest.raises(type(error)), activity.request():
        raise error
    assert activity.open_requests == 0
    assert activity.requests == {"answered": 1, outcome: 1}
