"""Numbers on the command line, and the plan that comes of them."""

import json

import pytest

from asyncgrpo.cli.main import main
from asyncgrpo.errors import ConfigError
from asyncgrpo.planning.numbers import changed, from_numbers, read_numbers
from asyncgrpo.planning.scaling import scaled_down


def test_numbers_become_a_model() -> None:
    words = ["--engines=3", "--groups_per_step=4", "--completion_tokens=50", "--completion_tokens_cv=0"]
    model, learner = from_numbers(read_numbers([*words, "--train_seconds=6", "--learner_devices=2"]))
    assert (model.engines.count, learner, model.policy.groups_per_step) == (3, 2, 4)
    assert model.lengths.mean == 50
    assert model.learner.step_seconds == pytest.approx(3.0)  # given for one device


def test_devices_alone_are_halved() -> None:
    model, learner = from_numbers(read_numbers(["--devices=9"]))
    assert (model.engines.count, learner) == (4, 5)


def test_only_given_numbers_replace_what_was_recorded() -> None:
    recorded, _ = from_numbers(read_numbers(["--train_seconds=4", "--max_staleness=3", "--engines=2"]))
    model, learner = changed(recorded, read_numbers(["--learner_devices=2", "--engines=5"]), 1)
    assert (model.engines.count, learner, model.policy.max_staleness) == (5, 2, 3)
    assert model.learner.step_seconds == pytest.approx(2.0)
    assert model.lengths is recorded.lengths


@pytest.mark.parametrize(
    ("word", "says"),
    [
        ("--engine=3", "did you mean --engines"),
        ("--engines=0", "--engines=0: expected more than 0"),
        ("--groups_per_step=abc", "--groups_per_step=abc: expected a whole number"),
        ("--over_stale=no", "--over_stale=no: expected one of 'wait', 'drop', 'drop_reissue' or 'mask'"),
        ("--zzz=1", "`asyncgrpo plan --help` lists"),
    ],
)
def test_wrong_numbers(word: str, says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        read_numbers([word])


def test_a_large_run_is_scaled_down_evenly() -> None:
    words = ["--engines=1000", "--groups_per_step=6400", "--publish_concurrency=100", "--max_unfinished_groups=9600"]
    large, _ = from_numbers(read_numbers([*words, "--train_token_seconds=0.001"]))
    small = scaled_down(large, 100)
    assert (small.policy.groups_per_step, small.policy.max_unfinished_groups) == (64, 96)
    assert (small.engines.count, small.engines.publish_concurrency) == (10, 1)
    assert small.engines.publish_seconds == large.engines.publish_seconds
    assert small.learner.token_seconds == pytest.approx(0.1)


def test_plan_ends_with_one_line_of_json(capsys: pytest.CaptureFixture[str]) -> None:
    words = ["--devices=4", "--groups_per_step=4", "--num_generations=2", "--completion_tokens=20"]
    assert main(["plan", *words, "--train_seconds=1", "--json"]) == 0
    lines = capsys.readouterr().out.splitlines()
    figures = json.loads(lines[-1])
    assert figures["engines"] + figures["learner_devices"] == 4
    assert figures["bottleneck"] in {"training", "generation", "stragglers", "none", "too few groups in flight"}
    assert any(line.startswith("Bottleneck: ") for line in lines)
