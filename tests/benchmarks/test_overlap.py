"""What the benchmark of overlap makes of records; and that it runs, on a fake engine. Its figures need vLLM."""

import json
import os
import shutil
import sys

import pytest
from overlap import PROMPT, VOCABULARY, Bench, compare, generation_seconds, main, make_task, parse, settings, waste

from asyncgrpo.config import RunConfig

EQUAL, RAGGED, FAST = settings(24)
TRAIN_ON_FAKE_ENGINE = (
    sys.executable,
    "-c",
    "import sys\n"
    "from asyncgrpo.config.loading import load_config\n"
    "from asyncgrpo.launch import run_training\n"
    "sys.exit(run_training(load_config(sys.argv[1]), engine_module='asyncgrpo.testing.fake_engine'))\n",
)


def record(**changes):
    return {
        "step_seconds": 5.0,
        "waiting_seconds": 3.5,
        "publish_seconds": 0.5,
        "training_seconds": 2.0,
        "snapshot_seconds": 0.1,
        "generation_idle_seconds": 0.0,
        "generation_idle_ratio": 0.25,
        "tokens_generated": 600,
        "completion_tokens_mean": 24.0,
        "completion_tokens_max": 24,
        "staleness_mean": 1.0,
        "groups_dropped/stale": 2,
        "groups_dropped/failed": 1,
    } | changes


class Made:
    """Runs that are made up. Synchronous steps take 5 s: 3 of generation, 2 of training; asynchronous ones 4 s. Under
    load generation takes 3.2 s and training 2.5."""

    def __init__(self, *_):
        self.asked = []

    def run(self, setting, max_staleness, load=None):
        self.asked.append((setting.name, max_staleness, load))
        if max_staleness:
            made = record(step_seconds=4.0, waiting_seconds=1.5, publish_seconds=0.25)
        else:
            made = record(**{"learner": {"waiting_seconds": 3.7}, "engine": {"training_seconds": 2.5}}.get(load, {}))
        return [made] * 5, [made, made | {"completion_tokens_max": 30}]


def test_overlap_is_what_a_step_takes_against_the_longer_side():
    made = Made()
    figures = compare(made, EQUAL, loaded=True)
    assert made.asked == [("equal", 0, None), ("equal", 1, None), ("equal", 0, "learner"), ("equal", 0, "engine")]
    assert figures["alone"] == {"generation": 3.0, "training": 2.0}
    assert figures["under_load"] == pytest.approx({"generation": 3.2, "training": 2.5})
    assert (figures["speedup_limit"], figures["speedup_limit_under_load"]) == pytest.approx((5 / 3, 5 / 3.2))
    assert figures["limit_ratio_alone"] == 3.0 / 4.0
    assert figures["limit_ratio"] == pytest.approx(3.2 / 4.0)
    assert figures["speedup_over_sync"] == 5.0 / 4.0
    assert figures["speedup_limit"] == pytest.approx(5.0 / 3.0)
    assert figures["balance"] == 1.5
    assert figures["pause_tokens"] == 0.25 * 600 / 3.0
    assert figures["completion_tokens_max"] == 30
    assert figures["dropped_groups"] == 3


def test_without_load_both_limits_are_the_same():
    made = Made()
    figures = compare(made, RAGGED, loaded=False)
    assert made.asked == [("ragged", 0, None), ("ragged", 4, None)]
    assert figures["limit_ratio"] == figures["limit_ratio_alone"] == 0.75


def test_what_is_thrown_away_is_counted_at_the_end_of_the_run():
    figures = waste(Made(), FAST)
    assert (figures["dropped_groups"], figures["generation_idle_ratio"], figures["max_staleness"]) == (3, 0.25, 4)


def test_waiting_for_a_publish_is_no_generation():
    assert generation_seconds([record(), record(waiting_seconds=4.5, publish_seconds=1.5)]) == 3.0


def test_some_step_must_count(capsys):
    assert parse(["--quick"]).steps == 8
    with pytest.raises(SystemExit):
        parse(["--steps", "5", "--skip", "3"])
    assert "--steps 5: the first 3 and the last two leave none to count" in capsys.readouterr().err


@pytest.mark.parametrize("setting", [EQUAL, RAGGED, FAST])
def test_its_configurations_are_valid_and_end_as_many_completions_as_they_say(setting, tmp_path):
    config = RunConfig.model_validate(Bench(tmp_path, parse([])).config(setting, 1, tmp_path / "run"))
    assert config.generation.max_completion_length == setting.longest
    if setting.mean is None:
        assert config.generation.stop_token_ids == ()
    else:
        assert VOCABULARY / len(config.generation.stop_token_ids) == pytest.approx(setting.mean, rel=0.01)
        assert max(config.generation.stop_token_ids) == VOCABULARY - 1
    assert config.training.num_iterations == (2 if setting is FAST else 1)


def test_the_last_line_is_the_figures(capsys):
    assert main(["--quick", "--layers", "1"], Made) == 0
    figures = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert (figures["limit_ratio"], figures["limit_ratio_ragged"], figures["speedup_over_sync"]) == (0.75, 0.75, 1.25)
    assert figures["dropped_groups"] == 3 * 3
    assert figures["snapshot_bytes"] > 4 * VOCABULARY * 576
    assert figures["equal"]["alone"] == {"generation": 3.0, "training": 2.0}


@pytest.mark.slow
@pytest.mark.skipif(not {0, 1} <= os.sched_getaffinity(0), reason="the benchmark pins to cores 0 and 1")
def test_a_run_gives_the_records_of_its_steps(tiny_model, tmp_path):
    shutil.copytree(tiny_model, tmp_path / "model")
    make_task(tmp_path)
    bench = Bench(tmp_path, parse(["--steps", "4", "--skip", "1"]), TRAIN_ON_FAKE_ENGINE)
    everything, counted = bench.run(settings(4)[0], 1)
    assert [step["step"] for step in everything] == [1, 2, 3, 4]
    assert [step["step"] for step in counted] == [2]
    assert {step["completion_tokens_max"] for step in everything} == {4}
    assert json.loads((tmp_path / "task.jsonl").read_text().splitlines()[7]) == {"prompt": f"{7:0{PROMPT}d}"}
