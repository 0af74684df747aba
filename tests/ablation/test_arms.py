"""Factors and controls to arms, arms and seeds to runs, and the key of a run's content."""

import json
from pathlib import Path
from typing import Any

import pytest
from ablation_cases import TOY, toy_study

from asyncgrpo.ablation.design.arms import Run, arms_of, runs_of, tuning_runs
from asyncgrpo.ablation.design.study import Study
from asyncgrpo.ablation.kinds.settings import Histogram, InjectedSection
from asyncgrpo.errors import ConfigError

INJECTED = {"name": "x", "question": "?", "kind": "injected"}
STALENESS = {"staleness": {"key": "injected.staleness", "values": [0, 4]}}


def names(study: Study) -> list[tuple[str, str]]:
    return [(arm.name, arm.role) for arm in arms_of(study)]


def injected(**changes: Any) -> Study:
    return toy_study(**{"study": INJECTED, "base": {}, "factors": STALENESS, **changes})


def first_run(study: Study) -> Run:
    return runs_of(study, arms_of(study))[0]


def test_every_combination_of_levels_is_an_arm() -> None:
    assert names(toy_study()) == [
        ("method=good, staleness=0", "arm"),
        ("method=good, staleness=4", "arm"),
        ("method=bad, staleness=0", "arm"),
        ("method=bad, staleness=4", "arm"),
    ]
    arm = arms_of(toy_study())[3]
    assert (arm.levels, arm.settings) == (
        {"method": "bad", "staleness": "4"},
        {"options.height": 0.5, "buffer.max_staleness": 4},
    )


def test_cells_can_be_left_out() -> None:
    study = toy_study(exclude=[{"method": "bad", "staleness": 0}, {"method": "good"}])
    assert names(study) == [("method=bad, staleness=4", "arm")]


def test_controls() -> None:
    study = toy_study(
        controls={
            "baseline": {"method": "good"},
            "aa": {"method": "good", "staleness": 0},
            "positive": {"method": "bad", "staleness": 4},
        }
    )
    assert names(study) == [
        ("method=good, staleness=0", "baseline"),
        ("method=good, staleness=4", "baseline"),
        ("method=bad, staleness=0", "arm"),
        ("method=bad, staleness=4", "positive"),
        ("method=good, staleness=0 (A/A)", "aa"),
    ]
    assert [arm.stream for arm in arms_of(study)] == [0, 0, 0, 0, 1]


def test_a_positive_control_with_settings_of_its_own_is_one_arm_more_and_is_not_tuned() -> None:
    control = {"method": "bad", "staleness": 4, "training.learning_rate": 0.1}
    study = toy_study(
        controls={"positive": control},
        tune={"key": "training.learning_rate", "values": [1e-3, 1e-2], "seeds": [100]},
    )
    *others, positive = arms_of(study)
    assert (positive.name, positive.role) == ("method=bad, staleness=4 with training.learning_rate=0.1", "positive")
    assert [arm.role for arm in others] == ["arm"] * 4
    runs = runs_of(study, arms_of(study), {arm.name: 1e-2 for arm in others})
    rates = [run.config().training.learning_rate for run in runs if run.seed == 0]
    assert rates == [0.01, 0.01, 0.01, 0.01, 0.1]
    assert {run.arm for run in tuning_runs(study, arms_of(study))} == {arm.name for arm in others}


@pytest.mark.parametrize(
    ("controls", "line"),
    [
        ({"aa": {"method": "good"}}, "controls.aa = method=good: names 2 arms; add staleness"),
        (
            {"baseline": {"method": "god"}},
            "controls.baseline = method=god: names no arm of the study; method has no level 'god'; did you mean ",
        ),
        (
            {"baseline": {"mehtod": "good"}},
            "controls.baseline = mehtod=good: names no arm of the study; did you mean 'met",
        ),
        (
            {"positive": {"method": "bad", "staleness": 7}},
            "controls.positive = method=bad, staleness=7: names no arm of ",
        ),
        (
            {"baseline": {"method": "bad", "staleness": 4}},
            "controls.baseline = method=bad, staleness=4: names no arm of ",
        ),
    ],
)
def test_a_control_that_names_no_arm(controls: dict[str, Any], line: str) -> None:
    with pytest.raises(ConfigError) as caught:
        arms_of(toy_study(controls=controls, exclude=[{"method": "bad", "staleness": 4}]))
    assert str(caught.value).startswith(line)


def test_runs_go_through_all_arms_seed_by_seed_with_the_settings_of_each() -> None:
    study = toy_study(seeds=[3, 5])
    runs = runs_of(study, arms_of(study))
    assert [run.seed for run in runs] == [3] * 4 + [5] * 4
    assert len({run.key for run in runs}) == 8
    config = runs[5].config()
    assert (config.run.seed, config.training.max_steps, config.buffer.max_staleness) == (5, 4, 4)
    assert runs[5].own() == {"height": 1.0}
    assert (runs[5].stream, runs[5].evaluate_every, runs[5].tuned) == (0, 2, None)


def test_tuning_tries_every_value_of_every_arm_on_its_own_seeds() -> None:
    study = toy_study(
        controls={"aa": {"method": "good", "staleness": 0}},
        tune={"key": "training.learning_rate", "values": [1e-3, 1e-2], "seeds": [100, 101]},
    )
    runs = tuning_runs(study, arms_of(study))
    assert len(runs) == 2 * 4 * 2
    assert {(run.seed, run.tuned, run.role) for run in runs} == {
        (seed, tuned, "tuning") for seed in (100, 101) for tuned in ("0.001", "0.01")
    }
    chosen = runs_of(study, arms_of(study), {"method=good, staleness=0": 1e-2})
    tuned = {run.arm: run.tuned for run in chosen}
    assert tuned["method=good, staleness=0"] == tuned["method=good, staleness=0 (A/A)"] == "0.01"


def test_a_run_goes_through_json() -> None:
    run = first_run(toy_study(prepare={"path": f"{TOY}:prepare", "options": {"digits": 3}}))
    assert Run.from_json(json.loads(json.dumps(run.as_json()))) == run


def test_what_was_prepared_becomes_settings_and_leaves_the_key() -> None:
    run = first_run(injected())
    prepared = run.with_settings({"model.path": "/start", "injected.staleness.histogram": "h.jsonl"})
    assert prepared.config().model.path == "/start"
    assert prepared.own() == InjectedSection(staleness=Histogram(histogram="h.jsonl"))
    assert prepared.key == run.key


@pytest.mark.parametrize(
    ("kind", "factor", "base", "expected"),
    [
        ("asynchronous", {"key": "buffer.max_staleness", "values": [0, 4]}, {}, "asynchronous"),
        ("injected", {"key": "injected.staleness", "values": [0, 4]}, {}, "injected"),
        ("injected", {"key": "training.num_iterations", "values": [1, 4]}, {}, "updates"),
        ("injected", {"key": "training.num_iterations", "values": [1, 4]}, {"injected": {"staleness": 2}}, "injected"),
        ("asynchronous", {"key": "training.num_iterations", "values": [1, 4]}, {}, "asynchronous"),
        ("bits", {"key": "bits.staleness", "values": [0, 4]}, {}, "injected"),
    ],
)
def test_which_way_of_being_stale_it_is(kind: str, factor: Any, base: Any, expected: str) -> None:
    study = toy_study(study={**INJECTED, "kind": kind}, base=base, factors={"f": factor})
    assert first_run(study).staleness_kind == expected


@pytest.mark.parametrize(
    "changes",
    [
        {"base": {"training": {"learning_rate": 1e-4}}},
        {"base": {"injected": {"staleness": 1}}, "factors": {"m": {"a": {"training.bf16": False}}}},
        {"seeds": [9]},
        {"budget": {"steps": 5}},
        {"evaluate_every": 1},
        {"prepare": {"path": f"{TOY}:prepare"}},
    ],
)
def test_the_key_is_of_what_the_numbers_depend_on(changes: dict[str, Any]) -> None:
    assert first_run(injected(**changes)).key != first_run(injected()).key


@pytest.mark.parametrize(
    "changes",
    [
        {"base": {"training": {"learning_rate": 1e-6}}},  # the default
        {"base": {"observe": {"log_level": "debug"}, "run": {"output_dir": "elsewhere"}}},
        {"study": {**INJECTED, "name": "other"}},
        {"equivalence_margin": 0.5, "controls": {"baseline": {"staleness": 0}}, "seeds": [0, 1, 2]},
        {"factors": {"k": {"none": {"injected.staleness": 0}}}},
    ],
)
def test_and_of_nothing_else(changes: dict[str, Any]) -> None:
    assert first_run(injected(**changes)).key == first_run(injected()).key


def test_the_key_is_of_the_content_of_files_that_settings_name(tmp_path: Path) -> None:
    data = tmp_path / "train.jsonl"
    study = injected(base={"data": {"dataset": str(data)}})
    keys = set()
    for text in (None, "a", "b"):
        if text is not None:
            data.write_text(text)
        keys.add(first_run(study).key)
    assert len(keys) == 3


def test_the_aa_arm_is_another_run_of_the_same_settings() -> None:
    study = injected(controls={"aa": {"staleness": 0}})
    runs = [run for run in runs_of(study, arms_of(study)) if run.levels == {"staleness": "0"} and run.seed == 0]
    assert runs[0].values == runs[1].values
    assert runs[0].key != runs[1].key
