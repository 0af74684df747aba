"""Does our trainer learn as TRL's does? The same tiny model, data and settings, eight seeds, an equivalence test.

    python scripts/benchmarks/parity_with_trl.py            # 8 seeds; 18 minutes of CPU time, on two busy cores 27
    python scripts/benchmarks/parity_with_trl.py --quick    # 2 seeds, few steps: shows that it works, no more

Needs TRL, SciPy and statsmodels: pip install -e '.[bench]'. Needs neither vLLM nor a model from elsewhere.

A two-layer GPT-2 of width 64 reverses digits, a character per token. A brief supervised start brings the share of its
greedy answers that are right, the score, to a quarter; GRPO takes it from there, with the share of digits in place as
the reward. Each seed has its own start, prompts and held-out prompts, and both sides get the same of each:
AsyncGRPOTrainer with max_staleness 0, from admission to publish, with the tests' fake engine in vLLM's place (it
samples from the true distributions of the weights published last), and TRL's GRPOTrainer, which generates with
transformers. The score is taken on held-out prompts along the way.

Ours minus TRL's, paired by seed: the area under the learning curve (the mean score over the steps), and the final
score. `equivalent` is the verdict on the area: two one-sided tests at 5 % reject that the means differ by the margin or
more. The margin (0.05) was set before the first run. `interval` is the 95 % bootstrap interval of the mean difference.

What the two do in different ways by themselves, and how both are made to do the same:

    order of prompts     shuffled by each in its own way: both take the rows in the order given, which the seed draws
    last partial batch   TRL drops it, we cut steps out of an endless stream: the rows are just those of all steps
    steps                TRL counts optimiser updates, we count batches: TRL gets steps x iterations, and the schedules,
                         counted in updates by both, are of the same length
    minibatches          TRL shuffles samples into them, we keep groups whole: one minibatch, taken `iterations` times
    loss                 dapo: over the tokens of the step, in one pass at TRL (ours does not depend on passes)
    importance weights   for engine against learner; TRL generates with the trained weights themselves: off in ours
    KL term              k3 times current/proximal in both: TRL's use_bias_correction_kl, our kl_weight=proximal
    advantages           divided by the group's standard deviation + 1e-4, of the sample (n - 1), in both
    AdamW                the same betas, epsilon, weight decay 0, clipping at norm 1; warm-up counted in updates
    precision            float32 in both, no autocast, no gradient checkpointing; no dropout in this model
    sampling             temperature 1, no top-p, top-k or min-p. Random numbers cannot be shared: this is the noise

--handicap halves TRL's learning rate (--handicap 2), so that the sides really differ: a test that then still finds
them equivalent has too wide a margin for this task, or the task is solved either way.

Exit code 0: equivalent, or --quick, which decides nothing. 1: not shown to be equivalent. 2: the sides did not begin
with the same score, or staleness was not 0, so nothing was compared. The last line is one JSON object.
"""

from __future__ import annotations

import argparse
import json
import shutil
import statistics
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, fields, replace
from pathlib import Path
from typing import Any

from parity_statistics import Paired, area_under, compare
from parity_task import Settings
from shared import Figures, cores, print_figures, print_table, run_child, versions

SIDES = ("asyncgrpo", "trl")
MARGIN = 0.05
SEEDS, QUICK_SEEDS, QUICK_STEPS = 8, 2, 10
SETTABLE = ("digits", "steps", "eval_steps", "groups", "generations", "iterations", "learning_rate", "beta")
SETTABLE_NAMES = ("schedule", "loss_type", "scale_rewards")

RunSide = Callable[[str, Settings], Figures]
"""(script without its ending, settings) -> its figures"""
Judge = Callable[[Sequence[float], Sequence[float], float], Paired]
"""(ours, theirs, margin) -> verdict"""


def main(argv: Sequence[str] | None = None, run_side: RunSide | None = None, judge: Judge = compare) -> int:
    arguments = parse(argv)
    with tempfile.TemporaryDirectory() as folder:
        settings = make_settings(arguments, arguments.keep or folder)
        found = run_all(settings, arguments, run_side or run_child_side)
    figures = summary(found, settings, arguments.margin, judge)
    print_seeds(found, figures)
    print_figures(figures | {"handicap": arguments.handicap, "quick": arguments.quick, "versions": versions()})
    if figures["invalid"]:
        return 2
    return 0 if figures["equivalent"] or arguments.quick else 1


def parse(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help=f"{QUICK_SEEDS} seeds, {QUICK_STEPS} steps")
    parser.add_argument("--seeds", type=int, default=SEEDS, help="at least 2 (default: %(default)s)")
    parser.add_argument("--margin", type=float, default=MARGIN, help="of the score (default: %(default)s)")
    parser.add_argument("--jobs", type=int, default=cores(), help="runs at the same time (default: all cores)")
    parser.add_argument("--handicap", type=float, default=1.0, help="TRL's learning rate is divided by it")
    parser.add_argument("--keep", metavar="FOLDER", help="keep starts and runs there (default: nowhere)")
    defaults = {field.name: field.default for field in fields(Settings)}
    for name in (*SETTABLE, *SETTABLE_NAMES):
        default = defaults[name]
        option = f"--{name.replace('_', '-')}"
        parser.add_argument(option, type=type(default), default=default, help="(default: %(default)s)")
    arguments = parser.parse_args(argv)
    if arguments.quick:
        arguments.seeds, arguments.steps, arguments.eval_steps = QUICK_SEEDS, QUICK_STEPS, QUICK_STEPS // 2
    if arguments.seeds < 2:
        parser.error(f"--seeds {arguments.seeds}: a spread over seeds needs 2 at least")
    return arguments


def make_settings(arguments: argparse.Namespace, folder: str) -> list[Settings]:
    """Of each seed."""
    Path(folder).mkdir(parents=True, exist_ok=True)
    given = {name: getattr(arguments, name) for name in (*SETTABLE, *SETTABLE_NAMES)}
    return [Settings(seed=seed, folder=folder, **given) for seed in range(arguments.seeds)]


def run_child_side(script: str, settings: Settings) -> Figures:
    return run_child(f"{script}.py", json.dumps(asdict(settings)), threads=1)


def run_all(settings: Sequence[Settings], arguments: argparse.Namespace, run_side: RunSide) -> list[Figures]:
    """Of every seed what each side found, `jobs` processes at a time; the sides of a seed in alternating order."""

    def run_seed(own: Settings) -> Figures:
        run_side("parity_task", own)
        found = {}
        for side in SIDES if own.seed % 2 == 0 else reversed(SIDES):
            rate = own.learning_rate / (arguments.handicap if side == "trl" else 1.0)
            found[side] = run_side(f"parity_{side}", replace(own, learning_rate=rate))
        print(f"seed {own.seed}: " + ", ".join(f"{side} {_area(found[side]):.3f}" for side in SIDES), file=sys.stderr)
        return found

    for own in settings:  # of an earlier run with --keep
        for name in ("start", *SIDES):
            shutil.rmtree(own.start.with_name(f"{name}_{own.seed}"), ignore_errors=True)
    with ThreadPoolExecutor(arguments.jobs) as pool:
        return list(pool.map(run_seed, settings))


def summary(found: Sequence[Figures], settings: Sequence[Settings], margin: float, judge: Judge) -> Figures:
    """The last line: verdict and figures of the area, the same of the final score, means and curves of both sides."""
    areas = {side: [_area(seed[side]) for seed in found] for side in SIDES}
    finals = {side: [_last(seed[side]) for seed in found] for side in SIDES}
    area = judge(areas["asyncgrpo"], areas["trl"], margin)
    final = judge(finals["asyncgrpo"], finals["trl"], margin)
    sides = {
        side: {
            "area": statistics.mean(areas[side]),
            "final": statistics.mean(finals[side]),
            "areas": areas[side],
            "curve": mean_curve([seed[side]["curve"] for seed in found]),
            "curves": [seed[side]["curve"] for seed in found],
            "seconds": statistics.mean(seed[side]["seconds"] for seed in found),
        }
        for side in SIDES
    }
    return {
        "equivalent": area.equivalent,
        **_shown(area),
        "margin": margin,
        "seeds": len(found),
        **sides,
        "final": {"equivalent": final.equivalent, **_shown(final)},
        "start": statistics.mean(seed["trl"]["curve"][0][1] for seed in found),
        "invalid": invalid(found),
        "settings": {name: value for name, value in asdict(settings[0]).items() if name not in ("seed", "folder")},
    }


def invalid(found: Sequence[Figures]) -> list[str]:
    """Why nothing was compared; empty if all is well. The score of a saved model is the same however it is measured,
    but for arg-maxima that rounding decides: one answer in a hundred."""
    reasons = []
    for number, seed in enumerate(found):
        ours, theirs = seed["asyncgrpo"], seed["trl"]
        if [step for step, _ in ours["curve"]] != [step for step, _ in theirs["curve"]]:
            reasons.append(f"seed {number}: the curves have points at different steps")
        if abs(ours["curve"][0][1] - theirs["curve"][0][1]) > 0.01:
            reasons.append(f"seed {number}: starts of {ours['curve'][0][1]} and {theirs['curve'][0][1]}")
        if abs(ours["final_by_transformers"] - _last(ours)) > 0.01:
            reasons.append(f"seed {number}: final scores of {_last(ours)} and {ours['final_by_transformers']}")
        if ours["most_staleness"] > 0:
            reasons.append(f"seed {number}: staleness of {ours['most_staleness']}")
    return reasons


def mean_curve(curves: Sequence[Sequence[tuple[int, float]]]) -> list[tuple[int, float]]:
    """Over seeds, at each step."""
    return [(points[0][0], statistics.mean(score for _, score in points)) for points in zip(*curves, strict=True)]


def print_seeds(found: Sequence[Figures], figures: Mapping[str, Any]) -> None:
    rows = [
        [str(number), *(f"{_area(seed[side]):.3f}" for side in SIDES), *(f"{_last(seed[side]):.3f}" for side in SIDES)]
        for number, seed in enumerate(found)
    ]
    rows.append(["mean", *(f"{figures[side][what]:.3f}" for what in ("area", "final") for side in SIDES)])
    print_table("held-out score", ["seed", "area, ours", "area, TRL", "final, ours", "final, TRL"], rows)
    for reason in figures["invalid"]:
        print(f"not comparable: {reason}")


def _shown(paired: Paired) -> Figures:
    return {"difference": paired.difference, "interval": list(paired.interval), "p_value": paired.p_value}


def _area(side: Figures) -> float:
    return area_under(side["curve"])


def _last(side: Figures) -> float:
    return float(side["curve"][-1][1])


if __name__ == "__main__":
    sys.exit(main())
