from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from study_cases import runs_of, scores_to, study_of

from asyncgrpo.ablation.design.arms import arms_of
from asyncgrpo.ablation.findings.cells import cells_of, grid
from asyncgrpo.ablation.findings.expectations import Verdict, judge
from asyncgrpo.ablation.findings.measures import AXES, horizon_of, measure
from asyncgrpo.ablation.tables.recorded import RecordedRun

STALE_CLIP = {"method": "clip", "staleness": "16"}
COLLAPSED = [0.25, 0.8, 0.8, 0.8, 0.8, 0.8, 0.1, 0.1, 0.1, 0.1, 0.1]


def _truth(levels: Mapping[str, str], seed: int) -> Sequence[float]:
    """Clip loses 0.1 of the final score at staleness 16, more at the higher learning rate the other way round; nothing
    else matters. Noise of seeds is shared by all arms, that of a run is small."""
    noise = np.random.default_rng(
        [seed, int(levels["staleness"]), len(levels["method"]), round(1e5 * float(levels["learning_rate"]))]
    )
    end = 0.8 + 0.02 * (seed % 4) + noise.normal(0.0, 0.004)
    if levels["method"] == "clip" and levels["staleness"] == "16":
        end += 0.1 if levels["learning_rate"] == "0.002" else -0.2
    return scores_to(end)


def _verdicts(
    *expectations: Mapping[str, Any], truth: Any = _truth, spoil: Any = None, seeds: int = 8, planned: Any = None
) -> list[Verdict]:
    study = study_of(expectations=[{"name": str(place), **one} for place, one in enumerate(expectations)], seeds=seeds)
    runs: list[RecordedRun] = runs_of(study, truth)
    if spoil is not None:
        runs = [made for run in runs if (made := spoil(run)) is not None]
    horizons = {axis: horizon_of(runs, axis) for axis in AXES}
    cells = grid(cells_of(runs, {run.run: measure(run, horizons, study.collapse) for run in runs}))
    return judge(cells, study, "steps", planned or [arm.levels for arm in grid(arms_of(study))])


def _outcome(*expectations: Mapping[str, Any], **more: Any) -> str:
    return _verdicts(*expectations, **more)[0].outcome


def _pair(expect: str, left: Mapping[str, str], right: Mapping[str, str], measure: str = "final") -> dict[str, Any]:
    return {"measure": measure, "left": left, "right": right, "expect": expect}


AT_LOW = {**STALE_CLIP, "learning_rate": "0.0003"}
FRESH = {"staleness": "0"}


def test_an_effect_is_found_with_its_size():
    (verdict,) = _verdicts(_pair("less", AT_LOW, FRESH))
    assert verdict.outcome == "met"
    (part,) = verdict.parts
    assert part.found is not None and part.found.mean == pytest.approx(-0.2, abs=0.01)
    assert (part.found.n, part.pairs) == (8, 1)


def test_the_contrary_is_not_met():
    assert _outcome(_pair("greater", AT_LOW, FRESH)) == "not met"


def test_an_effect_shown_to_be_smaller_than_the_margin_is_not_met():
    (verdict,) = _verdicts(_pair("less", {"method": "decoupled", "staleness": "16"}, FRESH))
    assert verdict.outcome == "not met"
    assert "smaller than the margin" in verdict.reasons[-1]


def test_arms_alike_are_equivalent_and_arms_apart_are_not():
    alike = _pair("equivalent", {"method": "decoupled", "staleness": "16"}, FRESH)
    assert _outcome(alike) == "met"
    assert _outcome(_pair("equivalent", AT_LOW, FRESH)) == "not met"


def test_what_is_noise_is_undecided():
    def noisy(levels: Mapping[str, str], seed: int) -> Sequence[float]:
        return scores_to(0.6 + 0.2 * np.random.default_rng([seed, len(str(levels))]).normal())

    decoupled = {"method": "decoupled", "staleness": "16"}
    assert _outcome(_pair("greater", decoupled, FRESH), truth=noisy) == "undecided"
    assert _outcome(_pair("equivalent", decoupled, FRESH), truth=noisy) == "undecided"


def test_factors_that_neither_side_names_are_matched_and_averaged():
    (verdict,) = _verdicts(_pair("less", STALE_CLIP, FRESH))
    (part,) = verdict.parts
    assert part.pairs == 2
    assert part.found is not None and part.found.mean == pytest.approx((0.1 - 0.2) / 2, abs=0.01)


def test_an_order_that_inverts_between_learning_rates():
    order = [
        [{**STALE_CLIP, "learning_rate": "0.0003"}, {"method": "decoupled"}],
        [{**STALE_CLIP, "learning_rate": "0.002"}, {"method": "decoupled"}],
    ]
    assert _outcome({"measure": "final", "order": order, "expect": "inverted"}) == "met"
    assert _outcome({"measure": "final", "order": order, "expect": "same order"}) == "not met"
    kept = [order[0], [{**STALE_CLIP, "learning_rate": "0.0003"}, {"staleness": "0"}]]
    assert _outcome({"measure": "final", "order": kept, "expect": "same order"}) == "met"
    fresh = [order[0], [{"method": "clip", "staleness": "0", "learning_rate": "0.002"}, {"method": "decoupled"}]]
    assert _outcome({"measure": "final", "order": fresh, "expect": "inverted"}) == "undecided"


def _some_collapse(levels: Mapping[str, str], seed: int) -> Sequence[float]:
    return COLLAPSED if levels == {**STALE_CLIP, "learning_rate": "0.002"} and seed < 5 else _truth(levels, seed)


@pytest.mark.parametrize(
    ("expect", "value", "outcome"), [("at least", 5, "met"), ("at least", 6, "not met"), ("at most", 4, "not met")]
)
def test_collapses_are_counted(expect: str, value: float, outcome: str):
    (verdict,) = _verdicts(
        {"measure": "collapses", "arm": STALE_CLIP, "expect": expect, "value": value}, truth=_some_collapse
    )
    assert (verdict.outcome, verdict.count, verdict.of) == (outcome, 5, 16)


def test_while_failed_runs_could_change_a_count_it_is_undecided():
    def fail(run: RecordedRun) -> RecordedRun:
        return replace(run, status="failed") if run.seed == 7 else run

    six = {"measure": "collapses", "arm": AT_LOW | {"learning_rate": "0.002"}, "expect": "at least", "value": 6}
    (verdict,) = _verdicts(six, truth=_some_collapse, spoil=fail)
    assert (verdict.outcome, verdict.count) == ("undecided", 5)
    assert "of 1 of the runs it is not known" in verdict.reasons[0]


def test_while_planned_runs_could_change_a_count_it_is_undecided():
    def without_last(run: RecordedRun) -> RecordedRun | None:
        return None if run.seed == 7 else run

    arm = AT_LOW | {"learning_rate": "0.002"}
    six = {"measure": "collapses", "arm": arm, "expect": "at least", "value": 6}
    (verdict,) = _verdicts(six, truth=_some_collapse, spoil=without_last)
    assert (verdict.outcome, verdict.count, verdict.of) == ("undecided", 5, 7)
    assert verdict.reasons == ("1 of the planned runs are still to run",)
    (lost,) = _verdicts({**six, "value": 7}, truth=_some_collapse, spoil=without_last)
    assert lost.outcome == "not met"


def test_a_failed_run_is_in_no_measure():
    def fail(run: RecordedRun) -> RecordedRun:
        gone = {**run.columns, "gradient_norm": np.full(len(run.column("step")), 1.0 + run.seed)}
        return replace(run, columns=gone, status="failed" if run.seed == 7 else "finished")

    arm = {"method": "clip", "staleness": "0", "learning_rate": "0.0003"}
    for name in ("collapses", "best", "start", "gradient_norm"):
        (verdict,) = _verdicts(_pair("less", arm, {"staleness": "16"}, measure=name), spoil=fail)
        assert verdict.parts[0].left_out == (7,), name


def test_a_failed_run_takes_its_seed_out_of_the_pairs():
    def fail(run: RecordedRun) -> RecordedRun:
        return replace(run, status="failed") if run.seed == 3 and run.factors["staleness"] == "0" else run

    (verdict,) = _verdicts(_pair("less", AT_LOW, FRESH), spoil=fail)
    (part,) = verdict.parts
    assert part.left_out == (3,) and part.found is not None and part.found.n == 7
    assert verdict.outcome == "met"


def test_a_mean_against_a_bound():
    decoupled = {"method": "decoupled", "staleness": "16"}
    assert _outcome({"measure": "final", "arm": decoupled, "expect": "at least", "value": 0.75}) == "met"
    assert _outcome({"measure": "final", "arm": decoupled, "expect": "at most", "value": 0.75}) == "not met"
    assert _outcome({"measure": "final", "arm": decoupled, "expect": "at least", "value": 0.83}) == "undecided"


def test_all_tests_of_a_study_are_one_family():
    one = _pair("less", AT_LOW, FRESH)
    alone = _verdicts(one)[0].parts[0]
    among = _verdicts(one, _pair("greater", STALE_CLIP, FRESH), _pair("less", STALE_CLIP, {"method": "decoupled"}))
    assert alone.p is not None and alone.p_holm == pytest.approx(2 * alone.p)  # the contrary is a test too
    assert among[0].parts[0].p_holm > 2 * alone.p


def test_one_seed_decides_nothing():
    (verdict,) = _verdicts(_pair("less", AT_LOW, FRESH), seeds=1)
    assert verdict.outcome == "undecided" and verdict.reasons == ("one seed: no interval",)


def test_the_margin_is_a_size_of_scores_alone():
    def slower(run: RecordedRun) -> RecordedRun:
        seconds = 1.0 + (0.001 * (-1) ** run.seed if run.factors["staleness"] == "16" else 0.0)
        return replace(run, columns={**run.columns, "step_seconds": np.full(len(run.column("step")), seconds)})

    decoupled = {"method": "decoupled", "staleness": "16"}
    assert _outcome(_pair("less", decoupled, FRESH, measure="step_seconds"), spoil=slower) == "undecided"


def test_a_measure_that_no_run_has_is_undecided():
    (verdict,) = _verdicts(_pair("less", AT_LOW, FRESH, measure="gradient_norm"))
    assert verdict.outcome == "undecided"
    assert "no seed has both" in verdict.reasons[0]
