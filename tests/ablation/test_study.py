"""What STUDY.yaml may say, and what is said of mistakes in it."""

import json
from pathlib import Path
from typing import Any

import pytest
from ablation_cases import study_values, toy_study, written

from asyncgrpo.ablation.design.reading import base_file, read_study, study_from_json
from asyncgrpo.errors import ConfigError

PAIR = {"name": "e", "left": {"staleness": 4}, "right": {"staleness": 0}}


def test_levels_by_key_and_values_are_named_by_their_values() -> None:
    values = [3e-4, 1e-6, 16, True, "token_mask", None]
    study = toy_study(factors={"rate": {"key": "training.learning_rate", "values": values}})
    assert study.factors["rate"] == {
        name: {"training.learning_rate": value}
        for name, value in zip(["0.0003", "1e-06", "16", "true", "token_mask", "null"], values, strict=True)
    }


def test_a_number_of_seeds_counts_from_0_and_five_are_usual() -> None:
    assert toy_study(seeds=3).seeds == (0, 1, 2)
    assert toy_study(seeds=[7, 3]).seeds == (7, 3)
    assert toy_study(seeds=None).seeds == (0, 1, 2, 3, 4)


def test_selectors_name_levels_as_they_are_written() -> None:
    study = toy_study(controls={"baseline": {"staleness": 0}}, exclude=[{"rate": 1e-3}])
    assert (study.controls.baseline, study.exclude) == ({"staleness": "0"}, ({"rate": "0.001"},))


def test_defaults() -> None:
    study = toy_study()
    assert (study.collapse.below, study.collapse.of, study.collapse.for_) == (0.5, "best", 3)
    assert (study.equivalence_margin, study.tune, study.expectations) == (0.03, None, ())


def test_as_json_is_taken_back() -> None:
    study = toy_study(
        collapse={"below": 0.4, "for": 2},
        tune={"key": "training.learning_rate", "values": [1e-3, 1e-4], "seeds": [100]},
        expectations=[{**PAIR, "expect": "less"}, order("inverted")],
    )
    assert study_from_json(json.loads(json.dumps(study.as_json()))) == study


@pytest.mark.parametrize(
    ("budget", "record", "spent"),
    [
        ({"steps": 4}, {"step": 4}, True),
        ({"steps": 4}, {"step": 3}, False),
        ({"tokens": 100}, {"step": 1, "tokens": 99.0}, False),
        ({"tokens": 100}, {"step": 1, "tokens": 100.0}, True),
        ({"tokens": 100}, {"step": 1, "tokens": None}, False),
        ({"seconds": 1.5}, {"step": 1, "seconds": 1.6}, True),
    ],
)
def test_a_budget_is_spent_by_the_step_that_reaches_it(budget: Any, record: Any, spent: bool) -> None:
    assert toy_study(budget=budget).budget.is_spent(record) is spent


def test_the_base_is_a_file_beside_the_study(tmp_path: Path) -> None:
    (tmp_path / "base.yaml").write_text("training:\n  learning_rate: 1e-3\nlora:\n")
    path = written(tmp_path, base="base.yaml")
    assert read_study(path).base == {"training": {"learning_rate": 0.001}}
    assert base_file(path) == tmp_path / "base.yaml"
    assert base_file(written(tmp_path)) is None


def order(expect: str, pairs: int = 2) -> dict[str, Any]:
    return {"name": "o", "expect": expect, "order": [[{"method": "good"}, {"method": "bad"}]] * pairs}


@pytest.mark.parametrize(
    ("changes", "line"),
    [
        ({"sedes": 3}, "unknown key 'sedes'; did you mean 'seeds'?"),
        ({"study": {"name": "x", "kind": "bits", "question": "?", "kin": 1}}, "unknown key 'kin' in study; did you "),
        ({"controls": {"base": {}}}, "unknown key 'base' in controls; did you mean 'baseline'?"),
        (
            {"expectations": [{**PAIR, "expect": "less", "axes": "steps"}]},
            "unknown key 'axes' in expectations; did you mean 'axis'?",
        ),
        ({"collapse": {"fro": 3}}, "unknown key 'fro' in collapse; did you mean 'for'?"),
        ({"budget": None}, "budget: missing; give a value"),
        ({"budget": {}}, "budget: give exactly one of steps, tokens, samples, seconds, not none"),
        (
            {"budget": {"steps": 4, "tokens": 9}},
            "budget: give exactly one of steps, tokens, samples, seconds, not steps,",
        ),
        ({"budget": {"steps": 0}}, "budget.steps = 0: expected more than 0"),
        ({"seeds": []}, "seeds = []: expected "),
        ({"seeds": 0}, "seeds = 0: expected "),
        ({"seeds": [-1]}, "seeds.0 = -1: expected at least 0"),
        ({"factors": {}}, "factors = {}: expected "),
        ({"factors": {"m": {}}}, "factors.m = {}: expected "),
        ({"equivalence_margin": "small"}, 'equivalence_margin = "small": expected a number'),
        ({"expectations": [{**PAIR, "expect": "better"}]}, 'expectations.0.expect = "better": expected one of '),
        (
            {"expectations": [{**PAIR, "expect": "at least"}]},
            "expectation 'e': expect: at least goes with arm and value, not with left, right",
        ),
        ({"expectations": [order("inverted", 1)]}, "expectation 'o': order takes pairs of arms, at least two"),
    ],
)
def test_what_is_said_of_a_mistake(changes: dict[str, Any], line: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError) as caught:
        study_from_json(study_values(**changes))
    assert str(caught.value).startswith(line)
    with pytest.raises(ConfigError, match=r"study\.yaml:"):
        read_study(written(tmp_path, **changes))


def test_a_mistake_in_a_file_is_found_by_its_line(tmp_path: Path) -> None:
    path = tmp_path / "s.yaml"
    path.write_text("study: {name: a, question: b, kind: bits}\nfactors: {f: {a: {}}}\nbudget:\n  stepps: 3\n")
    with pytest.raises(ConfigError) as caught:
        read_study(path)
    assert f"{path}:4: unknown key 'stepps' in budget; did you mean 'steps'?" in str(caught.value)


def test_a_base_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"base = 'b\.yaml': there is no file .*b\.yaml; a path is taken from the s"):
        read_study(written(tmp_path, base="b.yaml"))
    with pytest.raises(ConfigError, match=r"nothing\.yaml: no such file"):
        read_study(tmp_path / "nothing.yaml")
