"""evaluation.jsonl: a line per evaluation; and what a user is told of them: a line each, and before against after."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from asyncgrpo.errors import RunFolderError
from asyncgrpo.observe.files import write_error
from asyncgrpo.observe.metrics import EvaluationRecord, labels_of

__all__ = [
    "append_evaluation",
    "change_of_reward",
    "first_and_last",
    "format_evaluation",
    "format_table",
    "kept_length",
    "read_evaluations",
    "to_json",
]

PROTOCOL = ("samples_per_prompt", "temperature", "max_completion_length", "eval_set")
"""Fields that two evaluations must have in common to be compared."""
NOISE = 2.0
"""Standard errors below which a change is no change."""


def append_evaluation(path: Path, record: EvaluationRecord) -> None:
    """Add one line, on its way to the disk at return. Raises RunFolderError."""
    try:
        with open(path, "a", encoding="utf-8") as file:
            file.write(json.dumps(to_json(record), allow_nan=False) + "\n")
    except OSError as error:
        raise write_error(path, error) from error


def to_json(record: EvaluationRecord) -> dict[str, Any]:
    """What is no finite number becomes null."""
    return {name: _finite(value) for name, value in record.items()}


def read_evaluations(path: Path) -> list[dict[str, Any]]:
    """Records, oldest first; none if there is no file. A last line cut short by a kill is left out.

    Raises RunFolderError for any other line that is not JSON.
    """
    if not path.exists():
        return []
    lines = path.read_bytes().splitlines()
    records = []
    for number, line in enumerate(lines, start=1):
        try:
            records.append(_record(path, number, line))
        except RunFolderError:
            if number < len(lines):  # the last may be half of one
                raise
    return records


def _record(path: Path, number: int, line: bytes) -> dict[str, Any]:
    try:
        record: dict[str, Any] = json.loads(line)
        record["step"]
    except (ValueError, KeyError, TypeError) as error:
        raise RunFolderError(f"{path}, line {number}, is no evaluation's record ({error}); remove the line") from error
    return record


def kept_length(path: Path, step: int) -> int:
    """Bytes of evaluation.jsonl that stay when a run goes back to `step`: evaluations of policies up to that one.

    One that ended after the checkpoint was saved stays if it is of a policy that the checkpoint has: the same policy is
    not evaluated twice.
    """
    length = 0
    if path.exists():
        for number, line in enumerate(path.read_bytes().splitlines(keepends=True), start=1):
            if not line.endswith(b"\n"):
                break
            record = _record(path, number, line)
            if max(record["step"], record.get("version_max") or 0) > step:
                break
            length += len(line)
    return length


def format_evaluation(record: EvaluationRecord) -> str:
    """One evaluation on one line.

    Example: `evaluation of step 4 (version 4): mean@4 +0.512 ±0.031  pass@4 0.610 ±0.050  tokens 120  truncated 3%`
    """
    k = record["samples_per_prompt"]
    parts = [f"mean@{k} {_with_error(record, 'reward_mean', 'reward_standard_error', '+.3f')}"]
    parts += [f"pass@{of} {_pass(record, of)}" for of in dict.fromkeys(("1", str(k)))]
    parts += [f"tokens {record['completion_tokens_mean']:.1f}", f"truncated {record['truncated_ratio']:.0%}"]
    line = f"evaluation of step {record['step']} ({_versions(record)}): {'  '.join(parts)}  {record['seconds']:.1f} s"
    if losses := _losses(record):
        line += f"; left out: {losses}"
    return line


def first_and_last(records: Sequence[EvaluationRecord]) -> list[EvaluationRecord]:
    """The first evaluation that succeeded and the last; one, if there are no two that can be compared; or none."""
    good = [record for record in records if record["error"] is None]
    if not good:
        return []
    last = good[-1]
    alike = [record for record in good if all(record[name] == last[name] for name in PROTOCOL)]
    return [last] if alike[0]["step"] == last["step"] else [alike[0], last]


def change_of_reward(before: EvaluationRecord, after: EvaluationRecord) -> tuple[float, float]:
    """Mean change of a prompt's reward and its standard error, over prompts that have one both times. The prompts are
    the same, so how they differ from each other is no error of the change. NaN with fewer than two."""
    pairs = zip(before["prompt_rewards"], after["prompt_rewards"], strict=True)
    changes = [now - then for then, now in pairs if then is not None and now is not None]
    if len(changes) < 2:
        return math.nan, math.nan
    mean = math.fsum(changes) / len(changes)
    variance = math.fsum((change - mean) ** 2 for change in changes) / (len(changes) - 1)
    return mean, math.sqrt(variance / len(changes))


def format_table(records: Sequence[EvaluationRecord], titles: Sequence[str] | None = None) -> list[str]:
    """Lines of Markdown: one or two evaluations side by side, and what can be said of the change. titles: of the
    columns; absent, steps and versions."""
    titles = titles or [f"step {each['step']}, {_versions(each)}" for each in records]
    record, k = records[-1], records[-1]["samples_per_prompt"]
    how = "greedy" if record["temperature"] == 0.0 else f"temperature {record['temperature']:g}"
    samples = "1 sample" if k == 1 else f"{k} samples"
    prompts = "1 prompt" if record["prompts"] == 1 else f"{record['prompts']} prompts"
    lines = [f"Held-out evaluation, {prompts} x {samples}, {how} (± standard errors):", ""]
    rows = [["", *titles], ["---"] * (len(records) + 1)]
    rows.append([f"mean@{k} reward", *(_with_error(each, "reward_mean", "reward_standard_error") for each in records)])
    functions = labels_of(record, "reward_mean")
    if len(functions) > 1:
        rows += [[f"mean@{k} {name}", *(_function(each, name) for each in records)] for name in functions]
    rows += [[f"pass@{of}", *(_pass(each, of) for each in records)] for of in labels_of(record, "pass_ratio")]
    rows.append(["tokens", *(f"{each['completion_tokens_mean']:.1f}" for each in records)])
    rows.append(["truncated", *(f"{each['truncated_ratio']:.0%}" for each in records)])
    if any(_losses(each) for each in records):
        rows.append(["left out", *(_losses(each) or "nothing" for each in records)])
    widths = [max(len(row[column]) for row in rows) for column in range(len(records) + 1)]
    lines += [f"| {' | '.join(cell.ljust(width) for cell, width in zip(row, widths, strict=True))} |" for row in rows]
    return lines if len(records) < 2 else [*lines, "", verdict(*records)]


def verdict(before: EvaluationRecord, after: EvaluationRecord) -> str:
    """What may be said of the mean reward: nothing, if the change is within noise."""
    change, error = change_of_reward(before, after)
    if math.isnan(error):
        return "Whether the held-out reward changed cannot be told from fewer than two prompts."
    said = f"{change:+.3f} ± {error:.3f} per prompt"
    if abs(change) <= NOISE * error or change == 0.0:
        return f"The change of the held-out reward, {said}, is within noise: less than {NOISE:g} standard errors."
    return f"The held-out reward {'rose' if change > 0 else 'fell'}: {said}."


def _versions(record: EvaluationRecord) -> str:
    first, last, mixed = record["version_min"], record["version_max"], record["samples_mixed_version"]
    if first == last:
        return "no tokens" if first is None else f"version {first}"
    return f"versions {first} to {last}" + (f", {mixed} samples of several" if mixed else "")


def _losses(record: EvaluationRecord) -> str:
    counts = {
        "samples failed": record["samples_failed"],
        "prompts unscored": record["prompts_unscored"],
        "samples unscored": record["samples_unscored"],
    }
    return ", ".join(f"{what}: {count}" for what, count in counts.items() if count)


def _function(record: EvaluationRecord, name: str) -> str:
    return _with_error(record, f"reward_mean/{name}", f"reward_standard_error/{name}")


def _pass(record: EvaluationRecord, k: str) -> str:
    return _with_error(record, f"pass_ratio/{k}", f"pass_standard_error/{k}", ".3f")


def _with_error(record: Mapping[str, Any], mean: str, error: str, form: str = "+.3f") -> str:
    """A dash for what there is no number for."""
    value, of = _finite(record.get(mean)), _finite(record.get(error))
    return "-" if value is None else format(value, form) + ("" if of is None else f" ±{of:.3f}")


def _finite(value: Any) -> Any:
    return None if isinstance(value, float) and not math.isfinite(value) else value
