"""The sections on where numbers come from: failures, settings, packages, every run with its command, the raw files."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from asyncgrpo.ablation.report.html import details, num, table, text

__all__ = ["environment", "failures", "raw", "runs", "settings"]

Results = Mapping[str, Any]


def failures(results: Results) -> str:
    rows = [
        [
            text(row["arm"]),
            num(f"failures.{place}.seed", row["seed"], "d"),
            num(f"failures.{place}.step", row["step"], "d"),
            text(row["status"].replace("_", " ") + (", collapsed" if row["collapsed"] else "")),
            text(row["error"]),
        ]
        for place, row in enumerate(results["failures"])
    ]
    if not rows:
        return "<p>Every run finished.</p>"
    note = (
        "<p class='dim'>Those that failed are in no figure. Those that diverged collapsed at their last step, with a "
        "score of 0 from there on. Those that a guard stopped keep their last score; they count as collapsed where the "
        "rule held by then, or the guard is reward_collapse.</p>"
    )
    return table("Runs that did not finish", ["arm", "seed", "last step", "end", "error"], rows, "words") + note


def settings(results: Results) -> str:
    found = results["settings"]
    rows = [[text(arm), *(f"<code>{text(value)}</code>" for value in values)] for arm, values in found["arms"].items()]
    if not found["keys"]:
        return "<p>Runs recorded no setting in which arms differ.</p>"
    return details(
        "Settings in which arms differ", table("Settings in which arms differ", ["arm", *found["keys"]], rows)
    )


def environment(results: Results) -> str:
    parts = []
    for kind, caption in (("versions", "Packages"), ("machine", "Machine")):
        found = results["environment"][kind]
        rows = [[text(name), "; ".join(map(text, values)) + _warned(values)] for name, values in found.items()]
        if rows:
            parts.append(details(caption, table(caption, ["name", "value"], rows, "words")))
    chosen = results["tuning"]["chosen"]
    if chosen:
        rows = [[text(arm), text(value)] for arm, value in chosen.items()]
        caption = f"Values tuned on other seeds, in {results['tuning']['runs']} runs"
        parts.append(details(caption, table(caption, ["arm", "value"], rows)))
    return "\n".join(parts)


def runs(results: Results) -> str:
    axis = results["study"]["axis"]
    rows = []
    for place, row in enumerate(results["runs"]):
        where = f"runs.{place}"
        log = f'<a href="runs/{text(row["run"])}/log">{text(row["run"])}</a>'
        rows.append(
            [
                text(row["arm"]),
                num(f"{where}.seed", row["seed"], "d"),
                text(row["status"]),
                *(num(f"{where}.{name}", row[name]) for name in ("start", "final", f"auc/{axis}")),
                num(f"{where}.collapse_step", row["collapse_step"], "d"),
                num(f"{where}.seconds", row["seconds"], ".0f"),
                f"<code>{text(row['command'])}</code><small>{log}</small>",
            ]
        )
    head = ["arm", "seed", "status", "start", "final", "area", "collapsed at", "seconds", "command that runs it again"]
    return details(f"All {len(rows)} runs, each with the command that runs it again", table("Every run", head, rows))


def raw(results: Results) -> str:
    names = {
        "runs.parquet": "every run: settings, packages, command",
        "steps.parquet": "every step of every run",
        "results.json": "every figure of this page; hover one to see its place there",
        "results.parquet": "what every run came to",
        "plan.json": "the study and its expectations, as they were before the first run",
    }
    items = "".join(f'<li><a href="{name}"><code>{name}</code></a> {text(said)}</li>' for name, said in names.items())
    check = (
        "<p><code>asyncgrpo ablate STUDY.yaml --only check</code> computes every figure of this page again from the "
        "tables, and names those that differ.</p>"
    )
    return f"<ul>{items}</ul>{check}"


def _warned(values: list[str]) -> str:
    return " <strong>(runs differ)</strong>" if len(values) > 1 else ""
