"""Runs that are killed at random moments and resumed from their last checkpoint, through its files.

The parts are the run's own: contract, buffer, books, replay, prompt stream, the ledger's file and its rewinding. What
the orchestrator does between them is done here, one move after the other, in any order that may happen.
"""

from __future__ import annotations

import json
import random
import tempfile
from collections import Counter, defaultdict
from collections.abc import Coroutine, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from asyncgrpo import run_state
from asyncgrpo.books import Books
from asyncgrpo.buffer.buffer import RolloutBuffer
from asyncgrpo.buffer.contract import StalenessContract
from asyncgrpo.buffer.replay import ReplayStore
from asyncgrpo.config import RunConfig
from asyncgrpo.errors import CheckpointError, DataError, EngineUnavailable
from asyncgrpo.observe.ledger_file import read_ledger
from asyncgrpo.observe.reuse import ReuseMeter
from asyncgrpo.observe.rewind import lengths, rewind
from asyncgrpo.observe.run_folder import RunFolder
from asyncgrpo.preflight import Job
from asyncgrpo.prompts.stream import PromptStream
from asyncgrpo.prompts.table import Rows, Source
from asyncgrpo.types import Completion, Group, LedgerEntry, Sample

ERROR = EngineUnavailable("the engine said no")
SHM = Path("/dev/shm")


class Dataset:
    """As much of a `datasets.Dataset` as is asked for."""

    column_names = ("prompt", "object")

    def __init__(self, count: int) -> None:
        self._count = count

    def __len__(self) -> int:
        return self._count

    def __getitem__(self, rows: list[int]) -> dict[str, Any]:
        return {"prompt": [f"prompt {row}" for row in rows], "object": [object for _ in rows]}


def table(count: int) -> Rows:
    return Rows([Source(name="data", values=Dataset(count), system_prompt=None)], "prompt", mixed=False)


def tokenizer(text: str) -> dict[str, list[int]]:
    return {"input_ids": list(text.encode())}


def now(coroutine: Coroutine[Any, Any, Any]) -> Any:
    """The result of what has nothing to wait for."""
    try:
        coroutine.send(None)
    except StopIteration as done:
        return done.value
    raise AssertionError("had to wait")


@dataclass
class Run:
    config: RunConfig
    rows: int
    steps: int
    path: Path
    rng: random.Random
    save_rate: float
    kill_rate: float
    bad_rows: frozenset[int] = frozenset()

    in_flight: dict[int, tuple[Any, int]] = field(default_factory=dict)  # group -> ticket, start version
    training: list[Group] = field(default_factory=list)
    trained: list[str] = field(default_factory=list)  # prompts, as the learner's weights have them
    saved: tuple[Path, list[str], dict[str, Any]] | None = None
    kills: int = 0
    of_another_schedule: int = 0  # prompts trained when steps had another size, beyond what today's size makes of them

    def __post_init__(self) -> None:
        self.folder = RunFolder(self.path)
        self.path.mkdir(exist_ok=True)
        self.start()

    def start(self) -> None:
        """New objects, as a new process makes them."""
        config = self.config
        self.stream = PromptStream(table(self.rows), tokenizer, config)
        self.contract = StalenessContract(
            max_staleness=config.buffer.max_staleness,
            groups_per_step=config.fresh_groups,
            total_groups=self.steps * config.fresh_groups,
            over_stale=config.buffer.over_stale,
            refill_budget=config.refilled_groups,
        )
        job = Job(
            config=config, prompts=self.stream, rewards=(), tokenizer=None, total_steps=self.steps, vocab_size=None
        )
        self.books = Books(job, self.contract)
        self.buffer = RolloutBuffer(self.contract, self.books.reissue)
        self.replay = ReplayStore(config.replay)
        self.reuse = ReuseMeter(config.training.num_iterations)
        self.snapshots: list[int] = []
        self.in_flight, self.training = {}, []

    @property
    def parts(self) -> run_state.RunParts:
        return run_state.RunParts(self.books, self.buffer, self.replay, self.reuse)

    def go(self, until: int) -> None:
        for _ in range(20_000):
            if self.contract.version >= until and not self.training:
                return
            if not self.training:
                now(self.end_over_stale())
            moves = [self.admit] * self.contract.can_admit() + [self.finish] * bool(self.in_flight)
            moves += [self.publish] * bool(self.snapshots)
            if self.training:
                moves.append(self.consume)
            elif self.contract.choose() is not None:
                moves.append(self.take)
            assert moves, "deadlock: nothing can happen and the run is not over"
            self.rng.choice(moves)()
            self.check_bound()
            if not self.training and self.rng.random() < self.save_rate:
                self.save()
            if self.rng.random() < self.kill_rate and self.kills < 6:
                self.kill()
        raise AssertionError("livelock: the run does not end")

    async def end_over_stale(self) -> None:
        """As a waiting `take` does."""
        async with self.buffer._changed:
            self.buffer._end_over_stale()

    def admit(self) -> None:
        group_id, start = now(self.buffer.admit())
        self.in_flight[group_id] = self.books.admitted(group_id, start), start

    def finish(self) -> None:
        group_id = self.rng.choice(sorted(self.in_flight))
        ticket, start = self.in_flight.pop(group_id)
        is_bad = ticket.prompt.row in self.bad_rows
        if is_bad or self.rng.random() < 0.1:
            again = self.books.failed(group_id, "failed", ERROR, by_prompt=is_bad or self.rng.random() < 0.5)
            now(self.buffer.drop(group_id, "failed", reissue=again))
            return
        sampled = [start, self.contract.served_version, *self.snapshots]
        rewards = (0.0, float(self.rng.random() < 0.7))
        samples = tuple(self.sample(self.rng.choice(sampled), reward) for reward in rewards)
        group = Group(
            group_id=group_id,
            prompt=ticket.prompt,
            samples=samples,
            start_version=start,
            admitted_at=1.0,
            entered_at=2.0,
        )
        self.books.finished(group, 0, 0)
        now(self.buffer.enter(group))

    def sample(self, version: int, reward: float) -> Sample:
        completion = Completion(
            token_ids=(1, 2),  # type: ignore[arg-type]
            behaviour_logprobs=(-self.rng.random(), -1.0),  # type: ignore[arg-type]
            versions=(version, version),  # type: ignore[arg-type]
            finish_reason="stop",
            engine="engine-0",
        )
        return Sample(completion=completion, text="x", rewards={"f": reward}, reward=reward)

    def publish(self) -> None:
        now(self.buffer.published(self.snapshots.pop(0)))

    def take(self) -> None:
        self.training = now(self.buffer.take())
        for group in self.training:
            within = group.newest_version if self.contract.over_stale == "mask" else group.oldest_version
            assert self.contract.version - within <= self.contract.max_staleness, "over-stale"

    def consume(self) -> None:
        """As the orchestrator settles a step and writes down what became known."""
        random_state = np.random.default_rng((self.config.run.seed, self.contract.version))
        replayed = self.replay.draw(self.config.replayed_groups, self.contract.version, random_state)
        self.books.untrained(self.buffer.collect_untrained())
        self.books.replayed(each.group.group_id for each in replayed)
        kept = set()
        if self.config.replayed_groups:
            advantages = np.array([-1.0, 1.0], np.float32)
            kept = {group.group_id for group in self.training if self.replay.add(group, advantages)}
        self.books.trained(self.training, kept)
        self.books.let_go(group_id for group_id, _ in self.replay.collect_left())
        self.trained += [group.prompt.prompt_id for group in self.training]
        self.training = []
        self.snapshots.append(now(self.buffer.consumed()))
        self.flush()

    def flush(self) -> None:
        self.books.collect().append_to(self.folder.ledger_file)

    def save(self) -> None:
        captured = run_state.capture(self.parts, lengths(self.folder), {"step": self.contract.version})
        target = Path(tempfile.mkdtemp(dir=self.path))
        run_state.write(captured, target)
        self.saved = target, list(self.trained), dict(captured.state)

    def kill(self) -> None:
        """Then resume from the last checkpoint; without one, from the beginning."""
        self.kills += 1
        if self.rng.random() < 0.5 and self.folder.ledger_file.exists():
            with open(self.folder.ledger_file, "a") as file:
                file.write('{"group_id": 99')  # a line that the kill cut short
        self.start()
        if self.saved is None:
            self.folder.ledger_file.unlink(missing_ok=True)
            self.trained = []
            return
        target, trained, _ = self.saved
        state = run_state.read(target)
        rewind(self.folder, state["lengths"], state["more"]["step"])
        run_state.restore(self.parts, run_state.load(target, self.stream))
        self.trained = list(trained)
        lost = state["contract"]["in_flight"]
        assert self.contract.in_flight == 0
        assert self.contract.fates["reissued:resumed"] == state["contract"]["fates"].get("reissued:resumed", 0) + len(
            lost
        )
        now(self.buffer.published(self.contract.version))

    def check_bound(self) -> None:
        assert self.contract.slots_held <= self.contract.slots
        assert len(self.trained) == self.contract.version * self.contract.groups_per_step + self.of_another_schedule

    def end(self) -> None:
        now(self.buffer.drain())
        self.books.untrained(self.buffer.collect_untrained())
        self.books.run_ended()
        self.flush()


def config_of(**sections: dict[str, Any]) -> RunConfig:
    return RunConfig.model_validate(sections)


@st.composite
def settings_of_runs(draw: st.DrawFn) -> dict[str, Any]:
    replays = draw(st.booleans())
    per_step = draw(st.integers(1, 3))
    config = config_of(
        run={"seed": draw(st.integers(0, 9))},
        generation={"max_prompt_failures": draw(st.integers(1, 3)), "num_generations": 2},
        training={"groups_per_step": 2 * per_step if replays else per_step, "max_steps": 8},
        buffer={
            "max_staleness": draw(st.integers(0, 3)),
            "over_stale": draw(st.sampled_from(("wait", "drop", "drop_reissue", "mask"))),
            "filter_uniform_groups": draw(st.booleans()),
        },
        replay={"replay_fraction": 0.5, "replay_capacity": 5, "replay_max_uses": 3} if replays else {},
        data={"shuffle_dataset": draw(st.booleans())},
    )
    rows = draw(st.integers(1, 20))
    return {
        "config": config,
        "rows": rows,
        "steps": draw(st.integers(1, 8)),
        "rng": random.Random(draw(st.integers(0, 2**32))),
        "save_rate": draw(st.sampled_from((0.05, 0.3))),
        "kill_rate": draw(st.sampled_from((0.02, 0.1))),
        "bad_rows": draw(st.frozensets(st.integers(0, rows - 1), max_size=2)),
    }


@contextmanager
def folder_in_memory() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(dir=SHM if SHM.is_dir() else None) as folder:
        yield Path(folder)


def check_history(run: Run, entries: list[LedgerEntry]) -> None:
    """`entries` is what the ledger's file says after all kills."""
    assert sorted(entry.group_id for entry in entries) == list(range(run.contract.admitted))
    fates = Counter(f"{entry.fate}:{entry.reason}" if entry.reason else entry.fate for entry in entries)
    assert fates == run.contract.fates == run.books._ledger.totals
    assert fates == {fate: tally.groups for fate, tally in run.books._accounting.by_fate().items()}
    trained = [entry.prompt_id for entry in entries if entry.fate == "trained"]
    assert sorted(trained) == sorted(run.trained), "the ledger says other prompts than the weights were trained on"
    assert len(trained) == len(set(trained)), "trained twice"


def check_stories(run: Run, entries: list[LedgerEntry]) -> None:
    """Of every prompt that the stream has handed out, none is forgotten."""
    stories: dict[str, list[LedgerEntry]] = defaultdict(list)
    for entry in sorted(entries, key=lambda entry: entry.group_id):
        stories[entry.prompt_id].append(entry)
    waiting = run.books._ledger.waiting
    for story in stories.values():
        assert [entry.attempt for entry in story] == list(range(len(story)))
        assert all(entry.fate == "reissued" for entry in story[:-1])
        if story[-1].fate == "reissued":
            assert waiting[story[-1].prompt_id] == len(story)
    quarantined = run.books.quarantined
    before = PromptStream(table(run.rows), tokenizer, run.config)
    while before.cursor != run.stream.cursor:
        prompt = before.next()
        assert prompt.prompt_id in stories or prompt.row in quarantined, f"{prompt.prompt_id} was skipped"


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(settings_of_runs())
def test_killed_at_any_moment_nothing_is_lost_and_nothing_is_trained_twice(drawn: dict[str, Any]) -> None:
    with folder_in_memory() as folder:
        run = Run(path=folder, **drawn)
        try:
            run.go(until=run.steps)
        except DataError:  # every row failed too often, by bad luck or because all are bad
            assert len(run.books.quarantined) == run.rows
            return
        run.end()
        entries = read_ledger(run.folder.ledger_file)
    check_history(run, entries)
    check_stories(run, entries)
    assert len(run.trained) == run.steps * run.contract.groups_per_step


def a_run(path: Path, **changes: Any) -> Run:
    config = config_of(
        training={"groups_per_step": 4, "max_steps": 8},
        generation={"num_generations": 2},
        buffer={"max_staleness": 2, "over_stale": "drop_reissue", "filter_uniform_groups": True},
        replay={"replay_fraction": 0.5},
    )
    values = {"config": config, "rows": 9, "steps": 8, "rng": random.Random(3), "save_rate": 0.0, "kill_rate": 0.0}
    return Run(path=path, **values | changes)


def test_what_is_restored_is_saved_again_without_a_difference(tmp_path: Path) -> None:
    run = a_run(tmp_path)
    while not (run.buffer.state()["untrained"] and run.contract.buffered and run.books._entries and len(run.replay)):
        run.go(until=run.contract.version + 1)
        if len(run.snapshots) > 1:  # one version is not served everywhere yet
            run.publish()
        while run.in_flight or run.contract.can_admit():
            run.finish() if run.in_flight else run.admit()
    run.books.let_go(run.books._ledger.kept[:1])
    run.save()
    assert run.saved is not None
    first, _, state = run.saved
    assert state["contract"]["finished"]
    assert state["contract"]["awaiting_publish"]
    assert state["contract"]["uniform_dropped"]
    assert state["buffer"]["untrained"]
    assert state["books"]["entries"]
    assert state["books"]["uses"]
    run.start()
    run_state.restore(run.parts, run_state.load(first, run.stream))
    run.save()
    second, _, again = run.saved
    assert {**again, "monotonic_to_unix_seconds": 0} == {**state, "monotonic_to_unix_seconds": 0}
    for name in ("buffer", "replay"):
        assert (second / f"{name}.json").read_bytes() == (first / f"{name}.json").read_bytes()
        assert (second / f"{name}.safetensors").read_bytes() == (first / f"{name}.safetensors").read_bytes()


def test_prompts_in_flight_come_first_and_in_order(tmp_path: Path) -> None:
    run = a_run(tmp_path)
    run.go(until=3)
    while run.contract.can_admit():
        run.admit()
    lost = [run.in_flight[group_id][0] for group_id in sorted(run.in_flight)]
    assert len(lost) > 1
    run.save()
    run.kill()
    came = []
    while run.contract.can_admit():
        run.admit()
        came.append(run.in_flight[max(run.in_flight)][0])
    expected = [(ticket.prompt.prompt_id, ticket.attempt + 1, ticket.failures) for ticket in lost]
    assert [(t.prompt.prompt_id, t.attempt, t.failures) for t in came[: len(lost)]] == expected
    run.flush()
    written = [entry for entry in read_ledger(run.folder.ledger_file) if entry.reason == "resumed"]
    assert [(e.prompt_id, e.attempt, e.fate) for e in written] == [
        (ticket.prompt.prompt_id, ticket.attempt, "reissued") for ticket in lost
    ]


def test_while_a_step_trains_there_is_no_state(tmp_path: Path) -> None:
    run = a_run(tmp_path)
    while not run.training:
        run.rng.choice([run.admit] * run.contract.can_admit() + [run.finish] * bool(run.in_flight))()
        if run.contract.choose() is not None:
            run.take()
    with pytest.raises(RuntimeError, match=r"no state to save between take\(\) and consumed\(\)"):
        run.save()


def test_the_captured_state_does_not_change_with_the_run(tmp_path: Path) -> None:
    run = a_run(tmp_path)
    run.go(until=2)
    captured = run_state.capture(run.parts, lengths(run.folder))
    before = json.dumps(captured.state), len(captured.held), len(captured.replayable)
    run.go(until=6)
    assert (json.dumps(captured.state), len(captured.held), len(captured.replayable)) == before


def saved_run(path: Path) -> Run:
    run = a_run(path)
    run.go(until=4)
    while not run.contract.buffered:
        run.rng.choice([run.admit] * run.contract.can_admit() + [run.finish] * bool(run.in_flight))()
    run.save()
    return run


def restored(run: Run, *, allow_changed: bool = False, **changes: Any) -> Run:
    assert run.saved is not None
    for name, value in changes.items():
        setattr(run, name, value)
    run.start()
    loaded = run_state.load(run.saved[0], run.stream, allow_changed=allow_changed)
    run_state.restore(run.parts, loaded, allow_changed=allow_changed)
    return run


@pytest.mark.parametrize("changes", [{"training": {"groups_per_step": 2}}, {"buffer": {"max_staleness": 1}}])
def test_groups_of_another_schedule_come_again(changes: dict[str, Any], tmp_path: Path) -> None:
    """Finished groups for steps of four would have no schedule in steps of two: nothing could ever be taken."""
    run = a_run(tmp_path)
    run.go(until=3)
    while run.in_flight or run.contract.can_admit():
        run.finish() if run.in_flight else run.admit()
    run.save()
    waiting = {group.group_id: group.prompt.prompt_id for group in run.buffer.held()}
    sections = run.config.model_dump()
    for name, values in changes.items():
        sections[name] |= values
    restored(run, config=RunConfig.model_validate(sections))
    assert run.contract.buffered == 0
    assert run.contract.can_admit()
    run.of_another_schedule = len(run.trained) - run.contract.version * run.contract.groups_per_step
    run.flush()
    fates = {entry.group_id: entry for entry in read_ledger(run.folder.ledger_file) if entry.group_id in waiting}
    assert {(entry.fate, entry.reason) for entry in fates.values()} == {("reissued", "resumed")}
    assert fates.keys() == waiting.keys()
    run.go(until=5)


def test_another_number_of_rows_is_refused(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="the dataset has 10 rows, but 9 when the checkpoint was saved"):
        restored(saved_run(tmp_path), rows=10)


def test_another_tokenizer_is_refused_unless_allowed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = saved_run(tmp_path)
    before = [group.prompt.token_ids for group in run.buffer.held()]
    monkeypatch.setitem(globals(), "tokenizer", lambda text: {"input_ids": [1, 2, 3]})
    with pytest.raises(CheckpointError, match=r"of the dataset has another prompt than when .* was saved"):
        restored(run)
    assert [group.prompt.token_ids for group in restored(run, allow_changed=True).buffer.held()] == before


def test_another_tokenizer_is_seen_by_the_prompt_to_come(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = a_run(tmp_path)
    run.save()
    monkeypatch.setitem(globals(), "tokenizer", lambda text: {"input_ids": [1, 2, 3]})
    with pytest.raises(DataError, match="is not the one that was to come when the checkpoint was saved"):
        restored(run)
    restored(run, allow_changed=True)


def test_another_order_begins_a_new_epoch(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    run = saved_run(tmp_path)
    epoch = run.stream.cursor.epoch
    other = run.config.model_copy(update={"run": run.config.run.model_copy(update={"seed": 7})})
    assert restored(run, config=other).stream.cursor == (epoch + 1, 0)
    assert f"the order of prompts was [True, 42] and is [True, 7]: epoch {epoch + 1} begins" in caplog.text


def test_a_state_of_another_version_is_refused(tmp_path: Path) -> None:
    run = saved_run(tmp_path)
    assert run.saved is not None
    path = run.saved[0] / "state.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"format": 99}))
    with pytest.raises(CheckpointError, match="has format 99; this version of asyncgrpo reads 2"):
        restored(run)
