"""The sections of the report that are tables and words."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from asyncgrpo.ablation.report.figures import AXIS_LABELS
from asyncgrpo.ablation.report.html import details, estimate, num, p_value, pill, table, text

__all__ = ["arms", "by_token", "controls", "differences", "dropped", "expectations", "interaction", "overlap", "pooled"]

Results = Mapping[str, Any]
OUTCOMES = {"met": "good", "not met": "bad", "undecided": "warn"}
FINDINGS = {"lower": "bad", "higher": "good", "equivalent": "good", "not told apart": "plain"}


def expectations(results: Results) -> str:
    rows = []
    for place, row in enumerate(results["expectations"]["rows"]):
        where = f"expectations.rows.{place}"
        parts = [_part(f"{where}.parts.{index}", part) for index, part in enumerate(row["parts"])]
        if not parts:
            parts = [
                f"{num(f'{where}.count', row['count'], 'd')} of {num(f'{where}.of', row['of'], 'd')} runs collapsed"
                + _share(f"{where}.share", row["share"])
            ]
        against = f" against {AXIS_LABELS[row['axis']]}" if row["axis"] else ""
        bound = f" {row['value']:g}" if row["value"] is not None else ""
        reasons = "".join(f'<small class="reason">{text(reason)}</small>' for reason in row["reasons"])
        rows.append(
            [
                f"{text(row['name'])}<small>{text(row['measure'] + against)}: {text(row['expect'] + bound)}</small>",
                pill(OUTCOMES[row["outcome"]], row["outcome"]),
                "<br>".join(parts) + reasons,
            ]
        )
    if not rows:
        return "<p>The study expected nothing beforehand: what follows is exploration.</p>"
    found = results["expectations"]
    rule = (
        "<p class='dim'>Written down before the first run was over, at "
        f"{text(found['written_at'])}; digest <code>{text(found['digest'][:16])}</code>. All tests of this table are "
        "one family, corrected together (Holm); p is after that. Met: by the test at 5 %. Not met: the data say the "
        "contrary. Undecided: neither, which more seeds may change.</p>"
    )
    return (
        table("Expectations against what came out", ["expectation", "outcome", "what was found"], rows, "words") + rule
    )


def controls(results: Results) -> str:
    twin, control, scores = (results["controls"][name] for name in ("aa", "positive", "saturation"))
    cards = []
    if twin is not None:
        cards.append(
            _card(
                "A/A: noise",
                estimate("controls.aa.auc", twin["auc"]),
                f"{_label(results, twin['arm'])}, run twice: area",
            )
        )
    if control is not None:
        collapsed = num("controls.positive.collapsed", control["collapsed"], "d")
        of = num("controls.positive.of", control["of"], "d")
        cards.append(
            _card(
                "Positive control",
                f"{collapsed} of {of} collapsed",
                f"{_label(results, control['arm'])}: has to collapse",
            )
        )
    start = num("controls.saturation.start", scores["start"], ".2f")
    cards.append(_card("Before training", start, f"mean score; saturated from {scores['start_bound']:g} on"))
    lowest = num("controls.saturation.lowest_final", scores["lowest_final"], ".2f")
    cards.append(_card("Lowest final", lowest, f"of the arms; saturated if {scores['end_bound']:g} or more"))
    for axis, found in results["horizons"].items():
        if axis != "steps":
            said = num(f"horizons.{axis}.horizon", found["horizon"], ".4g")
            word = (
                "matched" if found["matched"] else f"not matched: runs went up to {found['largest']:.2f} times as far"
            )
            cards.append(_card(f"Compared over {AXIS_LABELS[axis]}", said, word))
    return f'<dl class="tiles">{"".join(cards)}</dl>'


def pooled(results: Results) -> str:
    matched = ", learning rates matched and averaged" if results["layout"]["learning_rate"] else ""
    return _compared(
        results,
        "pooled",
        "Area under the curve less the baseline's" + matched,
        ["method", results["layout"]["staleness"] or "", "difference", "p", "p, equivalent", "finding"],
        lambda row: [text(row["series"]), text(row["staleness"] or "")],
    )


def differences(results: Results) -> str:
    return _compared(
        results,
        "differences",
        "Area under the curve less the baseline's, every arm",
        ["arm", "baseline", "difference", "p", "p, equivalent", "finding"],
        lambda row: [text(_label(results, row["arm"])), text(_label(results, row["against"]))],
    )


def interaction(results: Results) -> str:
    found = results["interaction"]
    if not found["applies"]:
        return ""
    layout = results["layout"]
    rows = []
    for place, rank in enumerate(found["ranks"]):
        order = " \u203a ".join(
            f"{text(one['series'])} {num(f'interaction.ranks.{place}.order.{index}.mean', one['mean'])}"
            for index, one in enumerate(rank["order"])
        )
        rows.append([text(rank["rate"]), text(rank["staleness"] or ""), order])
    head = ["learning rate", layout["staleness"] or "", "methods, best first (mean area)"]
    shown = [_inversion(results, "shown", index, one) for index, one in enumerate(found["shown"])]
    means = [_inversion(results, "means", index, one) for index, one in enumerate(found["means"])]
    said = (
        f"<p>{num('interaction.tests', found['tests'], 'd')} pairs of methods were tested, corrected together (Holm). "
        + (
            f"The order <strong>inverts</strong> with the learning rate:</p><ul>{''.join(shown)}</ul>"
            if shown
            else "No inversion with the learning rate is shown.</p>"
        )
    )
    if means:
        said += details(
            f"{len(means)} inversions in the means alone, by more than the margin", f"<ul>{''.join(means)}</ul>"
        )
    return said + details("Order of methods at every place", table("Order of methods", head, rows, "words"))


def arms(results: Results) -> str:
    axes = dict.fromkeys([results["study"]["axis"], "tokens", "samples", "seconds"])
    rows = []
    for place, arm in enumerate(results["arms"]):
        where = f"arms.{place}"
        measures = [
            estimate(f"{where}.measures.{name}", arm["measures"][name])
            for name in ("final", *(f"auc/{axis}" for axis in axes))
        ]
        ends = "".join(
            f", {num(f'{where}.{end}', arm[end], 'd')} {said}"
            for end, said in (("failed", "failed"), ("diverged", "diverged"), ("stopped", "stopped by a guard"))
            if arm[end]
        )
        of = num(f"{where}.known", arm["known"], "d")
        collapsed = f"{num(f'{where}.collapsed', arm['collapsed'], 'd')} of {of}{ends}"
        first = num(f"{where}.first_collapse", arm["first_collapse"], "d") if arm["collapsed"] else ""
        role = "" if arm["role"] == "arm" else f"<small>{text(arm['role'])}</small>"
        rows.append([f"{text(arm['label'])}{role}", *measures, collapsed, first])
    head = ["arm", "final score", *(f"area / {axis}" for axis in axes), "collapsed", "first at step"]
    return table("Every arm: mean over seeds and 95 % interval", head, rows)


def by_token(results: Results) -> str:
    rows = [
        [
            text(row["series"]),
            str(row["staleness"]),
            text(row["name"]),
            estimate(f"by_token_staleness.{place}", row, ".4g"),
        ]
        for place, row in enumerate(results["by_token_staleness"])
    ]
    head = ["method", "staleness of the token", "metric", "mean over runs"]
    return details("By the staleness of each token", table("Diagnostics by token", head, rows)) if rows else ""


def dropped(results: Results) -> str:
    found = results["dropped"]
    if not found:
        return "<p>Nothing can be dropped in this kind of study: every sample that was made was trained.</p>"
    note = (
        "<p class='dim'>Groups over the whole run. <code>trained_less_generated/tokens</code> below 0: longer samples "
        "were dropped more often, so training saw shorter ones than the policy writes.</p>"
    )
    return _by_arm("Dropped and reissued, mean over runs", "dropped", found) + note


def overlap(results: Results) -> str:
    found = results["overlap"]
    if not found:
        return "<p>These runs have no engines beside the learner: there is no overlap to gain.</p>"
    note = "<p class='dim'><code>steps_faster</code>: the baseline's seconds per step over the arm's, by pairs.</p>"
    return _by_arm("Overlap of generation and training", "overlap", found) + note


def _by_arm(title: str, where: str, found: Mapping[str, Mapping[str, Any]]) -> str:
    """Figures by arm and name; not every arm has every one."""
    names = list(dict.fromkeys(name for own in found.values() for name in own))
    rows = [
        [text(arm), *(estimate(f"{where}.{arm}.{name}", own[name], ".3g") if name in own else "" for name in names)]
        for arm, own in found.items()
    ]
    return table(title, ["arm", *names], rows)


def _part(where: str, part: Mapping[str, Any]) -> str:
    found = part["found"]
    if found is None or found["mean"] is None:
        return f"{text(part['left'])} less {text(part['right'])}: <span class='none'>no value</span>"
    seeds = num(f"{where}.found.n", found["n"], "d")
    arms = f", mean of {part['pairs']} pairs of arms" if part["pairs"] > 1 else ""
    return (
        f"{text(part['left'])} <em>less</em> {text(part['right'])}: {estimate(f'{where}.found', found)}"
        f"<small>{text(part['test'])}: p {p_value(f'{where}.p_holm', part['p_holm'])}, {seeds} seeds{arms}</small>"
    )


def _share(where: str, share: Sequence[float] | None) -> str:
    if share is None:
        return ""
    low, high = (num(f"{where}.{index}", bound, ".2f") for index, bound in enumerate(share))
    return f"<small>a count, not a test; share [{low}, {high}] (Clopper-Pearson)</small>"


def _label(results: Results, name: str) -> str:
    return next((str(arm["label"]) for arm in results["arms"] if arm["arm"] == name), name)


def _card(name: str, value: str, said: str) -> str:
    return f'<div><dt>{text(name)}</dt><dd>{value}</dd><dd class="what">{text(said)}</dd></div>'


def _compared(results: Results, name: str, caption: str, head: Sequence[str], named: Any) -> str:
    rows = []
    twin = results["controls"]["aa"]
    if twin is not None:
        noise = estimate("controls.aa.auc", twin["auc"])
        first = ["<em>A/A: the same arm twice</em>", text(_label(results, twin["arm"]))]
        ps = [p_value(f"controls.aa.auc.{p}", twin["auc"][p]) for p in ("p", "p_equivalent")]
        rows.append([*first, noise, *ps, pill("bad", "differs") if twin["differs"] else pill("plain", "noise")])
    for place, row in enumerate(results[name]):
        where = f"{name}.{place}"
        left_out = (
            f"<small class='reason'>without seeds {', '.join(map(str, row['left_out']))}</small>"
            if row["left_out"]
            else ""
        )
        rows.append(
            [
                *named(row),
                estimate(where, row) + left_out,
                p_value(f"{where}.p_holm", row["p_holm"]),
                p_value(f"{where}.p_equivalent_holm", row["p_equivalent_holm"]),
                pill(FINDINGS[row["finding"]], row["finding"]),
            ]
        )
    return table(caption, head, rows) if results[name] else "<p>There is no baseline to take differences from.</p>"


def _inversion(results: Results, kind: str, place: int, one: Mapping[str, Any]) -> str:
    where = f"interaction.{kind}.{place}.ends"
    ends = " but ".join(
        f"{num(f'{where}.{index}.mean', end['mean'], '+.3f')} at {text(end['rate'])} "
        f"(p {p_value(f'{where}.{index}.p_holm', end['p_holm'])})"
        for index, end in enumerate(one["ends"])
    )
    level = (
        f" at {text(results['layout']['staleness'])} {text(one['staleness'])}" if one["staleness"] is not None else ""
    )
    return f"<li>{text(one['a'])} less {text(one['b'])}{level}: {ends}</li>"
