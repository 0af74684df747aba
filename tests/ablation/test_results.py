"""What a whole study comes to, of tables with a known truth."""

import functools
import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest
from study_cases import beforehand, plan_of, runs_of, scores_to, study_of, write_study

from asyncgrpo.ablation.findings.beforehand import beforehand_of
from asyncgrpo.ablation.findings.results import compute, compute_study, report_study
from asyncgrpo.ablation.tables.folder import PLAN
from asyncgrpo.ablation.tables.recorded import RecordedRun
from asyncgrpo.errors import RunFolderError

CONTROLS = {
    "baseline": {"method": "decoupled", "staleness": "0"},
    "aa": {"method": "decoupled", "staleness": "0", "learning_rate": "0.0003"},
    "positive": {"method": "clip", "staleness": "16", "learning_rate": "0.002"},
}
COLLAPSED = [0.25, 0.8, 0.8, 0.8, 0.8, 0.8, 0.1, 0.1, 0.1, 0.1, 0.1]


def truth(levels: Mapping[str, str], seed: int) -> Sequence[float]:
    """At staleness 16 clip loses 0.2 at the low learning rate and collapses at the high one; else all are alike."""
    noise = np.random.default_rng(
        [seed, int(levels["staleness"]), len(levels["method"]), round(1e5 * float(levels["learning_rate"]))]
    ).normal(0.0, 0.004)
    if levels["method"] == "clip" and levels["staleness"] == "16":
        return COLLAPSED if levels["learning_rate"] == "0.002" else scores_to(0.6 + noise)
    return scores_to(0.8 + noise)


def results_of(truth: Any = truth, *, spoil: Any = None, metrics: bool = False, **changes: Any) -> dict[str, Any]:
    study = study_of(**{"controls": CONTROLS, **changes})
    runs: list[RecordedRun] = runs_of(study, truth, metrics=metrics)
    return compute(beforehand(study), [spoil(run) for run in runs] if spoil else runs)


@functools.cache
def plain_results() -> dict[str, Any]:
    """Of the truth as it is; nobody changes them."""
    return results_of()


def said(results: Mapping[str, Any]) -> str:
    return " ".join(notice["text"] for notice in results["notices"])


def test_every_arm_has_its_mean_over_seeds():
    results = plain_results()
    arms = {arm["arm"]: arm for arm in results["arms"]}
    assert len(arms) == 9
    own = arms["method=decoupled, learning_rate=0.002, staleness=16"]
    assert own["measures"]["final"]["mean"] == pytest.approx(0.8, abs=0.01)
    assert own["measures"]["auc/tokens"]["mean"] == pytest.approx((0.25 + 0.8) / 2, abs=0.01)
    assert own["measures"]["final"]["n"] == 8
    lost = arms["method=clip, learning_rate=0.002, staleness=16"]
    assert (lost["role"], lost["collapsed"], lost["first_collapse"]) == ("positive", 8, 24)


def test_differences_from_the_baseline_are_found_where_they_are():
    found = {(row["series"], row["staleness"]): row for row in plain_results()["pooled"]}
    assert found["clip", "0"]["finding"] == "equivalent"
    assert found["decoupled", "16"]["finding"] == "equivalent"
    lost = found["clip", "16"]
    assert lost["finding"] == "lower" and lost["pairs"] == 2
    # Areas: a line that ends 0.2 lower, and the collapsed curve by hand, next to a line to 0.8.
    collapsed = np.trapezoid(COLLAPSED) / 10
    assert lost["mean"] == pytest.approx((-0.1 + collapsed - 0.525) / 2, abs=0.005)
    assert ("decoupled", "0") not in found


def test_the_aa_arm_is_noise():
    twin = plain_results()["controls"]["aa"]
    assert twin["arm"] == "method=decoupled, learning_rate=0.0003, staleness=0"
    assert twin["auc"]["low"] < 0 < twin["auc"]["high"] and not twin["differs"]


def test_an_aa_arm_that_differs_is_said_first():
    def shifted(run: RecordedRun) -> RecordedRun:
        moved = {**run.columns, "score": run.columns["score"] + 0.1}
        return replace(run, columns=moved) if run.role == "aa" else run

    results = results_of(spoil=shifted)
    assert results["controls"]["aa"]["differs"]
    assert results["notices"][0]["level"] == "bad" and "A/A" in results["notices"][0]["text"]


def test_a_positive_control_that_holds_up_makes_the_task_too_easy():
    results = results_of(lambda levels, seed: scores_to(0.8 + 0.001 * seed))
    assert results["controls"]["positive"] == {
        "arm": "method=clip, learning_rate=0.002, staleness=16",
        "collapsed": 0,
        "of": 8,
        "holds": False,
    }
    assert "too easy" in results["notices"][0]["text"]
    assert plain_results()["controls"]["positive"]["holds"]
    assert "too easy" not in said(plain_results())


def test_a_saturated_task_is_said():
    high = results_of(lambda levels, seed: scores_to(0.99 + 0.001 * seed, start=0.76))
    assert "the score before training is 0.76" in said(high) and "every arm ends at 0.99" in said(high)
    assert "saturated" not in said(plain_results())


def test_negative_scores_refuse_the_collapse_rule():
    results = results_of(lambda levels, seed: [score - 0.5 for score in truth(levels, seed)])
    assert "scores must be ≥ 0" in said(results)
    assert {arm["known"] for arm in results["arms"]} == {0} and results["survival"] == {}


def test_few_seeds_and_no_controls_are_said():
    text = said(results_of(seeds=3, controls={}))
    assert "Only 3 seeds" in text and "no positive control" in text and "no A/A arm" in text


def test_a_learning_rate_that_inverts_the_order_is_shown():
    def crossing(levels: Mapping[str, str], seed: int) -> Sequence[float]:
        ahead = {"0.0003": "clip", "0.002": "decoupled"}[levels["learning_rate"]]
        return scores_to(0.8 + 0.004 * (seed % 3) + (0.1 if levels["method"] == ahead else 0.0) + 1e-3 * (seed % 2))

    found = results_of(crossing, controls={})["interaction"]
    assert found["tests"] == 4
    assert [(one["staleness"], one["a"], one["b"]) for one in found["shown"]] == [
        ("0", "clip", "decoupled"),
        ("16", "clip", "decoupled"),
    ]
    assert [end["mean"] for end in found["shown"][0]["ends"]] == pytest.approx([0.05, -0.05])
    assert [one["series"] for one in found["ranks"][0]["order"]] == ["clip", "decoupled"]
    assert plain_results()["interaction"]["shown"] == []


def test_the_answer_claims_what_was_tested():
    effect, stability, trust = plain_results()["answer"]
    assert "staleness 16 is lower with clip (\u2212" in effect
    assert "the same within ±0.03 with decoupled" in effect
    assert stability.startswith("8 of 64 runs collapsed, most often clip at learning_rate 0.002, staleness 16 (8 of 8)")
    assert "Nothing was expected beforehand" in trust and "collapsed in 8 of 8 runs" in trust
    noise = results_of(
        lambda levels, seed: scores_to(0.6 + 0.2 * np.random.default_rng(hash_of(levels, seed)).normal())
    )
    assert "neither shown to differ nor to be the same with clip" in noise["answer"][0]
    assert "lower with" not in noise["answer"][0]


def hash_of(levels: Mapping[str, str], seed: int) -> list[int]:
    return [seed, *(sum(map(ord, level)) for level in levels.values())]


def test_failures_are_results():
    def fail(run: RecordedRun) -> RecordedRun:
        spoiled = run.seed == 2 and run.factors["staleness"] == "16" and run.factors["method"] == "clip"
        return replace(run, status="failed", error="LearnerError: no") if spoiled else run

    results = results_of(spoil=fail)
    assert [(row["seed"], row["error"]) for row in results["failures"]] == [(2, "LearnerError: no")] * 2
    assert "2 runs failed" in said(results)
    lost = next(row for row in results["pooled"] if row["finding"] == "lower")
    assert (lost["n"], lost["left_out"]) == (7, [2])


def test_a_study_that_is_not_over_says_so_first():
    study = study_of(controls=CONTROLS)
    results = compute(beforehand_of(plan_of(study, runs=73)), runs_of(study, truth))
    assert results["notices"][0]["text"] == "The study is not over: these are 72 of 73 runs."
    assert "not over" not in said(compute(beforehand_of(plan_of(study, runs=72)), runs_of(study, truth)))


def test_diagnostics_are_by_staleness():
    rows = results_of(metrics=True)["diagnostics"]
    found = {(row["series"], row["staleness"], row["name"]): row["mean"] for row in rows}
    assert found["clip", "0", "behaviour_ratio_effective_ratio"] == 1.0
    assert found["clip", "16", "behaviour_ratio_effective_ratio"] == pytest.approx(1 - 0.03 * 16 / 2, abs=0.02)
    assert found["clip", "16", "gradient_norm"] == pytest.approx(2.6, rel=0.05)
    assert ("clip", "0", "importance_weight_effective_ratio") not in found


def test_a_study_without_learning_rates_or_staleness_is_reported_too():
    study = study_of(
        factors={"method": {"a": {"objective.gate": "clip"}, "b": {"objective.gate": "none"}}},
        controls={"baseline": {"method": "a"}},
    )
    results = compute(beforehand(study), runs_of(study, lambda levels, seed: scores_to(0.7 + 0.01 * seed)))
    assert results["interaction"]["applies"] is False
    assert [row["series"] for row in results["pooled"]] == ["b"]
    json.dumps(results, allow_nan=False)


@pytest.mark.parametrize("seeds", [1, 2])
def test_few_seeds_give_words_and_no_nan(tmp_path: Path, seeds: int):
    staleness = {"key": "injected.staleness", "values": [0, 4]}
    study = study_of(factors={"staleness": staleness}, controls={}, seeds=seeds)
    runs = runs_of(study, lambda levels, seed: scores_to(0.8 + 0.1 * seed), metrics=True)
    report = report_study(write_study(tmp_path, study, runs))
    assert "no interval" in report.read_text() and "nan" not in report.read_text().lower().replace("nance", "")


def test_a_folder_gives_what_its_tables_have(tmp_path: Path):
    study = study_of(controls=CONTROLS)
    runs = runs_of(study, truth, metrics=True)
    write_study(tmp_path, study, runs)
    assert compute_study(tmp_path) == compute(beforehand(study), runs)


def test_the_report_stands_beside_its_figures(tmp_path: Path):
    study = study_of(controls=CONTROLS)
    report = report_study(write_study(tmp_path, study, runs_of(study, truth, metrics=True)))
    assert report == tmp_path / "report.html"
    stored = json.loads((tmp_path / "results.json").read_text())
    rows = pq.read_table(tmp_path / "results.parquet").to_pylist()
    assert len(rows) == stored["study"]["runs"] == 72
    assert {row["final"] for row in rows if row["collapse_step"] == 24} == {0.1}


def test_a_folder_without_tables_is_refused(tmp_path: Path):
    with pytest.raises(RunFolderError, match=r"not the folder of a study: plan\.json"):
        report_study(tmp_path)
    (tmp_path / PLAN).write_text(json.dumps(plan_of(study_of())))
    with pytest.raises(RunFolderError, match=r"runs\.parquet cannot be read"):
        report_study(tmp_path)


def test_a_study_of_which_nothing_has_run_is_refused():
    with pytest.raises(RunFolderError, match="nothing to report yet"):
        compute(beforehand(study_of()), [])
