"""Sums up a run from what lies in its folder, so that it can be repeated later or elsewhere."""

from __future__ import annotations

import itertools
import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from typing import Any

from asyncgrpo.errors import RunFolderError
from asyncgrpo.observe.evaluations import change_of_reward, first_and_last, format_table, read_evaluations, to_json
from asyncgrpo.observe.examples import Example, example_pairs, held_out_pairs
from asyncgrpo.observe.files import write_text
from asyncgrpo.observe.metrics import labels_of
from asyncgrpo.observe.plot import plot_run
from asyncgrpo.observe.progress import format_duration
from asyncgrpo.observe.recorder import evaluation_file, read_metrics, rollout_file
from asyncgrpo.observe.run_folder import RunFolder
from asyncgrpo.observe.settings_history import told_history
from asyncgrpo.observe.steps import verdict

__all__ = ["Summary", "summarise", "write_summary"]

RUN_ENDED = "run_ended"
"""Reason of a group that had no fate yet when the run stopped."""

Summary = Mapping[str, Any]
Record = Mapping[str, Any]


def write_summary(
    folder: RunFolder,
    target_steps: int | None = None,
    rewards: Sequence[tuple[str, str, float]] = (),
    resume: str = "allow",
) -> str:
    """Write summary.json, summary.md and reward.png; return the text of summary.md.

    rewards: name, source and weight of each function. With fewer than `target_steps` steps the run is called
    interrupted, in both. resume: the `run.resume` that it was started with.

    Raises RunFolderError when the run has no finished step or the folder cannot be read or written.
    """
    records = read_metrics(folder.metrics_file)
    if not records:
        raise RunFolderError(f"{folder.metrics_file} holds no finished step, so there is nothing to sum up")
    evaluations = first_and_last(read_evaluations(folder.evaluation_file))
    summary = {
        **summarise(records),
        **_dropped(folder),
        "target_steps": target_steps or len(records),
        "checkpoint_step": folder.checkpoint_step,
        "settings_changed": [asdict(each) for each in told_history(folder)[0]],
        "rewards": [dict(zip(("name", "source", "weight"), each, strict=True)) for each in rewards],
        "predictions": _predictions(folder),
        **_evaluations(evaluations),
    }
    plot_run(records, folder.reward_plot, f"{folder.path.name}: {_progress(summary)}")
    held_out = ["", *format_table(evaluations)] if evaluations else []
    examples = _held_out_lines(folder, evaluations) or _trained_lines(folder, records)
    text = _text(folder, summary, held_out, examples, folder.how_to_go_on(resume))
    write_text(folder.summary_json, json.dumps(summary, indent=2) + "\n")
    write_text(folder.summary_text, text)
    return text


def _predictions(folder: RunFolder) -> list[Mapping[str, Any]]:
    """Those that were held against what came."""
    if not folder.prediction_file.exists():
        return []
    made: list[Mapping[str, Any]] = json.loads(folder.prediction_file.read_text(encoding="utf-8"))
    return [prediction for prediction in made if "measured" in prediction]


def _dropped(folder: RunFolder) -> dict[str, dict[str, int]]:
    """As the accounting of the whole run has them: step records do not know what was dropped after the last step."""
    if not folder.accounting_file.exists():
        return {}
    fates = json.loads(folder.accounting_file.read_text(encoding="utf-8"))["by_fate"]
    dropped = {fate.partition(":")[2]: tally["groups"] for fate, tally in fates.items() if fate.startswith("dropped:")}
    return {"groups_dropped": dropped}


def summarise(records: Sequence[Record]) -> Summary:
    """Numbers of a whole run from its step records. Rewards are those of its first and last quarter of steps."""
    quarter = math.ceil(len(records) / 4)
    first, last = _reward(records[:quarter]), _reward(records[-quarter:])
    counted = [record for record in records if record["tokens_generated_while_training"] is not None]
    counted = [record for record in counted if record["tokens_generated"] is not None]
    generated = sum(record["tokens_generated"] for record in counted)
    while_training = sum(record["tokens_generated_while_training"] for record in counted)
    counted_seconds = sum(record["step_seconds"] for record in counted)
    trained = sum(record["tokens_trained"] for record in records)
    versions = sum(
        record["staleness_mean"] * record["tokens_trained"] for record in records if record["tokens_trained"]
    )
    seconds = sum(record["step_seconds"] for record in records)
    waiting = sum(record["waiting_seconds"] for record in records) / seconds if seconds else 0.0
    idle = sum(record["generation_idle_seconds"] for record in records) / seconds if seconds else 0.0
    dropped = {reason: records[-1][f"groups_dropped/{reason}"] for reason in labels_of(records[-1], "groups_dropped")}
    return {
        "steps": len(records),
        "quarter_steps": quarter,
        "reward_first": first,
        "reward_last": last,
        "groups_trained": sum(record["groups"] for record in records),
        "groups_dropped": dropped,
        "tokens_trained": trained,
        "tokens_generated": generated,
        "steps_counted": len(counted),
        "generated_while_training_ratio": while_training / generated if generated else 0.0,
        "generated_tokens_per_second": generated / counted_seconds if counted_seconds else 0.0,
        "staleness_mean": versions / trained if trained else 0.0,
        "staleness_max": max(record["staleness_max"] for record in records),
        "seconds": seconds,
        "waiting_ratio": waiting,
        "generation_idle_ratio": idle,
        "verdict": verdict(waiting, idle),
        "steps_without_gradient_at_end": _at_end(records, _has_no_gradient),
        "steps_all_truncated_at_end": _at_end(records, lambda record: record.get("truncated_ratio") == 1.0),
    }


def _at_end(records: Sequence[Record], holds: Callable[[Record], bool]) -> int:
    """Of how many last steps in a row it holds."""
    return sum(1 for _ in itertools.takewhile(holds, reversed(records)))


def _has_no_gradient(record: Record) -> bool:
    """Rewards are equal in every group. With some baselines, or a KL term, there is a gradient all the same."""
    return record.get("uniform_groups_ratio") == 1.0 and not record.get("gradient_norm")


def _reward(records: Sequence[Record]) -> dict[str, float | None]:
    """Mean over steps and its standard error, from the steps' own errors (groups are the independent units)."""
    means = [record["reward_mean"] for record in records if record["reward_mean"] is not None]
    if not means:
        return {"mean": None, "standard_error": None}
    errors = [record["reward_standard_error"] for record in records if record["reward_standard_error"] is not None]
    mean = sum(means) / len(means)
    error = math.sqrt(sum(e * e for e in errors)) / len(errors) if len(errors) == len(means) else None
    return {"mean": mean, "standard_error": error}


def _text(
    folder: RunFolder,
    summary: Summary,
    held_out: Sequence[str],
    examples: Sequence[str],
    to_go_on: Sequence[str] | None,
) -> str:
    return "\n".join(
        [
            f"# {folder.path.name}: {_progress(summary)} in {format_duration(summary['seconds'])}",
            "",
            *_number_lines(summary, to_go_on),
            *_changed_lines(folder),
            *held_out,
            *examples,
            "",
            *_place_lines(folder),
            "",
        ]
    )


def _evaluations(records: Sequence[Record]) -> dict[str, Any]:
    """First and last, and by how much the mean reward of the prompts changed between them."""
    shown = [{name: value for name, value in each.items() if name != "prompt_rewards"} for each in records]
    change = None
    if len(records) == 2:
        mean, error = change_of_reward(*records)
        change = to_json({"mean": mean, "standard_error": error})
    return {"evaluations": shown, "evaluation_change": change}


def _progress(summary: Summary) -> str:
    steps, target = summary["steps"], summary["target_steps"]
    return f"{steps} steps" if steps == target else f"interrupted after {steps} of {target} steps"


def _number_lines(summary: Summary, to_go_on: Sequence[str] | None) -> list[str]:
    first, last, quarter = summary["reward_first"], summary["reward_last"], summary["quarter_steps"]
    counts = {reason: count for reason, count in summary["groups_dropped"].items() if count and reason != RUN_ENDED}
    dropped = ", ".join(f"{count} {reason}" for reason, count in counts.items())
    lines = [
        f"* Reward {_plus_minus(first)} in the first {_steps(quarter)}, "
        f"{_plus_minus(last)} in the last{_change(first, last)}.",
        f"* Trained {summary['groups_trained']} groups, {summary['tokens_trained']} tokens; "
        f"dropped groups: {dropped or 'none'}.",
        *_left_lines(summary, to_go_on),
        f"* Generated {summary['tokens_generated']} tokens, {summary['generated_tokens_per_second']:.0f} per second, "
        f"{summary['generated_while_training_ratio']:.0%} of them while the learner was training{_uncounted(summary)}.",
        f"* Staleness of trained tokens: mean {summary['staleness_mean']:.2f}, largest {summary['staleness_max']}.",
        f"* The learner waited {summary['waiting_ratio']:.0%} of the time, generation was idle "
        f"{summary['generation_idle_ratio']:.0%} of it: the run was {summary['verdict']}.",
    ]
    return lines + _end_lines(summary) + [f"* {prediction['text']}" for prediction in summary["predictions"]]


def _left_lines(summary: Summary, to_go_on: Sequence[str] | None) -> list[str]:
    """What becomes of the groups that the end of the run cut off, and how it goes on where it can."""
    left = summary["groups_dropped"].get(RUN_ENDED, 0)
    groups = f"{left} group{' that was' if left == 1 else 's that were'} begun and not trained"
    prompts = "its prompt comes" if left == 1 else "their prompts come"
    if summary["steps"] >= summary["target_steps"]:
        return (
            [f"* Left over at the end: {groups}; no step was left for {'it' if left == 1 else 'them'}."] if left else []
        )
    if (saved := summary["checkpoint_step"]) is None or to_go_on is None:
        return ["* No checkpoint was saved (checkpoint.save_minutes, checkpoint.save_steps), so it cannot go on."]
    nothing_lost = f" Nothing is lost with {groups}: {prompts} again then." if left else ""
    by = f"The same command with {' '.join(to_go_on)} goes" if to_go_on else "The same command goes"
    python = "train() once more, with that setting" if to_go_on else "train() once more"
    return [f"* {by} on after step {saved} (in Python: {python}).{nothing_lost}"]


def _changed_lines(folder: RunFolder) -> list[str]:
    """Settings that a resume changed: what the numbers above are of, from one step on."""
    history, fault = told_history(folder)
    if fault is not None:
        return [f"* Whether a resume changed settings is not known: {fault}."]
    return [
        f"* Changed from step {each.first_step} on: {'; '.join(told)}."
        for each in history
        if (told := [str(change) for change in each.changes if change.has_meaning])
    ]


def _end_lines(summary: Summary) -> list[str]:
    """What the last steps, if they are several, say about going on."""
    least = min(2, summary["steps"])
    uniform, truncated = summary["steps_without_gradient_at_end"], summary["steps_all_truncated_at_end"]
    lines = []
    if uniform >= least:
        lines.append(
            f"* In the last {_steps(uniform)} there was nothing left to learn from: every group's samples got equal "
            "rewards."
        )
    if truncated >= least:
        lines.append(
            f"* In the last {_steps(truncated)} every completion was cut at generation.max_completion_length: none "
            "ended by itself."
        )
    return lines


def _uncounted(summary: Summary) -> str:
    counted, steps = summary["steps_counted"], summary["steps"]
    return "" if counted == steps else f"; engines told so for {counted} of {_steps(steps)}"


def _plus_minus(reward: Mapping[str, float | None]) -> str:
    if reward["mean"] is None:
        return "-"
    if reward["standard_error"] is None:
        return f"{reward['mean']:+.3f}"
    return f"{reward['mean']:+.3f} ± {reward['standard_error']:.3f}"


def _change(first: Mapping[str, float | None], last: Mapping[str, float | None]) -> str:
    """How the two compare, with the error of their difference."""
    values = (first["mean"], last["mean"], first["standard_error"], last["standard_error"])
    before, after, error_before, error_after = values
    if before is None or after is None or error_before is None or error_after is None:
        return ""
    return f" (change {after - before:+.3f} ± {math.hypot(error_before, error_after):.3f}, standard errors)"


def _steps(count: int) -> str:
    return "step" if count == 1 else f"{count} steps"


def _held_out_lines(folder: RunFolder, evaluations: Sequence[Record]) -> list[str]:
    """The same held-out prompts before and after; none without two evaluations whose samples were saved."""
    if len(evaluations) < 2:
        return []
    steps = (evaluations[0]["step"], evaluations[1]["step"])
    before, after = (evaluation_file(folder, step) for step in steps)
    if not (before.exists() and after.exists()):
        return []
    title = f"Completions of held-out prompts at step {steps[0]} and at step {steps[1]} (the first of each prompt,"
    return _example_lines(f"{title} not chosen by reward):", held_out_pairs(before, after), steps)


def _trained_lines(folder: RunFolder, records: Sequence[Record]) -> list[str]:
    """Trained prompts are others in every step."""
    ends = (records[0]["step"], records[-1]["step"])
    first, last = (rollout_file(folder, step) for step in ends)
    if first == last or not (first.exists() and last.exists()):
        return []
    title = (
        f"Completions of step {ends[0]}, each beside one of step {ends[1]} for the most alike prompt there "
        "(the first of each group, not chosen by reward):"
    )
    return _example_lines(title, example_pairs(first, last), ends)


def _example_lines(title: str, pairs: Sequence[tuple[Example, Example]], ends: tuple[int, int]) -> list[str]:
    lines = ["", title] if pairs else []
    for before, after in pairs:
        if after.prompt == before.prompt:
            rows = [("prompt", before.prompt)]
            told = [f"step {step}, reward {each.reward:+.3f}" for step, each in zip(ends, (before, after), strict=True)]
            rows += [(told[0], before.completion), (told[1], after.completion)]
        else:
            rows = [
                (f"prompt at step {ends[0]}", before.prompt),
                (f"reward {before.reward:+.3f}", before.completion),
                (f"other prompt at step {ends[1]}", after.prompt),
                (f"reward {after.reward:+.3f}", after.completion),
            ]
        width = max(len(label) for label, _ in rows)
        lines += ["", *(f"    {label:<{width}}  {text}" for label, text in rows)]
    return lines


def _place_lines(folder: RunFolder) -> list[str]:
    """Where things lie, of those that exist."""
    places = (
        ("Model", folder.model_dir),
        ("Steps", folder.metrics_file),
        ("Evaluations", folder.evaluation_file),
        ("Samples", folder.rollouts_dir),
        ("Plot", folder.reward_plot),
        ("Log", folder.log_file),
    )
    return [f"* {name}: {path}" for name, path in places if path.exists()]
