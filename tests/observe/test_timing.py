import pytest

from asyncgrpo.observe.timing import TimeAccount


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def test_states_sum_to_wall_clock_with_the_running_interval() -> None:
    clock = Clock()
    account = TimeAccount(("waiting", "training", "snapshot"), clock)
    clock.now = 103.0
    account.enter("training")
    clock.now = 110.0
    assert account.state == "training"
    assert account.seconds() == {"waiting": 3.0, "training": 7.0, "snapshot": 0.0}
    clock.now = 111.5
    assert sum(account.seconds().values()) == 11.5


def test_during_returns_to_the_state_before_also_after_an_error() -> None:
    clock = Clock()
    account = TimeAccount(("waiting", "training"), clock)
    with pytest.raises(KeyError), account.during("training"):
        clock.now = 102.0
        raise KeyError
    clock.now = 103.0
    assert account.seconds() == {"waiting": 1.0, "training": 2.0}


def test_laps_split_a_running_interval() -> None:
    clock = Clock()
    account = TimeAccount(("waiting", "training"), clock)
    clock.now = 104.0
    assert account.lap() == {"waiting": 4.0, "training": 0.0}
    clock.now = 105.0
    account.enter("training")
    clock.now = 107.0
    assert account.lap() == {"waiting": 1.0, "training": 2.0}
    assert account.lap() == {"waiting": 0.0, "training": 0.0}


def test_unknown_state_is_refused() -> None:
    with pytest.raises(ValueError, match="unknown state 'sleeping'; one of waiting, training"):
        TimeAccount(("waiting", "training")).enter("sleeping")
    with pytest.raises(ValueError, match="at least one"):
        TimeAccount(())
