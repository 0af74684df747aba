"""One optimiser step of our learner against one of TRL's, on the same samples: speed, memory, and that both agree.

    python scripts/benchmarks/learner_vs_trl.py            # everything; on two cores about an hour
    python scripts/benchmarks/learner_vs_trl.py --quick    # the headline and its variants, once
    python scripts/benchmarks/learner_vs_trl.py --cells 1024/256 32/64

Needs TRL: pip install -e '.[bench]'. The model is the quickstart's unless --model names another;
make it with python scripts/quickstart/prepare.py.

A cell is PROMPT/COMPLETION: tokens of a prompt, tokens of the longest completion; lengths are uniform in [longest/8,
longest], 8 samples share a prompt, weights and computation are float32. Variants of a cell:

    /best           every sample has its own prompt, all lengths are equal: nothing to share, no padding: TRL's best
    /corrected      importance weights against the engine's log-probabilities: TRL needs another forward pass for them
    /checkpointed   gradient checkpointing on both sides (TRL's default; without it TRL is faster, with more memory)

Speed is trained (completion) tokens per second of a whole step: forward, loss, backward, clipping, AdamW. Memory is the
peak of resident memory in a step, minus what is resident before it with weights, gradients and optimiser state all
allocated and freed memory given back to the system (`shared.start_peak`). Both sides run in processes of their own, one
after the other, the order alternating from repeat to repeat; figures are medians.

Both sides start from the same weights, so the first step's loss, gradient norm and sum of log-probabilities must agree:
otherwise the exit code is 1. The last line is one JSON object; its ratios are ours / TRL's, for memory less is better.
"""

from __future__ import annotations

import argparse
import statistics
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from shared import ASSETS, Figures, Measure, Work, cores, measure, print_figures, print_table, ratio, versions

SIDES = {"asyncgrpo": "learner_asyncgrpo.py", "trl": "learner_trl.py"}
HEADLINE = "256/64"
VARIANTS = ("best", "corrected", "checkpointed")
QUICK = (HEADLINE, *(f"{HEADLINE}/{variant}" for variant in VARIANTS))
CELLS = ("32/64", "32/256", *QUICK, "256/256", "1024/64", "1024/256")
TOLERANCE = 1e-3
"""Relative difference allowed between the sides."""
# The gradient norms differ by up to 2e-4, which is float32's rounding and not a difference of the maths: in layers 10
# and 11 of SmolLM2-135M one activation is massive, and the backward pass of their RMSNorm subtracts large numbers that
# are nearly equal. In float64 our norm equals that of plain autograd to 2e-13; in float32 ours is off by -1.5e-4 and
# TRL's by +0.7e-4.
COMPARED = ("loss", "grad_norm", "logprob_sum")


def main(argv: Sequence[str] | None = None, measure: Measure = measure) -> int:
    arguments = parse(argv)
    if not (Path(arguments.model) / "config.json").is_file():
        sys.exit(f"there is no model in {arguments.model}; run python scripts/quickstart/prepare.py, or give --model")
    works = {name: make_work(name, arguments) for name in arguments.cells}
    repeats = 1 if arguments.quick else arguments.repeats
    cells = {name: compare(work, repeats, measure) for name, work in works.items()}
    print_cells(cells)
    figures = summary(cells) | {
        "model": arguments.model,
        "threads": arguments.threads,
        "groups": arguments.groups,
        "micro_batch": arguments.micro_batch,
        "repeats": repeats,
        "versions": versions(),
    }
    print_figures(figures)
    return 0 if figures["agrees"] else 1


def parse(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default=str(ASSETS / "model"), help="folder of the model (default: %(default)s)")
    parser.add_argument("--cells", nargs="+", metavar="CELL", help=f"of {', '.join(CELLS)}, or any other")
    parser.add_argument("--quick", action="store_true", help=f"one repeat; without --cells only {' '.join(QUICK)}")
    parser.add_argument("--repeats", type=int, default=3, help="processes per side and cell (default: %(default)s)")
    parser.add_argument("--steps", type=int, default=1, help="timed steps per process (default: %(default)s)")
    parser.add_argument("--groups", type=int, default=1, help="groups of 8 samples per step (default: %(default)s)")
    parser.add_argument("--micro-batch", type=int, default=8, help="TRL's samples in a pass; ours gets as many tokens")
    parser.add_argument("--threads", type=int, default=cores(), help="threads of torch (default: all, %(default)s)")
    arguments = parser.parse_args(argv)
    arguments.cells = arguments.cells or list(QUICK if arguments.quick else CELLS)
    if 8 * arguments.groups % arguments.micro_batch:
        parser.error(f"--micro-batch {arguments.micro_batch} does not divide {8 * arguments.groups} samples")
    return arguments


def make_work(name: str, arguments: argparse.Namespace) -> Work:
    """The work that a cell names. Exits for a name that is none."""
    prompt, completion, *variants = name.split("/") if name.count("/") else (name, "")
    if not (prompt.isdigit() and completion.isdigit() and set(variants) <= set(VARIANTS)):
        sys.exit(f"{name!r} is no cell; write PROMPT/COMPLETION or PROMPT/COMPLETION/VARIANT, of {', '.join(VARIANTS)}")
    return Work(
        model=arguments.model,
        prompt=int(prompt),
        completion=int(completion),
        groups=arguments.groups,
        shared="best" not in variants,
        ragged="best" not in variants,
        corrected="corrected" in variants,
        checkpointed="checkpointed" in variants,
        micro_batch=arguments.micro_batch,
        threads=arguments.threads,
        steps=arguments.steps,
    )


def compare(work: Work, repeats: int, measure: Measure) -> Figures:
    """Medians of both sides over processes that alternate, and how far the sides agree."""
    found: dict[str, list[Figures]] = {side: [] for side in SIDES}
    for repeat in range(repeats):
        for side in list(SIDES) if repeat % 2 == 0 else reversed(SIDES):
            found[side].append(measure(SIDES[side], work))
    sides = {side: combine(figures) for side, figures in found.items()}
    ours, theirs = sides["asyncgrpo"], sides["trl"]
    return {
        **sides,
        "tokens_ratio": ratio(ours.get("tokens_per_second"), theirs.get("tokens_per_second")),
        "memory_ratio": ratio(ours.get("peak_bytes"), theirs.get("peak_bytes")),
        "differences": differences(ours, theirs),
    }


def combine(runs: Sequence[Figures]) -> Figures:
    """One side's figures over its processes; the first failure, if any failed."""
    for run in runs:
        if "error" in run:
            return run
    seconds = [second for run in runs for second in run["seconds"]]
    return {
        "tokens_per_second": runs[0]["tokens"] / statistics.median(seconds),
        "peak_bytes": statistics.median(run["peak_bytes"] for run in runs),
        "seconds": seconds,
        "tokens": runs[0]["tokens"],
        **{name: runs[0][name] for name in COMPARED},
    }


def differences(ours: Figures, theirs: Figures) -> dict[str, float] | None:
    """Relative to TRL's. None where a side has no figures."""
    if "error" in ours or "error" in theirs:
        return None
    return {name: abs(ours[name] - theirs[name]) / max(abs(theirs[name]), 1e-6) for name in COMPARED}


def summary(cells: Mapping[str, Figures]) -> Figures:
    """The headline's ratios and those of its variants, where they were measured, and whether all cells agree."""
    names = {"": HEADLINE} | {f"_{'best_case' if v == 'best' else v}": f"{HEADLINE}/{v}" for v in VARIANTS}
    measured = {suffix: cells[name] for suffix, name in names.items() if name in cells}
    all_differences = [list(cell["differences"].values()) for cell in cells.values() if cell["differences"]]
    figures: Figures = {
        f"{kind}_ratio{suffix}": cell[f"{kind}_ratio"]
        for suffix, cell in measured.items()
        for kind in ("tokens", "memory")
    }
    return figures | {
        "agrees": bool(all_differences) and max(map(max, all_differences)) <= TOLERANCE,
        "largest_difference": max(map(max, all_differences), default=None),
        "cells": dict(cells),
    }


def print_cells(cells: Mapping[str, Figures]) -> None:
    rows = []
    for name, cell in cells.items():
        speeds = [_number(cell[side].get("tokens_per_second"), ".1f") for side in SIDES]
        peaks = [_gigabytes(cell[side]) for side in SIDES]
        ratios = [_number(cell["tokens_ratio"], ".2f"), _number(cell["memory_ratio"], ".2f")]
        agreement = "-" if cell["differences"] is None else f"{max(cell['differences'].values()):.0e}"
        rows.append([name, *speeds, ratios[0], *peaks, ratios[1], agreement])
    columns = ["prompt/completion", "ours tokens/s", "TRL tokens/s", "ratio", "ours GB", "TRL GB", "ratio", "differ by"]
    print_table("trained tokens per second, peak memory beyond weights, gradients and optimiser", columns, rows)


def _number(value: float | None, form: str) -> str:
    return "-" if value is None else format(value, form)


def _gigabytes(figures: Figures) -> str:
    return figures["error"] if "error" in figures else f"{figures['peak_bytes'] / 1e9:.2f}"


if __name__ == "__main__":
    sys.exit(main())
