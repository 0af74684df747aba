"""Whole runs that stop, fail or lose their learner, and go on from a checkpoint: nothing lost, nothing twice.

The strictest judge is `retrain`: a run that was cut and resumed must leave the very model that its recorded rollouts
give when they are trained in one go.
"""

import asyncio
import itertools
import json
import os
import signal
import threading
from collections import Counter
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest
from run_cases import FAKE_ENGINE, Run, engine_beside, make_job, mean_token, rows, run_config
from safetensors.numpy import load_file

from asyncgrpo.cli.main import main
from asyncgrpo.config.loading import from_python
from asyncgrpo.config.render import render_config
from asyncgrpo.errors import AsyncGRPOError, CheckpointError, ConfigError, DataError, RewardError, RunFolderError
from asyncgrpo.launch import Outcome, run_job
from asyncgrpo.observe.ledger_file import read_ledger
from asyncgrpo.observe.run_folder import RunFolder
from asyncgrpo.observe.settings_history import read_history
from asyncgrpo.retraining import load_rerun, retrain
from asyncgrpo.rewards import reward as given
from asyncgrpo.run_state import read
from asyncgrpo.testing.fake_engine import FakeEngine

SHORT = {"num_generations": 4, "max_completion_length": 12, "request_timeout": 20.0}


def train(
    model: Path,
    folder: Path,
    *,
    reward: Any = mean_token,
    data: Any = None,
    on_start: Any = None,
    starts_engine: bool = False,
    **sections: Any,
) -> Outcome:
    """starts_engine: as a process of its own, which takes seconds; else one runs already, at no version of the run."""
    base: dict[str, Any] = {
        "generation": SHORT,
        "buffer": {"max_staleness": 2, "stall_timeout": 60.0},
        "training": {"max_steps": 6, "groups_per_step": 2, "learning_rate": 1e-3},
        "checkpoint": {"save_steps": 2},
    }
    for name, values in sections.items():
        base[name] = base.get(name, {}) | values
    options = {} if on_start is None else {"on_start": on_start}
    with nullcontext() if starts_engine else engine_beside(model, script=None) as engine:
        urls = [engine.url] if engine else []
        job = make_job(run_config(model, folder, urls, **base), data=data, reward=reward)
        text = render_config(from_python(job.config, ()))
        return run_job(job, config_text=text, engine_module=FAKE_ENGINE, **options)


class FailsAt:
    """`mean_token`, which ends the run at its n-th call."""

    def __init__(self, call: int) -> None:
        self.left = call

    def __call__(self, completion_ids: Any, scale: Any, **columns: Any) -> list[float]:
        self.left -= 1
        if self.left == 0:
            raise ValueError("on purpose")
        return mean_token(completion_ids, scale)

    __name__ = "mean_token"


def check_history(folder: Path, steps: int, groups_per_step: int = 2) -> RunFolder:
    """Every group has one fate, every step is there once, and the model is that of the recorded rollouts."""
    run = Run(folder)
    assert [step["step"] for step in run.steps] == list(range(1, steps + 1))
    ledger = read_ledger(folder / "run" / "ledger.jsonl")
    assert sorted(entry.group_id for entry in ledger) == list(range(len(ledger)))
    assert Counter(entry.fate for entry in ledger)["trained"] == steps * groups_per_step
    tables = json.loads((folder / "run" / "accounting.json").read_text())
    said = Counter(f"{entry.fate}:{entry.reason}".removesuffix(":") for entry in ledger)
    assert {fate: tally["groups"] for fate, tally in tables["by_fate"].items()} == said
    # A prompt may be lost only with the end of the run, and is trained at most once.
    trained = Counter(entry.prompt_id for entry in ledger if entry.fate == "trained")
    assert set(trained.values()) == {1}
    last = {entry.prompt_id: entry for entry in sorted(ledger, key=lambda entry: entry.group_id)}
    assert {(entry.fate, entry.reason) for entry in last.values()} <= {("trained", ""), ("dropped", "run_ended")}

    source = RunFolder(folder / "run")
    again = retrain(source, load_rerun(source.path, [f"--run.output_dir={folder / 'again'}"]))
    assert [(step.step, list(step.differences())) for step in again] == [(n, []) for n in range(1, steps + 1)]
    then, now = (load_file(f / "final_model" / "model.safetensors") for f in (folder / "run", folder / "again"))
    assert all(then[name].tobytes() == now[name].tobytes() for name in then)
    return source


def test_a_failed_run_goes_on_from_its_last_checkpoint(
    tiny_model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    sections = {"replay": {"replay_fraction": 0.5}, "training": {"max_steps": 10}}
    with pytest.raises(RewardError, match="on purpose"):
        train(tiny_model, tmp_path, reward=FailsAt(9), starts_engine=True, **sections)
    assert len(Run(tmp_path).steps) >= 5  # 3 slots of one group each
    assert (tmp_path / "run" / "checkpoints" / "step-00000004" / "manifest.json").is_file()
    newest = max((tmp_path / "run" / "checkpoints").glob("step-*"))
    saved, trained = read(newest), len(Run(tmp_path).steps)
    lost, waiting = saved["contract"]["in_flight"], len(saved["contract"]["finished"])
    capsys.readouterr()
    outcome = train(tiny_model, tmp_path, starts_engine=True, **sections)
    assert (outcome.steps, outcome.interrupted) == (10, False)
    # It is said before anything else is done, and agrees with what was on disk.
    said, step = capsys.readouterr().out.splitlines()[:8], int(newest.name.partition("-")[2])
    first = said.index(f"  note: resuming after step {step} of 10, from {newest}")
    assert first == 1
    assert said[first + 1].removeprefix("  note: ").partition(" trained")[0] == (
        {
            0: "no step was completed after it",
            1: f"step {step + 1} was",
        }.get(trained - step, f"steps {step + 1} to {trained} were")
    )
    assert f"  note: {waiting} finished group{'s' * (waiting != 1)} will be trained" in said[first + 2]
    assert f" {len(lost)} prompt{'s are' if len(lost) != 1 else ' is'} issued again" in said[first + 2]
    source = check_history(tmp_path, 10, groups_per_step=1)
    assert ".1-" in source.incarnation
    assert sum(entry.reason == "resumed" for entry in read_ledger(source.ledger_file)) == len(lost)


def test_a_stopped_run_goes_on_where_it_was(tiny_model: Path, tmp_path: Path) -> None:
    def stop_soon(loop: asyncio.AbstractEventLoop, run: asyncio.Task[Any]) -> None:
        async def stop() -> None:
            while len(steps_of(tmp_path)) < 3:  # noqa: ASYNC110  (the run is what writes them)
                await asyncio.sleep(0.01)
            os.kill(os.getpid(), signal.SIGTERM)

        stopping.append(loop.create_task(stop()))

    stopping: list[asyncio.Task[None]] = []
    outcome = train(tiny_model, tmp_path, on_start=stop_soon, training={"max_steps": 8}, checkpoint={"save_steps": 0})
    assert outcome.interrupted
    assert 3 <= outcome.steps < 8
    assert (tmp_path / "run" / "checkpoints" / f"step-{outcome.steps:08d}").is_dir()
    done = [step["time"] for step in Run(tmp_path).steps]
    train(tiny_model, tmp_path, training={"max_steps": 8}, run={"resume": "must"})
    assert [step["time"] for step in Run(tmp_path).steps][: len(done)] == done, "nothing is trained again"
    check_history(tmp_path, 8)


def test_a_run_that_is_stopped_while_it_waits_for_groups_loses_no_step(tiny_model: Path, tmp_path: Path) -> None:
    blocked, release, calls = threading.Event(), threading.Event(), itertools.count(1)

    def slow_judge(completion_ids: Any, scale: Any, **columns: Any) -> list[float]:
        if next(calls) > 4:
            blocked.set()
            release.wait(60.0)
        return mean_token(completion_ids, scale)

    slow_judge.__name__ = mean_token.__name__  # the same reward

    def stop_when_blocked(loop: asyncio.AbstractEventLoop, run: asyncio.Task[Any]) -> None:
        async def stop() -> None:
            while not (blocked.is_set() and len(steps_of(tmp_path)) == 2):  # noqa: ASYNC110  (threads do it)
                await asyncio.sleep(0.01)
            await asyncio.sleep(0.3)  # the third step waits
            os.kill(os.getpid(), signal.SIGTERM)

        stopping.append(loop.create_task(stop()))

    stopping: list[asyncio.Task[None]] = []
    sections = {"checkpoint": {"save_steps": 0}, "buffer": {"max_staleness": 1}}
    try:
        outcome = train(tiny_model, tmp_path, reward=slow_judge, on_start=stop_when_blocked, **sections)
    finally:
        release.set()
    assert (outcome.steps, outcome.interrupted) == (2, True)
    assert (tmp_path / "run" / "checkpoints" / "step-00000002").is_dir()
    done = steps_of(tmp_path)
    train(tiny_model, tmp_path, **sections)
    assert steps_of(tmp_path)[:2] == done, "nothing is trained again"
    check_history(tmp_path, 6)


def steps_of(folder: Path) -> list[str]:
    metrics = folder / "run" / "metrics.jsonl"
    return metrics.read_text().splitlines() if metrics.exists() else []


def test_a_finished_run_can_be_made_longer(tiny_model: Path, tmp_path: Path) -> None:
    train(tiny_model, tmp_path, training={"max_steps": 2}, checkpoint={"save_steps": 0})
    with pytest.raises(RunFolderError, match=r"has trained all 2 steps; raise training.max_steps to go on"):
        train(tiny_model, tmp_path, training={"max_steps": 2})
    assert train(tiny_model, tmp_path, training={"max_steps": 4}).steps == 4
    check_history(tmp_path, 4)


def test_changed_settings_are_shown_and_refused_where_they_mean_something(tiny_model: Path, tmp_path: Path) -> None:
    train(tiny_model, tmp_path, training={"max_steps": 2})
    before = (tmp_path / "run" / "ledger.jsonl").read_bytes()
    changed = {"max_steps": 4, "learning_rate": 5e-4}
    with pytest.raises(ConfigError, match=r"training.learning_rate: 0.001 -> 0.0005\n.*--run.allow_changes=true"):
        train(tiny_model, tmp_path, training=changed)
    assert (tmp_path / "run" / "ledger.jsonl").read_bytes() == before, "a refusal takes nothing back"
    assert train(tiny_model, tmp_path, training=changed, run={"allow_changes": True}).steps == 4
    assert [step["learning_rate"] for step in Run(tmp_path).steps] == [1e-3, 1e-3, 5e-4, 5e-4]


def test_changed_settings_stay_known_and_a_replay_takes_those_of_the_first_step(
    tiny_model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    train(tiny_model, tmp_path, training={"max_steps": 2})
    run = RunFolder(tmp_path / "run")
    assert not run.settings_file.exists()
    changed, allowed = {"max_steps": 4, "learning_rate": 5e-4}, {"allow_changes": True}
    train(tiny_model, tmp_path, training=changed, run=allowed)
    (line,) = read_history(run)
    said = {str(change) for change in line.changes if change.setting.startswith("training.")}
    assert said == {"training.learning_rate: 0.001 -> 0.0005", "training.max_steps: 2 -> 4"}
    assert (line.start, line.first_step) == (run.incarnation, 3)
    assert "* Changed from step 3 on: training.learning_rate: 0.001 -> 0.0005.\n" in run.summary_text.read_text()
    capsys.readouterr()

    where = f"--run.output_dir={tmp_path / 'again'}"
    assert main(["replay", str(run.path), where]) == 1
    out = capsys.readouterr().out
    assert out.startswith(
        "warning: from step 3 on the run had other settings (training.learning_rate: 0.001 -> 0.0005)"
    )
    assert "2 of 4 steps differ from what was recorded, the first is step 3" in out
    assert main(["replay", str(run.path), f"{where}-2", "--steps", "2"]) == 0
    assert "warning" not in capsys.readouterr().out
    assert main(["replay", str(run.path), f"{where}-3", "--training.learning_rate=0.0005"]) == 0
    assert "4 of 4 steps differ" in capsys.readouterr().out


def test_rewards_that_python_gives_are_held_to_their_names_and_weights(tiny_model: Path, tmp_path: Path) -> None:
    def same(completion_ids: Any, scale: Any, **columns: Any) -> list[float]:
        return mean_token(completion_ids, scale)

    train(tiny_model, tmp_path, training={"max_steps": 2})
    longer = {"max_steps": 3}
    for reward, change in (
        (given(mean_token, weight=-1.0), r"reward_funcs\[0\].weight: 1.0 -> -1.0"),
        (same, r'reward_funcs\[0\].name: "mean_token" -> "same"'),
    ):
        with pytest.raises(ConfigError, match=rf"{change}\n.*--run.allow_changes=true"):
            train(tiny_model, tmp_path, reward=reward, training=longer)
    assert train(tiny_model, tmp_path, reward=same, training=longer, run={"allow_changes": True}).steps == 3


def test_a_resume_that_the_learner_refuses_leaves_the_settings_of_the_run(tiny_model: Path, tmp_path: Path) -> None:
    train(tiny_model, tmp_path, lora={"lora_r": 2}, training={"max_steps": 2})
    before = (tmp_path / "run" / "config.yaml").read_bytes()
    with pytest.raises(AsyncGRPOError, match="lora"):
        train(tiny_model, tmp_path, lora={"lora_r": 4}, run={"allow_changes": True}, training={"max_steps": 4})
    assert (tmp_path / "run" / "config.yaml").read_bytes() == before
    train(tiny_model, tmp_path, lora={"lora_r": 2}, training={"max_steps": 4})
    assert b"max_steps: 4" in (tmp_path / "run" / "config.yaml").read_bytes()


def test_another_dataset_is_refused_before_anything_is_taken_back(tiny_model: Path, tmp_path: Path) -> None:
    train(tiny_model, tmp_path, training={"max_steps": 3})
    before = {path: path.read_bytes() for path in (tmp_path / "run").glob("*.jsonl")}
    with pytest.raises(DataError, match="the dataset has 9 rows, but 8 when the checkpoint was saved"):
        train(tiny_model, tmp_path, data=rows(short=5))
    assert {path: path.read_bytes() for path in (tmp_path / "run").glob("*.jsonl")} == before
    assert not list((tmp_path / "run").rglob("*rewound*"))


async def test_a_run_on_engines_that_run_already_goes_on(tiny_model: Path, tmp_path: Path) -> None:
    """What they compute in was asked of them, and is no setting that has changed."""
    sections = {"engines": {"dtype": "auto"}, "training": {"max_steps": 2}}
    async with FakeEngine(tiny_model) as engine:
        for steps in (2, 3):
            sections["training"] = {"max_steps": steps, "groups_per_step": 2}
            config = run_config(tiny_model, tmp_path, [engine.url], generation=SHORT, **sections)
            job = make_job(config)
            outcome = await asyncio.to_thread(run_job, job, config_text="")
            assert outcome.steps == steps
    config = json.loads((tmp_path / "run" / "checkpoints" / "step-00000003" / "config.json").read_text())
    assert config["engines"]["dtype"] == "float32"


def test_a_damaged_checkpoint_is_passed_over(
    tiny_model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    train(tiny_model, tmp_path, training={"max_steps": 4})
    newest = tmp_path / "run" / "checkpoints" / "step-00000004"
    (newest / "state.json").write_text((newest / "state.json").read_text()[:-40])
    assert train(tiny_model, tmp_path, training={"max_steps": 5}).steps == 5
    said = capsys.readouterr().out
    assert "not resumed from: " in said
    assert "resuming after step 2 of 5" in said
    check_history(tmp_path, 5)


def test_no_checkpoint_is_complete(tiny_model: Path, tmp_path: Path) -> None:
    train(tiny_model, tmp_path, training={"max_steps": 2})
    (tmp_path / "run" / "checkpoints" / "step-00000002" / "manifest.json").unlink()
    with pytest.raises(CheckpointError, match=r"no checkpoint in .* is complete"):
        train(tiny_model, tmp_path, training={"max_steps": 4})


def test_what_must_resume_needs_a_checkpoint(tiny_model: Path, tmp_path: Path) -> None:
    with pytest.raises(RunFolderError, match=r"run.resume=must, but .*run has no checkpoint"):
        train(tiny_model, tmp_path, run={"resume": "must"})
    train(tiny_model, tmp_path, training={"max_steps": 2})
    with pytest.raises(RunFolderError, match=r"exists; choose another"):
        train(tiny_model, tmp_path, run={"resume": "never"})


def test_a_run_that_ended_before_its_first_checkpoint_begins_anew(
    tiny_model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    late = {"save_steps": 100}
    with pytest.raises(RewardError, match="on purpose"):
        train(tiny_model, tmp_path, reward=FailsAt(9), checkpoint=late)
    lines = steps_of(tmp_path)
    assert lines
    with pytest.raises(RunFolderError, match=r"exists; choose another"):
        train(tiny_model, tmp_path, run={"resume": "never"})
    train(tiny_model, tmp_path, checkpoint=late)
    assert "begun anew: it was cut off before its first checkpoint; put aside: metrics" in capsys.readouterr().out
    assert (tmp_path / "run" / "metrics.jsonl.rewound-1").read_text().splitlines() == lines
    source = check_history(tmp_path, 6)
    assert ".1-" in source.incarnation


def test_a_run_that_was_killed_after_its_last_step_is_brought_to_its_end(tiny_model: Path, tmp_path: Path) -> None:
    """The last checkpoint is there, and of what follows the model is half written and the summary missing."""
    train(tiny_model, tmp_path)
    run = tmp_path / "run"
    weights = run / "final_model" / "model.safetensors"
    model, ledger = weights.read_bytes(), (run / "ledger.jsonl").read_bytes()
    weights.write_bytes(model[:100])
    (run / "summary.json").unlink()
    outcome = train(tiny_model, tmp_path)
    assert (outcome.steps, outcome.interrupted) == (6, False)
    assert weights.read_bytes() == model
    assert (run / "ledger.jsonl").read_bytes() == ledger
    check_history(tmp_path, 6)
    with pytest.raises(RunFolderError, match=r"has trained all 6 steps"):
        train(tiny_model, tmp_path)
