import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from observe_cases import group, measures, report, sample

from asyncgrpo.errors import RunFolderError
from asyncgrpo.observe.evaluations import append_evaluation
from asyncgrpo.observe.examples import example_pairs
from asyncgrpo.observe.plot import moving_average, plot_run
from asyncgrpo.observe.recorder import Recorder
from asyncgrpo.observe.run_folder import RunFolder
from asyncgrpo.observe.steps import step_record
from asyncgrpo.observe.summary import summarise, write_summary
from asyncgrpo.types import FinishReason


def record(step: int, low: float, seconds: float = 10.0) -> dict:
    """Two groups of rewards low, low+1 and low+1, low+2: mean low+1, standard error 0.5."""
    groups = [
        group([sample(low), sample(low + 1)], group_id=2 * step),
        group([sample(low + 1), sample(low + 2)], group_id=2 * step + 1),
    ]
    return dict(step_record(step, groups, step - 1, report(), measures(step_seconds=seconds)))


def run_of_three_steps(path: Path) -> RunFolder:
    folder = RunFolder(path / "demo")
    folder.rollouts_dir.mkdir(parents=True)
    recorder = Recorder(folder)
    for step in (1, 2, 3):
        groups = [
            group([sample(float(step), text=f"blue sky {step}"), sample(0.0)], 10 * step, f"What is the sky? {step}"),
            group([sample(-1.0, text="grass\nis green"), sample(0.0)], 10 * step + 1, "What is grass?"),
        ]
        recorder.append_step(step_record(step, groups, step - 1, report(), measures()))
        recorder.write_rollouts(step, step - 1, groups, np.zeros(4))
    return folder


def test_rewards_of_first_and_last_quarter() -> None:
    summary = summarise([record(step, low=float(step)) for step in range(1, 9)])
    assert summary["quarter_steps"] == 2
    assert summary["reward_first"] == {"mean": 2.5, "standard_error": pytest.approx(np.sqrt(0.5) / 2)}
    assert summary["reward_last"]["mean"] == 8.5


def test_totals_weigh_steps_by_their_size() -> None:
    summary = summarise([record(1, 0.0, seconds=5.0), record(2, 0.0, seconds=15.0)])
    assert summary["seconds"] == 20.0
    assert (summary["tokens_generated"], summary["tokens_trained"], summary["groups_trained"]) == (400, 8, 4)
    assert summary["generated_tokens_per_second"] == 20.0
    assert summary["generated_while_training_ratio"] == 0.4
    # Tokens are of version 0, trained by versions 0 and 1.
    assert (summary["staleness_mean"], summary["staleness_max"]) == (0.5, 1)
    assert summary["waiting_ratio"] == 0.4
    assert summary["verdict"] == "generation-bound"


def test_held_out_prompts_are_shown_before_and_after(tmp_path: Path) -> None:
    """The same prompts, whatever order their groups came in; trained ones are others in every step."""
    folder = run_of_three_steps(tmp_path)
    recorder = Recorder(folder)
    record: dict[str, Any] = {"error": None, "samples_per_prompt": 1, "temperature": 0.0, "max_completion_length": 9}
    record |= {"eval_set": "x", "prompts": 2, "prompt_rewards": [0.0, 0.5], "reward_mean": 0.25, "pass_ratio/1": 0.0}
    record |= {"completion_tokens_mean": 3.0, "truncated_ratio": 0.0, "version_min": 0, "version_max": 0}
    record |= dict.fromkeys(("samples_failed", "prompts_unscored", "samples_unscored", "samples_mixed_version"), 0)
    for step, order in ((0, (1, 0)), (3, (0, 1))):
        groups = [
            group([sample(step + place, text=f"said {place} at {step}")], place, f"asked {place}") for place in order
        ]
        recorder.write_evaluation(step, groups)
        append_evaluation(folder.evaluation_file, {"step": step, **record})
    lines = write_summary(folder).splitlines()
    start = lines.index(
        "Completions of held-out prompts at step 0 and at step 3 (the first of each prompt, not chosen by reward):"
    )
    assert lines[start + 1 : start + 9] == [
        "",
        "    prompt                 asked 0",
        "    step 0, reward +0.000  said 0 at 0",
        "    step 3, reward +3.000  said 0 at 3",
        "",
        "    prompt                 asked 1",
        "    step 0, reward +1.000  said 1 at 0",
        "    step 3, reward +4.000  said 1 at 3",
    ]
    assert not any("What is grass?" in line for line in lines)


def test_summary_is_written_and_returned(tmp_path: Path) -> None:
    folder = run_of_three_steps(tmp_path)
    text = write_summary(folder)
    assert folder.summary_text.read_text(encoding="utf-8") == text
    assert json.loads(folder.summary_json.read_text())["steps"] == 3
    assert folder.reward_plot.read_bytes().startswith(b"\x89PNG")
    lines = text.splitlines()
    assert lines[0] == "# demo: 3 steps in 30 s"
    assert lines[2] == (
        "* Reward +0.000 ± 0.500 in the first step, +0.500 ± 1.000 in the last "
        "(change +0.500 ± 1.118, standard errors)."
    )
    assert "    prompt at step 1        What is the sky? 1" in lines
    assert "    reward +1.000           blue sky 1" in lines
    assert "    other prompt at step 3  What is the sky? 3" in lines
    assert "    reward +3.000           blue sky 3" in lines
    assert "    prompt                 What is grass?" in lines
    assert "    step 3, reward -1.000  grass\\nis green" in lines
    assert f"* Plot: {folder.reward_plot}" in lines
    assert not any(line.startswith("* Model") for line in lines)


def test_predictions_that_were_held_against_the_run_are_shown(tmp_path: Path) -> None:
    folder = run_of_three_steps(tmp_path)
    held = {"text": "Predicted 2 s, measured 3 s.", "predicted": {}, "measured": {}}
    folder.prediction_file.write_text(json.dumps([held, {"text": "2 s per step", "predicted": {}}]))
    lines = write_summary(folder).splitlines()
    assert "* Predicted 2 s, measured 3 s." in lines
    assert not any("2 s per step" in line for line in lines)
    assert json.loads(folder.summary_json.read_text())["predictions"] == [held]


def test_run_without_rollouts_is_summed_up(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path)
    Recorder(folder).append_step(record(1, 0.0))
    assert "Completions" not in write_summary(folder)


def test_run_without_a_step_is_refused(tmp_path: Path) -> None:
    (tmp_path / "metrics.jsonl").write_text("")
    with pytest.raises(RunFolderError, match="holds no finished step"):
        write_summary(RunFolder(tmp_path))


def test_steps_without_rewards_are_summed_up(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path)
    for step in (1, 2):
        unscored = [group([sample(float("nan")), sample(float("nan"))])]
        Recorder(folder).append_step(step_record(step, unscored, 0, report(), measures()))
    assert "* Reward - in the first step, - in the last." in write_summary(folder)


def test_pairs_are_of_like_prompts_and_cut(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path)
    folder.rollouts_dir.mkdir()
    chat = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Count to three"}]
    first = [group([sample(0.0, text="x" * 500)], 1, "zebra"), group([sample(1.0, text="one two")], 2, chat)]
    last = [group([sample(2.0, text="1 2 3")], 3, chat)]
    paths = [
        Recorder(folder).write_rollouts(1, 0, first, [0.0, 0.0], [(group([sample(9.0)], 9, chat), "dropped:stale")]),
        Recorder(folder).write_rollouts(2, 1, last, [0.0]),
    ]
    ((before, after),) = example_pairs(*paths)
    assert (before.prompt, before.completion, before.reward) == ("Count to three", "one two", 1.0)
    assert (after.completion, after.reward) == ("1 2 3", 2.0)
    pairs = example_pairs(paths[0], paths[0], width=25)
    assert pairs[0][0].completion == "x" * 11 + " … " + "x" * 11


def test_moving_average_leaves_nan_out() -> None:
    means = moving_average(np.array([1.0, 3.0, np.nan, 5.0]), 2)
    assert means.tolist() == [1.0, 2.0, 3.0, 5.0]
    assert np.isnan(moving_average(np.array([np.nan, 1.0]), 1)[0])


def test_plot_needs_a_step(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="no steps"):
        plot_run([], tmp_path / "reward.png", "demo")


def test_a_run_that_stopped_early_is_called_interrupted(tmp_path: Path) -> None:
    folder = run_of_three_steps(tmp_path)
    assert write_summary(folder, target_steps=5).startswith("# demo: interrupted after 3 of 5 steps in ")
    assert json.loads(folder.summary_json.read_text())["target_steps"] == 5
    assert write_summary(folder, target_steps=3).startswith("# demo: 3 steps in ")


def test_steps_whose_tokens_are_not_known_are_left_out_of_the_rate(tmp_path: Path) -> None:
    folder = run_of_three_steps(tmp_path)
    unknown = measures(tokens_generated=float("nan"), tokens_generated_while_training=float("nan"), step_seconds=90.0)
    Recorder(folder).append_step(step_record(4, [group([sample(0.0), sample(1.0)])], 3, report(), unknown))
    text = write_summary(folder, 4)
    assert "* Generated 600 tokens, 20 per second, 40% of them while the learner was training" in text
    assert "; engines told so for 3 of 4 steps." in text


def test_drops_are_those_of_the_accounting(tmp_path: Path) -> None:
    folder = run_of_three_steps(tmp_path)
    tally = {"groups": 4, "samples": 8}
    fates = {"trained": tally, "dropped:run_ended": {**tally, "groups": 3}, "reissued:stale": tally}
    folder.accounting_file.write_text(json.dumps({"by_fate": fates}))
    said = write_summary(folder)
    assert "tokens; dropped groups: none." in said
    assert "* Left over at the end: 3 groups that were begun and not trained; no step was left for them." in said
    assert json.loads(folder.summary_json.read_text())["groups_dropped"] == {"run_ended": 3}


@pytest.mark.parametrize(
    ("groups", "words"),
    [
        (0, "* The same command goes on after step 3 (in Python: train() once more)."),
        (
            1,
            "* The same command goes on after step 3 (in Python: train() once more). Nothing is lost with 1 group that "
            "was begun and not trained: its prompt comes again then.",
        ),
        (
            2,
            "* The same command goes on after step 3 (in Python: train() once more). Nothing is lost with 2 groups "
            "that were begun and not trained: their prompts come again then.",
        ),
    ],
)
def test_a_stopped_run_says_that_it_goes_on_and_that_nothing_is_lost(tmp_path: Path, groups: int, words: str) -> None:
    folder = run_of_three_steps(tmp_path)
    fates = {"dropped:run_ended": {"groups": groups}, "dropped:stale": {"groups": 4}}
    folder.accounting_file.write_text(json.dumps({"by_fate": fates}))
    (folder.checkpoints_dir / "step-latest").mkdir(parents=True)
    cannot = "* No checkpoint was saved (checkpoint.save_minutes, checkpoint.save_steps), so it cannot go on."
    assert cannot in write_summary(folder, 5).splitlines()
    for step in (2, 3):
        (folder.checkpoints_dir / f"step-{step:08d}").mkdir()
    lines = write_summary(folder, 5).splitlines()
    assert words in lines
    assert cannot not in lines
    assert any(line.endswith("dropped groups: 4 stale.") for line in lines)
    other = "* The same command with --run.resume=allow goes on after step 3 (in Python: train() once more, with that "
    assert other in write_summary(folder, 5, resume="never")


def ending(path: Path, rewards: list[float], finish: FinishReason, gradient: float = 0.0) -> str:
    """Summary of a run whose two last steps of three had such samples and gradient."""
    path.mkdir()
    folder = RunFolder(path)
    first = step_record(1, [group([sample(0.0), sample(1.0)])], 0, report(grad_norm=1.0), measures())
    Recorder(folder).append_step(first)
    for step in (2, 3):
        samples = [sample(reward, finish_reason=finish) for reward in rewards]
        Recorder(folder).append_step(step_record(step, [group(samples)], 0, report(grad_norm=gradient), measures()))
    return write_summary(folder)


def test_last_steps_that_could_teach_nothing_are_named(tmp_path: Path) -> None:
    nothing, cut = (
        "In the last 2 steps there was nothing left to learn from",
        "In the last 2 steps every completion was",
    )
    equal = ending(tmp_path / "equal", [1.0, 1.0], "stop")
    assert (nothing in equal, cut in equal) == (True, False)
    late = ending(tmp_path / "cut", [0.0, 1.0], "length", gradient=0.5)
    assert (nothing in late, cut in late) == (False, True)
    assert nothing not in ending(tmp_path / "kl", [1.0, 1.0], "stop", gradient=0.5)
