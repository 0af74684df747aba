import json

import learner_cost
import pytest
from learner_asyncgrpo import figures_of
from learner_cost import fit, main, summary


def test_a_line_is_found_and_what_a_unit_costs():
    line = fit([1.0, 2.0, 4.0], [3.0, 5.0, 9.0])  # 1 + 2 x: a unit costs 3 at the smallest, 9/4 at the largest
    assert line == pytest.approx({"seconds_per_unit": 2.0, "seconds_fixed": 1.0, "r2": 1.0, "cost_ratio": 0.75})


def test_what_is_not_a_line_is_seen():
    # Least squares through (0, 0), (1, 1), (2, 0): the constant 1/3, which explains nothing.
    assert fit([1.0, 2.0, 3.0], [1.0, 2.0, 1.0])["r2"] == pytest.approx(0.0)
    assert fit([1.0, 2.0, 4.0], [1.0, 4.0, 16.0])["cost_ratio"] == 4.0  # quadratic


def test_one_point_is_no_line():
    with pytest.raises(ValueError, match="two points"):
        fit([1.0], [1.0])


def test_memory_is_compared_with_the_logits():
    point = {"seconds": 1.0, "tokens": 10, "peak_bytes": 2000}
    sweeps = {
        "tokens": [point | {"value": 1}, point | {"value": 2, "tokens": 20, "seconds": 2.0}],
        "vocabulary": [point | {"value": 50}, point | {"value": 100, "seconds": 3.0, "peak_bytes": 3000}],
        "pass_size": [{"value": 4, "error": "out of memory"}],
    }
    figures = summary(sweeps)
    assert figures["logits_ratio"] == 0.5  # 1000 / (10 tokens x 50 words x 4 bytes)
    assert figures["tokens_r2"] == pytest.approx(1.0)
    assert figures["token_cost_ratio"] == pytest.approx(1.0)
    assert figures["vocabulary"]["seconds_per_unit"] == pytest.approx(0.04)


def test_it_runs_on_tiny_models(capsys, monkeypatch):
    monkeypatch.setattr(learner_cost, "QUICK_SWEEPS", {"tokens": (1, 2), "vocabulary": (64, 128), "pass_size": (8,)})
    sizes = ["--hidden", "16", "--layers", "1", "--prompt", "4", "--completion", "4", "--threads", "1"]
    # In this process, as a child does it: starting five would take longer than what they measure.
    assert main(["--quick", *sizes], lambda side, work: figures_of(work)) == 0
    line = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert [point["tokens"] for point in line["tokens"]["points"]] == [32, 64]
    assert [point["tokens"] for point in line["vocabulary"]["points"]] == [128, 128]
    assert all(point["peak_bytes"] > 0 for point in line["pass_size"]["points"])
