"""The comparison, with records made up here. The runs themselves need vLLM and TRL."""

import pytest
from step_vs_trl import asset_overrides, check_assets, compare, parse, print_steps


def record(seconds, **changes):
    return {
        "step": 1,
        "step_seconds": seconds,
        "tokens_trained": 100,
        "waiting_seconds": 0.0,
        "training_seconds": seconds,
        "snapshot_seconds": 0.0,
        "publish_seconds": 0.0,
        "generation_idle_seconds": seconds / 2,
        "learner_seconds/total": seconds / 4,
        "tokens_generated": 100,
        "tokens_generated_while_training": 50,
        "staleness_mean": 1.0,
        "staleness_max": 1,
        "reward_mean": 0.0,
        "reward_standard_error": 0.1,
        "groups": 4,
    } | changes


def trl(seconds):
    return {"step_seconds": seconds, "generation_seconds": seconds / 2, "tokens_trained": 80}


def test_neither_the_first_steps_nor_the_last_count_and_trls_faster_setting_is_the_headline(capsys):
    ours = [record(99.0), record(2.0), record(4.0), record(3.0), record(0.1)]
    theirs = {
        "float32": [trl(50.0), trl(12.0), trl(9.0), trl(6.0), trl(99.0)],
        "defaults": [trl(50.0)] + [trl(15.0)] * 3 + [trl(0.1)],
        "vllm": [trl(50.0)] + [trl(2.0)] * 3 + [trl(0.1)],
    }
    figures = compare(ours, theirs, skip=1)
    assert figures["step_ratio"] == 3.0
    assert (figures["step_ratio_float32"], figures["step_ratio_defaults"]) == (3.0, 5.0)
    assert figures["step_ratio_vllm"] == pytest.approx(2 / 3)  # reported, but not what step_ratio is
    assert figures["token_ratio_float32"] == pytest.approx((100 / 3) / (80 / 9))
    assert figures["asyncgrpo"]["learner_seconds/total"] == 0.75
    assert figures["asyncgrpo"]["verdict"] == "training-bound"  # generation is idle for half of the time
    assert figures["trl"]["float32"]["generation_seconds"] == 4.5
    assert figures["steps_counted"] == 3
    print_steps(figures)
    assert "TRL's step (float32) takes 3.00 times as long as ours" in capsys.readouterr().out


def test_missing_assets_are_named_with_their_remedy(tmp_path):
    with pytest.raises(SystemExit, match=r"config\.json is missing; make it with: .*prepare\.py"):
        check_assets(tmp_path)


def test_assets_may_lie_elsewhere(tmp_path):
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "config.json").touch()
    (tmp_path / "train.jsonl").touch()
    check_assets(tmp_path)
    assert asset_overrides(tmp_path) == [
        f"--model.path={tmp_path}/model",
        f"--data.dataset={tmp_path}/train.jsonl",
    ]


def test_some_step_must_count(capsys):
    with pytest.raises(SystemExit):
        parse(["--steps", "4", "--skip", "3"])
    assert "--skip 3 and the last one leave none of 4 steps" in capsys.readouterr().err
