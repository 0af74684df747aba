"""Training once more from what a run recorded: the same to the last bit, or another objective on the same data."""

import json
import shutil
import threading
import urllib.request
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from disk_cases import hanging
from run_cases import FAKE_ENGINE, make_job, run_config
from safetensors.numpy import load_file

from asyncgrpo.cli.main import main
from asyncgrpo.config.loading import from_python
from asyncgrpo.config.render import render_config
from asyncgrpo.errors import ConfigError, RunFolderError
from asyncgrpo.launch import run_job
from asyncgrpo.observe.recorded_groups import read_trained_groups, recorded_steps
from asyncgrpo.observe.recorder import rollout_file
from asyncgrpo.observe.run_folder import RunFolder
from asyncgrpo.observe.settings_history import Change, record_changes
from asyncgrpo.retraining import RetrainedStep, load_rerun, retrain


@pytest.fixture(scope="module")
def recorded(tiny_model: Path, tmp_path_factory: pytest.TempPathFactory) -> RunFolder:
    """A run with stale, replayed and repeated samples."""
    folder = tmp_path_factory.mktemp("recorded")
    config = run_config(
        tiny_model,
        folder,
        generation={"num_generations": 4, "max_completion_length": 16, "request_timeout": 20.0},
        buffer={"max_staleness": 2, "stall_timeout": 60.0},
        training={"max_steps": 4, "groups_per_step": 4, "learning_rate": 1e-3, "num_iterations": 2},
        replay={"replay_fraction": 0.25},
    )
    job = make_job(config)
    return run_job(job, config_text=render_config(from_python(job.config, ())), engine_module=FAKE_ENGINE).folder


def again(recorded: RunFolder, folder: Path, *changes: str, **options: Any) -> Any:
    loaded = load_rerun(recorded.path, [f"--run.output_dir={folder / 'again'}", *changes])
    return retrain(recorded, loaded, **options)


def test_the_same_configuration_gives_the_same_numbers_and_the_same_model(recorded: RunFolder, tmp_path: Path) -> None:
    assert recorded_steps(recorded) == [1, 2, 3, 4]
    steps = again(recorded, tmp_path)
    assert [(step.step, list(step.differences())) for step in steps] == [(number, []) for number in (1, 2, 3, 4)]
    assert len(steps[-1].metrics) > 30
    then, now = (load_file(f / "final_model" / "model.safetensors") for f in (recorded.path, tmp_path / "again"))
    assert then.keys() == now.keys()
    assert all(then[name].tobytes() == now[name].tobytes() for name in then)


def test_another_objective_starts_from_the_same_data(recorded: RunFolder, tmp_path: Path) -> None:
    first, second = again(recorded, tmp_path, "--training.learning_rate=0.01", last_step=2)
    before_any_update = {name for name, _, _ in first.differences() if "kl" not in name}
    assert "learning_rate" in before_any_update
    assert first.metrics["learner/ratio/first_update_max_deviation"] == 0.0
    assert first.recorded["staleness_max"] == 0
    assert {"loss", "gradient_norm"} <= {name for name, _, _ in second.differences()}


def test_groups_come_back_as_they_were_trained(recorded: RunFolder) -> None:
    groups = read_trained_groups(recorded, 4)
    assert len(groups) == 3  # and one replayed
    for group in groups:
        assert [len(group.samples), group.prompt.epoch] == [4, int(group.prompt.prompt_id.partition("-")[0])]
        assert group.start_version <= group.oldest_version <= group.newest_version <= 3


def test_what_the_data_depends_on_cannot_be_changed(recorded: RunFolder, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"--generation.temperature: what was sampled depends on it; only these"):
        load_rerun(recorded.path, ["--generation.temperature=0.5"])
    with pytest.raises(RunFolderError, match=r"is no run folder: there is no config.yaml"):
        load_rerun(tmp_path, [])


def test_rewards_that_became_others_are_not_mixed_up(tmp_path: Path) -> None:
    """An index of the time before means another reward, or none."""
    folder = RunFolder(tmp_path / "run")
    folder.path.mkdir()
    folder.incarnation_file.write_text("ab.3-cd\n")
    folder.config_file.write_text('rewards:\n  - path: "accuracy"\n    weight: 3.0\n')
    former, fewer = Change("rewards[1].weight", 1.0, 2.0, True), Change("rewards", ["a", "b"], ["accuracy"], True)
    record_changes(folder, 2, [Change("rewards[0].weight", 1.0, 9.0, True), former])
    record_changes(folder, 3, [fewer, Change("training.learning_rate", 0.5, 0.001, True)])
    assert load_rerun(folder.path, []).config.rewards[0].weight == 3.0
    assert load_rerun(folder.path, []).config.training.learning_rate == 0.5
    record_changes(folder, 4, [Change("rewards[0].weight", 2.5, 3.0, True)])
    assert load_rerun(folder.path, []).config.rewards[0].weight == 2.5


def test_a_damaged_rollout_file_is_named(recorded: RunFolder, tmp_path: Path) -> None:
    (tmp_path / "rollouts").mkdir()
    (tmp_path / "rollouts" / "step_000001.parquet").write_bytes(b"PAR1 torn")
    with pytest.raises(RunFolderError, match=r"cannot read .*step_000001.parquet"):
        read_trained_groups(RunFolder(tmp_path), 1)
    with pytest.raises(RunFolderError, match=r"needs observe.save_rollouts=true"):
        recorded_steps(RunFolder(tmp_path / "elsewhere"))


def test_a_disk_that_hangs_ends_the_replay(recorded: RunFolder, tmp_path: Path) -> None:
    copy = RunFolder(shutil.copytree(recorded.path, tmp_path / "copy"))
    with ExitStack() as stack:

        def hang(step: RetrainedStep) -> None:
            stack.enter_context(hanging(rollout_file(copy, step.step + 1)))

        late = r"reading the rollouts of step 2 \(observe\.write_timeout\) took longer than 5 s"
        with pytest.raises(RunFolderError, match=late):
            again(copy, tmp_path, "--observe.write_timeout=5", on_step=hang)


def test_the_command_says_whether_it_came_out_the_same(
    recorded: RunFolder, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["replay", str(recorded.path), "--json", "--steps=2"]
    assert main([*words, f"--run.output_dir={tmp_path / 'same'}"]) == 0
    same = capsys.readouterr().out.splitlines()
    assert same[2] == "all 2 steps are what was recorded, to the last bit"
    assert json.loads(same[-1]) == {"steps": 2, "differing_steps": 0, "identical": True}
    changed = ["--training.max_grad_norm=0.01", f"--run.output_dir={tmp_path / 'changed'}"]
    assert main([*words, *changed]) == 0
    said = capsys.readouterr().out
    assert json.loads(said.splitlines()[-1])["identical"] is False
    assert "the first is step 1" in said or "the first is step 2" in said


@pytest.mark.parametrize(
    ("changes", "code"),
    [
        (["--run.output_dir={out}"], 1),
        (["--run.output_dir", "{out}"], 1),
        (["--run.output_dir={out}", "--observe.log_level=debug"], 1),
        (["--run.output_dir={out}", "--training.max_grad_norm", "0.01"], 0),
    ],
)
def test_the_command_fails_when_an_unchanged_run_comes_out_differently(
    recorded: RunFolder, tmp_path: Path, changes: list[str], code: int
) -> None:
    copy = tmp_path / "copy"
    copy.mkdir()
    for name in ("config.yaml", "rollouts"):
        (copy / name).symlink_to(recorded.path / name)
    records = [json.loads(line) for line in recorded.metrics_file.read_text().splitlines()]
    records[1]["loss"] += 1e-9
    (copy / "metrics.jsonl").write_text("".join(json.dumps(record) + "\n" for record in records))
    words = [word.format(out=tmp_path / "out") for word in changes]
    assert main(["replay", str(copy), "--steps", "2", *words]) == code


def test_a_replay_is_found_and_scraped_as_a_run_is(recorded: RunFolder, tmp_path: Path) -> None:
    seen: list[tuple[dict[str, Any], str]] = []
    scraped: list[str] = []

    def scrape(target: str) -> None:
        with urllib.request.urlopen(f"http://{target}/metrics", timeout=20) as answer:
            scraped.extend(answer.read().decode().splitlines())

    def look(step: RetrainedStep) -> None:
        (file,) = (tmp_path / "targets").glob("*.json")
        (entry,) = json.loads(file.read_text())
        seen.append((entry["labels"], entry["targets"][0]))
        if step.step == 1:  # while the second one trains: this is the event loop that has to answer
            threads.append(threading.Thread(target=scrape, args=entry["targets"]))
            threads[0].start()

    threads: list[threading.Thread] = []
    again(recorded, tmp_path, f"--observe.targets_dir={tmp_path / 'targets'}", last_step=2, on_step=look)
    threads[0].join()
    assert seen[0] == seen[1]
    assert seen[0][0] == {"run": "again", "role": "orchestrator"}
    assert list((tmp_path / "targets").iterdir()) == []
    values = dict(line.rsplit(" ", 1) for line in scraped if not line.startswith("#"))
    assert float(values["asyncgrpo_learner_step"]) in (1, 2)
    assert float(values["asyncgrpo_learner_target_steps"]) == 2
    assert float(values["asyncgrpo_gradient_norm"]) > 0
    assert float(values['asyncgrpo_learner_seconds_total{state="training"}']) > 0
