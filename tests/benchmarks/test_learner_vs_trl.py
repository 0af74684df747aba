"""The comparison itself, with figures made up here: what CI runs has no TRL."""

import json

import pytest
from learner_vs_trl import SIDES, differences, main, make_work, parse

OURS, TRL = SIDES["asyncgrpo"], SIDES["trl"]


def figures(seconds, peak, **changes):
    return {
        "seconds": seconds,
        "tokens": 120,
        "peak_bytes": peak,
        "loss": -0.5,
        "grad_norm": 2.0,
        "logprob_sum": -900.0,
    } | changes


def run(tiny_model, capsys, answers, *arguments):
    """Exit code, last line, and the calls made."""
    calls = []

    def measure(side, work):
        calls.append((side, work))
        return answers[side].pop(0)

    code = main(["--model", str(tiny_model), *arguments], measure)
    return code, json.loads(capsys.readouterr().out.splitlines()[-1]), calls


def test_figures_are_medians_over_alternating_processes(tiny_model, capsys):
    answers = {
        OURS: [figures([1.0], 100), figures([2.0], 300), figures([30.0], 200)],
        TRL: [figures([6.0], 500), figures([4.0], 800), figures([5.0], 600)],
    }
    code, line, calls = run(tiny_model, capsys, answers, "--cells", "256/64", "--repeats", "3", "--threads", "1")
    assert code == 0 and line["agrees"]
    assert [side for side, _ in calls] == [OURS, TRL, TRL, OURS, OURS, TRL]
    cell = line["cells"]["256/64"]
    assert (cell["asyncgrpo"]["tokens_per_second"], cell["trl"]["tokens_per_second"]) == (60.0, 24.0)
    assert line["tokens_ratio"] == 2.5
    assert line["memory_ratio"] == pytest.approx(200 / 600)


def test_variants_of_the_headline_have_their_own_ratios(tiny_model, capsys):
    answers = {OURS: [figures([1.0], 1), figures([2.0], 1)], TRL: [figures([4.0], 2), figures([2.0], 4)]}
    _, line, calls = run(tiny_model, capsys, answers, "--quick", "--cells", "256/64", "256/64/best")
    assert (line["tokens_ratio"], line["tokens_ratio_best_case"]) == (4.0, 1.0)
    assert (line["memory_ratio"], line["memory_ratio_best_case"]) == (0.5, 0.25)
    assert [(work.shared, work.ragged) for _, work in calls] == [(True, True)] * 2 + [(False, False)] * 2


def test_sides_that_disagree_fail(tiny_model, capsys):
    answers = {OURS: [figures([1.0], 1, grad_norm=2.01)], TRL: [figures([1.0], 1)]}
    code, line, _ = run(tiny_model, capsys, answers, "--quick", "--cells", "32/64")
    assert code == 1 and not line["agrees"]
    assert line["largest_difference"] == pytest.approx(0.005)
    assert "tokens_ratio" not in line  # the headline was not measured


def test_a_side_out_of_memory_leaves_the_other_figures(tiny_model, capsys):
    answers = {
        OURS: [figures([1.0], 1), figures([1.0], 1)],
        TRL: [{"error": "out of memory"}, figures([2.0], 2)],
    }
    code, line, _ = run(tiny_model, capsys, answers, "--quick", "--cells", "1024/256", "256/64")
    assert code == 0
    assert line["cells"]["1024/256"]["tokens_ratio"] is None
    assert line["cells"]["1024/256"]["asyncgrpo"]["tokens_per_second"] == 120.0
    assert line["tokens_ratio"] == 2.0


def test_differences_are_relative_to_trl():
    ours, theirs = figures([1.0], 1, logprob_sum=-909.0), figures([1.0], 1)
    assert differences(ours, theirs) == pytest.approx({"loss": 0.0, "grad_norm": 0.0, "logprob_sum": 0.01})


@pytest.mark.parametrize("name", ["256", "a/64", "256/64/none", "256/64/best/none"])
def test_a_name_that_is_no_cell_is_refused(tiny_model, name):
    with pytest.raises(SystemExit, match="is no cell"):
        make_work(name, parse(["--model", str(tiny_model)]))


def test_a_missing_model_is_named_with_its_remedy(tmp_path):
    with pytest.raises(SystemExit, match=r"(?s)there is no model in .*prepare\.py"):
        main(["--model", str(tmp_path)])


def test_a_micro_batch_must_divide_the_samples(capsys):
    with pytest.raises(SystemExit):
        parse(["--micro-batch", "3"])
    assert "--micro-batch 3 does not divide 8 samples" in capsys.readouterr().err
