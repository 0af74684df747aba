import json
import math
from pathlib import Path
from typing import Any

import pytest
from prometheus_client import CollectorRegistry
from prometheus_client.exposition import generate_latest

from asyncgrpo.errors import RunFolderError
from asyncgrpo.observe.evaluations import (
    append_evaluation,
    change_of_reward,
    first_and_last,
    format_evaluation,
    format_table,
    kept_length,
    read_evaluations,
    verdict,
)
from asyncgrpo.observe.metrics import EvaluationMetrics
from asyncgrpo.observe.rewind import rewind
from asyncgrpo.observe.run_folder import RunFolder


def record(step: int, rewards: list[float | None], **changes: Any) -> dict[str, Any]:
    known = [reward for reward in rewards if reward is not None]
    values = {
        "step": step,
        "time": 1_700_000_000.0,
        "seconds": 12.34,
        "error": None,
        "version_min": step,
        "version_max": step,
        "samples_mixed_version": 0,
        "prompts": len(rewards),
        "prompts_unscored": len(rewards) - len(known),
        "samples_per_prompt": 2,
        "samples": 2 * len(known),
        "samples_failed": 0,
        "samples_unscored": 0,
        "temperature": 1.0,
        "max_completion_length": 64,
        "eval_set": "abc",
        "reward_mean": sum(known) / len(known),
        "reward_standard_error": 0.125,
        "reward_mean/exact": sum(known) / len(known),
        "reward_standard_error/exact": 0.125,
        "pass_ratio/1": 0.25,
        "pass_standard_error/1": 0.0625,
        "pass_ratio/2": 0.5,
        "pass_standard_error/2": math.nan,
        "completion_tokens_mean": 20.25,
        "truncated_ratio": 0.0625,
        "prompt_rewards": rewards,
    }
    return values | changes


def failed(step: int) -> dict[str, Any]:
    return {"step": step, "time": 1.0, "seconds": 2.0, "error": "late", "prompts": 2}


def test_a_line_each(tmp_path: Path) -> None:
    path = tmp_path / "evaluation.jsonl"
    assert read_evaluations(path) == []
    append_evaluation(path, record(0, [0.0, 1.0]))
    append_evaluation(path, failed(2))
    first, second = read_evaluations(path)
    assert (first["reward_mean"], first["pass_standard_error/2"]) == (0.5, None)
    assert second == failed(2)
    with path.open("a") as file:
        file.write('{"step": 4, "ti')
    assert [each["step"] for each in read_evaluations(path)] == [0, 2]
    path.write_text("{\n" + json.dumps(failed(2)) + "\n")
    with pytest.raises(RunFolderError, match="line 1, is no evaluation's record"):
        read_evaluations(path)


def test_one_line_says_which_versions_and_what_was_left_out() -> None:
    assert format_evaluation(record(4, [0.0, 1.0])) == (
        "evaluation of step 4 (version 4): mean@2 +0.500 ±0.125  pass@1 0.250 ±0.062  pass@2 0.500  tokens 20.2  "
        "truncated 6%  12.3 s"
    )
    mixed = record(4, [0.5, None], version_max=6, samples_mixed_version=3, samples_failed=1)
    line = format_evaluation(mixed)
    assert line.startswith("evaluation of step 4 (versions 4 to 6, 3 samples of several): ")
    assert line.endswith("; left out: samples failed: 1, prompts unscored: 1")


def test_only_what_was_asked_alike_is_compared() -> None:
    first, last = record(0, [0.0]), record(8, [1.0])
    assert first_and_last([failed(0)]) == []
    assert first_and_last([failed(0), first]) == [first]
    assert first_and_last([first, record(4, [0.5]), last, failed(10)]) == [first, last]
    greedy = record(2, [0.5], temperature=0.0)
    assert first_and_last([greedy, record(4, [0.5]), last]) == [record(4, [0.5]), last]
    assert first_and_last([first, greedy]) == [greedy]


def test_a_change_is_that_of_the_same_prompts() -> None:
    """Prompts differ by 1 from each other and each rose by 0.1: that is certain, whatever the means' own errors are."""
    before, after = record(0, [0.0, 1.0, None, 0.3]), record(8, [0.1, 1.1, 0.5, None])
    mean, error = change_of_reward(before, after)
    assert (mean, error) == (pytest.approx(0.1), pytest.approx(0.0, abs=1e-9))
    change, error = change_of_reward(record(0, [0.0, 0.0]), record(8, [0.5, 0.1]))
    assert (change, error) == (pytest.approx(0.3), pytest.approx(0.2))


@pytest.mark.parametrize(
    ("after", "says"),
    [
        ([0.5, 0.1], r"The change of the held-out reward, \+0.300 ± 0.200 per prompt, is within noise"),
        ([0.5, 0.4], r"The held-out reward rose: \+0.450 ± 0.050 per prompt"),
        ([-0.5, -0.4], r"The held-out reward fell: -0.450 ± 0.050 per prompt"),
        ([0.0, 0.0], r"The change of the held-out reward, \+0.000 ± 0.000 per prompt, is within noise"),
        ([0.5, None], "cannot be told from fewer than two prompts"),
    ],
)
def test_noise_is_called_noise(after: list[float | None], says: str) -> None:
    import re

    assert re.search(says, verdict(record(0, [0.0, 0.0]), record(8, after)))


def test_the_table() -> None:
    lines = format_table(
        [record(0, [0.0, 1.0], **{"reward_mean/b": 0.0}), record(8, [0.5, None], **{"reward_mean/b": 1.0})]
    )
    assert lines[0] == "Held-out evaluation, 2 prompts x 2 samples, temperature 1 (± standard errors):"
    cells = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines[2:-2]]
    assert cells == [
        ["", "step 0, version 0", "step 8, version 8"],
        ["---", "---", "---"],
        ["mean@2 reward", "+0.500 ±0.125", "+0.500 ±0.125"],
        ["mean@2 exact", "+0.500 ±0.125", "+0.500 ±0.125"],
        ["mean@2 b", "+0.000", "+1.000"],
        ["pass@1", "0.250 ±0.062", "0.250 ±0.062"],
        ["pass@2", "0.500", "0.500"],
        ["tokens", "20.2", "20.2"],
        ["truncated", "6%", "6%"],
        ["left out", "nothing", "prompts unscored: 1"],
    ]
    assert "mean@2 exact" not in "".join(format_table([record(0, [0.0])], ["a model"])), "it is the reward"


def test_going_back_keeps_what_was_evaluated_of_policies_that_stay(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path)
    folder.rollouts_dir.mkdir()
    for each in (record(0, [0.0]), record(2, [0.0]), record(4, [0.0], version_max=6)):
        append_evaluation(folder.evaluation_file, each)
        (folder.rollouts_dir / f"eval_{each['step']:06d}.parquet").touch()
    with folder.evaluation_file.open("a") as file:
        file.write('{"half a li')
    length = kept_length(folder.evaluation_file, 4)
    aside = rewind(folder, {"evaluation.jsonl": length}, 4)
    assert [each["step"] for each in read_evaluations(folder.evaluation_file)] == [0, 2], "6 is trained anew"
    assert [path.name for path in aside] == ["evaluation.jsonl.rewound-1", "eval_000004.parquet.rewound-1"]
    assert kept_length(folder.evaluation_file, 1) < length
    assert kept_length(tmp_path / "none", 1) == 0


def test_what_is_shown_at_metrics() -> None:
    registry = CollectorRegistry()
    metrics = EvaluationMetrics(registry, ["exact"], [1, 2])
    before = names(registry)
    metrics.observe(record(4, [0.0, 1.0], samples_failed=3, **{"pass_ratio/2": math.nan}))
    metrics.count("skipped")
    shown = series(registry)
    assert names(registry) == before, "no series appears with the first evaluation"
    assert (
        shown['asyncgrpo_eval_reward_mean{reward="total"}']
        == shown['asyncgrpo_eval_reward_mean{reward="exact"}']
        == 0.5
    )
    assert (shown['asyncgrpo_eval_pass_ratio{k="1"}'], shown['asyncgrpo_eval_pass_ratio{k="2"}']) == (0.25, 0.0)
    assert (shown["asyncgrpo_eval_step"], shown["asyncgrpo_eval_samples_failed_total"]) == (4, 3)
    outcomes = {of: shown[f'asyncgrpo_eval_runs_total{{outcome="{of}"}}'] for of in ("done", "failed", "skipped")}
    assert outcomes == {"done": 1, "failed": 0, "skipped": 1}
    assert shown["asyncgrpo_eval_duration_seconds_sum"] == 12.34


def series(registry: CollectorRegistry) -> dict[str, float]:
    lines = generate_latest(registry).decode().splitlines()
    return {name: float(value) for name, _, value in (line.rpartition(" ") for line in lines if line[0] != "#")}


def names(registry: CollectorRegistry) -> set[str]:
    return {name for name in series(registry) if "_created" not in name}


@pytest.mark.parametrize("damaged", ["{", "[]", "", "{}"])
def test_a_damaged_record_is_named_before_anything_is_taken_back(damaged: str, tmp_path: Path) -> None:
    path = tmp_path / "evaluation.jsonl"
    path.write_text(f'{{"step": 0}}\n{damaged}\n{{"step": 4}}\n')
    with pytest.raises(RunFolderError, match=r"evaluation.jsonl, line 2, is no evaluation's record"):
        kept_length(path, 4)
