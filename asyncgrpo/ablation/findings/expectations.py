"""What was expected beforehand against what came out: met, not met, or undecided. Pure.

All tests of a study's expectations are one family, corrected together (Holm). An expectation is *met* when its test
says so at 5 % after that; *not met* when the data say the contrary: a difference the other way by the same standard, or
one shown to be smaller or, of equivalence, larger than the margin, by tests that are of the family too. What is
neither is undecided, which more seeds may change.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from asyncgrpo.ablation.design.study import Expectation, Study
from asyncgrpo.ablation.findings.cells import Cell, matched, paired, selected, value_of
from asyncgrpo.ablation.findings.statistics import Difference, clopper_pearson, difference, holm, sign_test

__all__ = ["LEVEL", "Part", "Verdict", "judge", "said_selector"]

LEVEL = 0.05
SCORES = ("auc", "final", "best", "start")
"""What the margin of equivalence is a size of; a difference of seconds is not called small by it."""
MET, NOT_MET, UNDECIDED = "met", "not met", "undecided"


@dataclass(frozen=True)
class Part:
    """One test of an expectation."""

    left: str
    right: str
    """Arms, or the bound, in words."""
    test: str
    found: Difference | None
    p: float | None
    """As its test gives it."""
    pairs: int = 1
    """Of arms, one for every level that is matched; the difference is their mean."""
    left_out: tuple[int, ...] = ()
    """Seeds that miss a run of them."""
    p_holm: float | None = None
    p_contrary: float | None = None
    """Of the contrary, where another test says so than that of the expectation."""
    p_contrary_holm: float | None = None


@dataclass(frozen=True)
class Verdict:
    name: str
    measure: str
    axis: str | None
    expect: str
    outcome: str
    parts: tuple[Part, ...]
    value: float | None = None
    """The bound, where there is one."""
    count: int | None = None
    """Of a counted measure: how many. A count, without a test."""
    of: int | None = None
    share: tuple[float, float] | None = None
    """95 % interval of the share (Clopper-Pearson)."""
    reasons: tuple[str, ...] = field(default=())
    """Why it is undecided or cannot be told, in words."""


def judge(cells: Sequence[Cell], study: Study, axis: str, planned: Sequence[Mapping[str, str]] = ()) -> list[Verdict]:
    """Of every expectation, in their order. cells: the grid; planned: levels of its arms, run or not; axis: the
    budget's."""
    expectations, margin = study.expectations, study.equivalence_margin
    tests = [_parts(cells, expectation, axis, margin) for expectation in expectations]
    adjusted = iter(holm([p for parts in tests for part in parts for p in (part.p, part.p_contrary)]))
    corrected = [
        tuple(replace(part, p_holm=next(adjusted), p_contrary_holm=next(adjusted)) for part in parts) for parts in tests
    ]
    return [
        _verdict(
            expectation, parts, axis, margin, None if parts else _counted(cells, expectation, study.seeds, planned)
        )
        for expectation, parts in zip(expectations, corrected, strict=True)
    ]


def said_selector(selector: Mapping[str, str]) -> str:
    return ", ".join(f"{factor} {level}" for factor, level in selector.items()) or "all arms"


def _parts(cells: Sequence[Cell], expectation: Expectation, axis: str, margin: float) -> list[Part]:
    of = value_of(expectation.measure, expectation.axis or axis)
    if expectation.order is not None:
        sides = [(pair[0], pair[1]) for pair in expectation.order]
    elif expectation.left is not None and expectation.right is not None:
        sides = [(expectation.left, expectation.right)]
    else:
        return [] if expectation.measure == "collapses" else [_against_bound(cells, expectation, axis, margin)]
    made = []
    for left, right in sides:
        pairs = matched(cells, left, right)
        lefts, rights, left_out = paired(pairs, of)
        equivalent = expectation.expect == "equivalent"
        is_score, counted = expectation.measure in SCORES, expectation.measure == "collapses"
        size = margin if is_score or equivalent else 0.0
        found = sign_test(lefts, rights) if counted else difference(lefts, rights, size)
        by_size = is_score and expectation.expect in ("greater", "less")
        contrary = found.p_beyond if equivalent else found.p_equivalent if by_size else None
        test = "exact McNemar" if len(pairs) == 1 else "sign test"
        made.append(
            Part(
                left=said_selector(left),
                right=said_selector(right),
                test=test if counted else f"TOST, margin {margin:g}" if equivalent else "paired t",
                p_contrary=contrary,
                found=found,
                p=found.p_equivalent if equivalent else found.p,
                pairs=len(pairs),
                left_out=tuple(left_out),
            )
        )
    return made


def _against_bound(cells: Sequence[Cell], expectation: Expectation, axis: str, margin: float) -> Part:
    arm, value = expectation.arm or {}, expectation.value or 0.0
    of = value_of(expectation.measure, expectation.axis or axis)
    own = selected(cells, arm)
    lefts, _, left_out = paired([(cell, cell) for cell in own], of)
    found = difference(lefts, dict.fromkeys(lefts, value), 0.0)
    return Part(said_selector(arm), f"{value:g}", "one-sample t", found, found.p, len(own), tuple(left_out))


def _verdict(
    expectation: Expectation,
    parts: tuple[Part, ...],
    axis: str,
    margin: float,
    counted: tuple[str, int, int, tuple[str, ...]] | None,
) -> Verdict:
    against = None if expectation.measure != "auc" else expectation.axis or axis
    if counted is not None:
        outcome, count, of, reasons = counted
        return Verdict(
            expectation.name,
            expectation.measure,
            None,
            expectation.expect,
            outcome,
            (),
            expectation.value,
            count,
            of,
            clopper_pearson(count, of),
            reasons,
        )
    outcome = _outcome(expectation.expect, parts, is_score=expectation.measure in SCORES)
    return Verdict(
        expectation.name,
        expectation.measure,
        against,
        expectation.expect,
        outcome,
        parts,
        expectation.value,
        reasons=tuple(_reasons(expectation, parts, outcome)),
    )


def _counted(
    cells: Sequence[Cell], expectation: Expectation, seeds: Sequence[int], planned: Sequence[Mapping[str, str]]
) -> tuple[str, int, int, tuple[str, ...]]:
    """How many runs collapsed, of those known. Ones that failed or are still to run might: while they can change the
    outcome, it is undecided."""
    arm, bound = expectation.arm or {}, expectation.value or 0.0
    own = selected(cells, arm)
    count, of = sum(len(cell.collapsed) for cell in own), sum(len(cell.known) for cell in own)
    lost_runs = sum(len(cell.runs) - len(cell.known) for cell in own)
    run = {(tuple(sorted(cell.factors.items())), seed) for cell in own for seed in cell.runs}
    wanted = [levels for levels in planned if all(levels.get(factor) == level for factor, level in arm.items())]
    to_run = sum((tuple(sorted(levels.items())), seed) not in run for levels in wanted for seed in seeds)
    unknown = lost_runs + to_run
    reasons = []
    if lost_runs:
        reasons.append(
            f"of {lost_runs} of the runs it is not known whether they collapse: they failed, or scores are under 0"
        )
    if to_run:
        reasons.append(f"{to_run} of the planned runs are still to run")
    if not of:
        return UNDECIDED, 0, 0, tuple(reasons or ["no run of these arms"])
    if expectation.expect == "at least":
        met, lost = count >= bound, count + unknown < bound
    else:
        met, lost = count + unknown <= bound, count > bound
    return MET if met else NOT_MET if lost else UNDECIDED, count, of, tuple(reasons)


def _outcome(expect: str, parts: Sequence[Part], *, is_score: bool) -> str:
    if expect in ("inverted", "same order"):
        signs = [_sign(part) for part in parts]
        inverted = 1 in signs and -1 in signs
        same = 0 not in signs and not inverted
        wanted, contrary = (inverted, same) if expect == "inverted" else (same, inverted)
        return MET if wanted else NOT_MET if contrary else UNDECIDED
    (part,) = parts
    found = part.found
    if found is None or found.mean is None:
        return UNDECIDED
    if expect == "equivalent":
        beyond = _under(part.p_contrary_holm)
        return MET if found.identical or _under(part.p_holm) else NOT_MET if beyond else UNDECIDED
    sign = 1 if expect in ("greater", "at least") else -1
    if _sign(part) == sign:
        return MET
    too_small = is_score and expect in ("greater", "less") and (found.identical or _under(part.p_contrary_holm))
    return NOT_MET if _sign(part) == -sign or too_small else UNDECIDED


def _sign(part: Part) -> int:
    """1 or -1 of a difference that is shown, by its corrected test and by its interval; else 0."""
    found = part.found
    return found.direction if found is not None and _under(part.p_holm) else 0


def _under(p: float | None) -> bool:
    return p is not None and not math.isnan(p) and p < LEVEL


def _reasons(expectation: Expectation, parts: Sequence[Part], outcome: str) -> list[str]:
    said = []
    for part in parts:
        if not part.pairs:
            said.append(f"no arms to compare: {part.left} with {part.right}")
        elif part.found is not None and part.found.note:
            said.append(part.found.note)
        if part.left_out and part.pairs:
            seeds = ", ".join(map(str, part.left_out))
            said.append(f"without seed{'s' if len(part.left_out) > 1 else ''} {seeds}: a run failed or has no value")
    if outcome == NOT_MET and expectation.expect in ("greater", "less") and _sign(parts[0]) == 0:
        said.append("the difference is shown to be smaller than the margin")
    return said
