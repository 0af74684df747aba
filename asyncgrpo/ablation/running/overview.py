"""What a study would do, for `--dry-run`: arms, runs, what each takes, what is there already. Nothing is started."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any

from asyncgrpo.ablation.design.arms import Run
from asyncgrpo.ablation.design.study import FEWEST_SEEDS, Study
from asyncgrpo.ablation.running.conduct import Planned
from asyncgrpo.ablation.running.cost import Cost, Costs, total
from asyncgrpo.ablation.tables.folder import StudyFolder
from asyncgrpo.observe.progress import format_duration

UNSAID = "?"


def lines(planned: Planned, folder: StudyFolder, parallel: int, *, retry: bool = False) -> Iterator[str]:
    """Of text, for people. retry: runs that failed are done again."""
    study, runs = planned.study, [*planned.tuning, *planned.runs]
    costs = Costs(folder, runs)
    yield f"{study.study.name}: {study.study.question}"
    yield (
        f"kind {study.kind} (staleness: {planned.runs[0].staleness_kind}); budget {study.budget.amount:g} "
        f"{study.budget.axis}, evaluated every {study.evaluate_every} steps; {len(planned.arms)} arms x "
        f"{len(study.seeds)} seeds {list(study.seeds)}; {len(study.expectations)} expectations"
    )
    for remark in remarks(study):
        yield f"  note: {remark}"
    yield ""
    table = [("arm", "role", "per run", "runs", "there", "cached")]
    sources: dict[str, None] = {}
    for arm in dict.fromkeys(run.arm for run in planned.runs):
        for role, own in _by_role(runs, arm):
            cost, there, cached = costs.of(own[0]), _there(own, folder, retry), _cached(own, folder, retry)
            sources[cost.source] = None
            table.append((arm, role, _duration(cost), str(len(own)), str(there), str(cached)))
    widths = [max(len(row[column]) for row in table) for column in range(len(table[0]))]
    for row in table:
        yield "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
    yield ""
    for source in sources:
        yield f"cost per run: {source}"
    if planned.chosen is None and study.tune is not None:
        yield f"tuning chooses {study.tune.key} first; which of the other runs are there can be said after it"
    yield _sum(runs, folder, costs, parallel, retry)
    yield f"folder {folder.path}"


def as_json(planned: Planned, folder: StudyFolder, parallel: int, *, retry: bool = False) -> dict[str, Any]:
    """The same for programs."""
    runs = [*planned.tuning, *planned.runs]
    costs = Costs(folder, runs)
    seconds, left = total(folder, runs, costs, parallel, retry=retry)
    each = {run.arm: costs.of(run) for run in runs}
    return {
        "folder": str(folder.path),
        "arms": [
            {"arm": arm.name, "role": arm.role, "seconds": each[arm.name].seconds, "source": each[arm.name].source}
            for arm in planned.arms
        ],
        "runs": [
            {
                "run": run.key,
                "arm": run.arm,
                "role": run.role,
                "seed": run.seed,
                "there": _there([run], folder, retry) == 1,
            }
            for run in runs
        ],
        "runs_left": left,
        "seconds_left": seconds,
        "remarks": list(remarks(planned.study)),
    }


def remarks(study: Study) -> Iterator[str]:
    """What a reader of the report would hold against the study."""
    if len(study.seeds) < FEWEST_SEEDS:
        yield f"{len(study.seeds)} seeds are few to tell arms apart; {FEWEST_SEEDS} or more are usual"
    without = {
        "baseline": "differences have nothing to be taken from",
        "aa": "how far two runs of one arm differ stays unknown",
        "positive": "a task on which nothing can collapse shows nothing",
    }
    for control, why in without.items():
        if getattr(study.controls, control) is None:
            yield f"no controls.{control}: {why}"
    if not study.expectations:
        yield "no expectations: whatever comes out will look expected"


def _by_role(runs: Sequence[Run], arm: str) -> Iterator[tuple[str, list[Run]]]:
    own = [run for run in runs if run.arm == arm]
    for role in Counter(run.role for run in own):
        yield role, [run for run in own if run.role == role]


def _sum(runs: Sequence[Run], folder: StudyFolder, costs: Costs, parallel: int, retry: bool) -> str:
    seconds, left = total(folder, runs, costs, parallel, retry=retry)
    at_once = f" with {parallel} at once" if parallel > 1 else ""
    takes = "unknown time" if seconds is None else f"about {format_duration(seconds)}{at_once}"
    there = _there(runs, folder, retry)
    failed = sum((row := folder.row(run)) is not None and row["status"] == "failed" for run in runs)
    kept = f" ({failed} failed, which is their result; --retry does them again)" if failed and not retry else ""
    cached = _cached(runs, folder, retry)
    rest = f"{left} to do, which takes {takes}" if left else "nothing to do"
    return f"{len(runs)} runs: {there} there{kept}, {cached} in the cache, {rest}"


def _there(runs: Sequence[Run], folder: StudyFolder, retry: bool) -> int:
    return sum(folder.kept(run, retry=retry) is not None for run in runs)


def _cached(runs: Sequence[Run], folder: StudyFolder, retry: bool) -> int:
    return sum(folder.kept(run, retry=retry) is None and folder.cached(run) for run in runs)


def _duration(cost: Cost) -> str:
    return UNSAID if cost.seconds is None else format_duration(cost.seconds)
