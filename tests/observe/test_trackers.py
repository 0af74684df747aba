"""A tracker gets every step once and cannot hurt a run; TensorBoard's files hold what was recorded."""

import json
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from asyncgrpo.config import RunConfig
from asyncgrpo.errors import ConfigError
from asyncgrpo.observe.metrics import RunMetrics
from asyncgrpo.observe.timing import TimeAccount
from asyncgrpo.observe.trackers.courier import Courier, Step
from asyncgrpo.observe.trackers.tensorboard import TensorBoard
from asyncgrpo.observe.trackers.tracker import About, Tracker
from asyncgrpo.observe.trackers.trackers import TRACKERS, check_installed, numbers_of


class Fake:
    """Keeps what it is told; fails or hangs when it is told to."""

    def __init__(self, *, replaces: bool = False, fails_at: tuple[int, ...] = (), opens: bool = True) -> None:
        self.replaces, self._fails_at, self._opens = replaces, fails_at, opens
        self.about: About | None = None
        self.steps: list[int] = []
        self.closed = False
        self.may_go_on = threading.Event()
        self.may_go_on.set()
        self.called = threading.Event()

    def open(self, about: About) -> None:
        if not self._opens:
            raise RuntimeError("no\nlogin")
        self.about = about

    def log(self, step: int, time: float, values: Mapping[str, float]) -> None:
        self.called.set()
        assert self.may_go_on.wait(30)
        if step in self._fails_at:
            raise OSError(f"no network at {step}")
        self.steps.append(step)

    def close(self) -> None:
        self.closed = True


class Told:
    """What the user and the counter were told."""

    def __init__(self) -> None:
        self.notes: list[str] = []
        self.lost = 0

    def lose(self, steps: int) -> None:
        self.lost += steps


def about(folder: Path) -> About:
    return About(
        name="first",
        project="asyncgrpo",
        identity="1a2b3c4d",
        config={"run": {"seed": 42}},
        folder=folder / "trackers",
        is_resumed=False,
    )


def courier_of(tracker: Tracker, folder: Path, told: Told, name: str = "fake", **options: Any) -> Courier:
    return Courier(name, tracker, about(folder), timeout=5.0, note=told.notes.append, lost=told.lose, **options)


def send(it: Courier, steps: range, value: float = 0.0) -> None:
    for step in steps:
        it.step(Step(step, 1000.0 + step, {"reward_mean": step + value}))
    it.ask_to_end()
    it.wait(30)


def test_every_step_is_handed_over_once(tmp_path: Path) -> None:
    told, first = Told(), Fake()
    send(courier_of(first, tmp_path, told), range(1, 4))
    assert (first.steps, first.closed, told.notes, told.lost) == ([1, 2, 3], True, [], 0)
    assert first.about is not None
    assert not first.about.is_resumed


def test_a_resumed_run_goes_on_where_the_tracker_is(tmp_path: Path) -> None:
    told, first, second, third = Told(), Fake(), Fake(), Fake(replaces=True)
    send(courier_of(first, tmp_path, told), range(1, 6))
    send(courier_of(second, tmp_path, told), range(4, 8))  # the checkpoint was of step 3
    assert second.about is not None
    assert second.about.is_resumed
    assert second.steps == [6, 7]
    assert told.notes == [
        "warning: fake keeps what it has of steps up to 5, which are trained anew; see metrics.jsonl; the run goes on"
    ]
    assert told.lost == 0
    send(courier_of(third, tmp_path, told), range(5, 8))
    assert third.steps == [5, 6, 7]


def test_a_run_without_a_step_has_nothing_to_track(tmp_path: Path) -> None:
    fake = Fake()
    send(courier_of(fake, tmp_path, Told()), range(0))
    assert (fake.about, fake.closed) == (None, False)
    assert not (tmp_path / "trackers").exists()  # the folder must stay one in which a run can start


def test_a_tracker_that_fails_is_said_once_and_counted(tmp_path: Path) -> None:
    told, fake = Told(), Fake(fails_at=(2, 3))
    send(courier_of(fake, tmp_path, told), range(1, 5))
    assert (fake.steps, fake.closed, told.lost) == ([1, 4], True, 2)
    assert told.notes == ["warning: fake failed: OSError: no network at 2; the run goes on"]


def test_a_tracker_that_does_not_open_gets_nothing(tmp_path: Path) -> None:
    told, fake = Told(), Fake(opens=False)
    send(courier_of(fake, tmp_path, told), range(1, 4))
    assert (fake.steps, fake.closed, told.lost) == ([], False, 3)
    assert told.notes == ["warning: fake failed: RuntimeError: no login; the run goes on"]


def test_a_tracker_that_hangs_holds_up_nothing(tmp_path: Path) -> None:
    now = 0.0
    told, fake = Told(), Fake()
    fake.may_go_on.clear()
    it = courier_of(fake, tmp_path, told, clock=lambda: now, most_waiting=4)
    it.step(Step(1, 0.0, {}))
    assert fake.called.wait(30)
    it.step(Step(2, 0.0, {}))
    assert told.notes == []
    now = 5.1
    for step in range(3, 8):
        it.step(Step(step, 0.0, {}))
    assert told.lost == 2  # four wait
    it.ask_to_end()
    it.wait(0.1)
    assert told.lost == 7
    assert told.notes == [
        "warning: fake has not answered for 5 s (observe.tracker_timeout); steps wait for it; the run goes on",
        "warning: fake is 4 steps behind; the run goes on",
    ]
    fake.may_go_on.set()


def test_only_finite_numbers_are_tracked() -> None:
    record = {"step": 3, "time": 1e9, "reward_mean": 0.5, "samples": 4, "loss": None, "verdict": "balanced"}
    assert numbers_of(record | {"x": float("nan")}) == {"reward_mean": 0.5, "samples": 4.0}


def test_a_missing_package_is_refused_with_its_extra(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "not_a_package").mkdir()  # as ./wandb is one, after an offline run
    for name in ("not_a_package", "nowhere"):
        with pytest.raises(
            ConfigError, match=rf"^observe\.trackers names {name}, .*; pip install 'asyncgrpo\[{name}\]"
        ):
            check_installed((name,))
    check_installed(("json", "rich"))


def test_every_tracker_of_the_configuration_is_there_and_counted() -> None:
    metrics = RunMetrics(
        info={"run": "r"}, target_steps=1, slots=1, engines=[], rewards=[], learner=TimeAccount(("waiting", "training"))
    )
    for name in RunConfig.model_validate({"observe": {"trackers": list(TRACKERS)}}).observe.trackers:
        metrics.process.tracker_steps_lost.labels(name).inc(0)


def test_tensorboard_has_each_step_once_also_after_a_rewind(tmp_path: Path) -> None:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    told = Told()
    send(courier_of(TensorBoard(), tmp_path, told, name="tensorboard"), range(1, 6))
    send(courier_of(TensorBoard(), tmp_path, told, name="tensorboard"), range(4, 7), value=100.0)
    assert (told.notes, told.lost) == ([], 0)
    assert json.loads((tmp_path / "trackers" / "tensorboard.json").read_text()) == {"last_step": 6}
    events = EventAccumulator(str(tmp_path / "trackers" / "tensorboard")).Reload()
    scalars = events.Scalars("reward_mean")
    assert [(e.step, e.value, e.wall_time) for e in scalars] == [
        (1, 1.0, 1001.0),
        (2, 2.0, 1002.0),
        (3, 3.0, 1003.0),
        (4, 104.0, 1004.0),
        (5, 105.0, 1005.0),
        (6, 106.0, 1006.0),
    ]
    config = events.Tensors("config")
    assert [event.step for event in config] == [1, 4]  # once per start
    assert '"seed": 42' in config[0].tensor_proto.string_val[0].decode()


def test_tensorboard_when_the_same_process_goes_back(tmp_path: Path) -> None:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    tracker = TensorBoard()
    tracker.open(about(tmp_path))
    for step, value in ((1, 1.0), (2, 2.0), (3, 3.0), (2, 20.0)):
        tracker.log(step, 0.0, {"loss": value})
    tracker.close()
    events = EventAccumulator(str(tmp_path / "trackers" / "tensorboard")).Reload()
    assert [(event.step, event.value) for event in events.Scalars("loss")] == [(1, 1.0), (2, 20.0)]
